//! Convolutions. One dimension is two with a height of 1.
//!
//! - *product*: a kernel of one element with stride 1 is a matrix product with the input.
//! - *tile* (`matmul/conv.rs`): the kernel, as a matrix, multiplies the windows of the input. The elements of windows are read while the
//!   tiles of a product are loaded. Nothing is unfolded.
//! - *matrices* (`matrices.rs`): windows are unfolded, some at a time, for a product on cooperative matrices.
//! - *direct* (`direct.rs`): every tap is read for every element of the result; all groups in one dispatch.
//!
//! [`Form::of`] chooses between them. Operands that exceed a binding are processed in parts (`parts.rs`). Transposed convolutions of many
//! channels are a product, whose columns are then added where they overlap (`transposed.rs`).

mod direct;
mod extras;
mod matrices;
mod parts;
mod transposed;
mod unfold;

use super::matmul::Extras;
use super::windows::fit;
use super::{elementwise, index, matmul};
use crate::backend::{BackendDevice, BackendStorage};
use crate::conv::Geometry;
use crate::fused::Conv2d;
use crate::webgpu_backend::kernel::Elem;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

/// Maximum number of a group's result channels for which tiles, which have at least 16 rows, are half empty.
const FEW_CHANNELS: usize = 8;
/// Maximum number of products that one invocation can add for an element of the result while others are idle: about 0.1 ms on a large GPU.
const SHORT_SUM: usize = 4096;

/// Elements of the kernel in one channel.
fn taps(g: &Geometry) -> usize {
    g.kernel[0] * g.kernel[1]
}

fn input_len(g: &Geometry) -> usize {
    g.input[0] * g.input[1]
}

fn output_len(g: &Geometry) -> usize {
    g.output[0] * g.output[1]
}

/// The algorithm of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Product,
    Tile,
    Direct,
}

impl Form {
    /// The form of a plain convolution. `in_order`: its windows are single elements with a constant stride; `wide`: tiles support the
    /// dtype.
    fn of(g: &Geometry, in_order: bool, wide: bool) -> Self {
        let (_, c_out) = g.group_channels();
        if g.groups == 1 && in_order {
            return Self::Product;
        }
        // A tile shares its loads between its rows, which are channels of the result: with few rows, direct reads with all invocations busy
        // are less work.
        let few = c_out <= FEW_CHANNELS && !Self::is_long(g);
        match (wide && !few, in_order) {
            (false, _) => Self::Direct,
            (true, true) => Self::Product,
            (true, false) => Self::Tile,
        }
    }

    /// Whether a transposed convolution is computed directly. The number of columns is the size of the input times the kernel's elements
    /// for each channel of the result; with few channels of the input, writing and reading the columns is more work than computing them.
    fn transposed_is_direct(g: &Geometry) -> bool {
        let (c_in, _) = g.group_channels();
        c_in <= FEW_CHANNELS && !Self::is_long(g)
    }

    /// Whether sums are so long and results so few that invocations would be idle, as for a kernel's gradient: tiles can split a sum
    /// between workgroups.
    fn is_long(g: &Geometry) -> bool {
        let (c_in, _) = g.group_channels();
        c_in * taps(g) > SHORT_SUM.max(g.b * g.c_out * output_len(g))
    }
}

/// The operands of a convolution: the input `(batch, c_in, height, width)` (without height in 1D) and the kernel.
pub(in super::super) struct Operands<'a> {
    src: &'a WebGpuStorage,
    src_l: &'a Layout,
    kernel: &'a WebGpuStorage,
    kernel_l: &'a Layout,
}

impl<'a> Operands<'a> {
    pub(in super::super) fn new(
        src: &'a WebGpuStorage,
        src_l: &'a Layout,
        kernel: &'a WebGpuStorage,
        kernel_l: &'a Layout,
    ) -> Self {
        Self {
            src,
            src_l,
            kernel,
            kernel_l,
        }
    }

    fn elem(&self, op: &'static str) -> Result<Elem> {
        self.src.device().elem(self.src.dtype(), op)
    }

    /// The whole convolution, as one part.
    fn whole(&self, g: Geometry) -> Result<Conv<'a>> {
        let start = |d: usize| -> Result<u32> {
            let padding = index(g.steps[d].padding)?;
            Ok(if g.transposed {
                padding
            } else {
                padding.wrapping_neg()
            })
        };
        Ok(Conv {
            g,
            start: [start(0)?, start(1)?],
            src: self.src,
            src_offset: self.src_l.start_offset(),
            src_strides: strides(self.src_l),
            kernel: self.kernel,
            kernel_offset: self.kernel_l.start_offset(),
            kernel_strides: strides(self.kernel_l),
        })
    }
}

/// A convolution whose operands kernels can bind: a whole one, or a part.
struct Conv<'a> {
    /// The geometry; `start` replaces its padding.
    g: Geometry,
    /// For a plain convolution, the row and column of the input at which its first window begins; it wraps if that is before the first. For
    /// a transposed one, the padding.
    start: [u32; 2],
    src: &'a WebGpuStorage,
    src_offset: usize,
    /// Strides over batch, channel, row and column.
    src_strides: [usize; 4],
    kernel: &'a WebGpuStorage,
    kernel_offset: usize,
    /// Strides over the kernel's four dimensions.
    kernel_strides: [usize; 4],
}

impl Conv<'_> {
    /// Whether every window is one element, and the windows have a constant stride.
    fn in_order(&self) -> bool {
        let g = &self.g;
        let [_, _, row, col] = self.src_strides;
        taps(g) == 1
            && self.start == [0; 2]
            && g.steps.iter().all(|s| s.stride == 1)
            && g.output == g.input
            && (g.input[0] == 1 || row == g.input[1] * col)
    }

    /// Whether the operands and the result, which may be computed in f32 first, can be bound.
    fn fits(&self) -> bool {
        let len = self.g.b * self.g.c_out * output_len(&self.g);
        let bytes = len * self.src.dtype().size_in_bytes().max(4);
        fit([self.src, self.kernel]) && bytes as u64 <= self.src.device().max_binding()
    }

    /// A plain convolution's result `(batch, c_out, o_h, o_w)` of dtype `to`.
    fn make(&self, extras: Extras<'_>, to: DType) -> Result<WebGpuStorage> {
        let g = &self.g;
        let device = self.src.device();
        let elem = device.elem(self.src.dtype(), g.op)?;
        let reduced = matmul::gemm_reduced_precision_f32();
        let takes = matrices::takes(g, self.src.dtype(), reduced, &device.kernels().caps);
        if takes && self.fits() && !matrices::is_product(self) {
            return matrices::run(self, extras, to, matrices::PIECE_BYTES);
        }
        match Form::of(g, self.in_order(), elem.in_wide_kernels()) {
            Form::Direct => extras::after(direct::run(self, to)?, extras, g),
            Form::Tile => {
                let kernel_l = Layout::new(
                    Shape::from((g.c_out, g.c_in / g.groups, g.kernel[0], g.kernel[1])),
                    self.kernel_strides.to_vec(),
                    self.kernel_offset,
                );
                let (copied, offset) = contiguous(self.kernel, &kernel_l)?;
                let kernel = copied.as_ref().unwrap_or(self.kernel);
                let image = matmul::Image {
                    storage: self.src,
                    offset: self.src_offset,
                    strides: self.src_strides,
                    start: self.start,
                };
                matmul::convolution((kernel, offset), image, g, extras, to)
            }
            Form::Product => self.product(extras, to),
        }
    }

    /// The kernel, as matrices of the groups, times the input.
    fn product(&self, extras: Extras<'_>, to: DType) -> Result<WebGpuStorage> {
        let g = &self.g;
        let (c_in, c_out) = g.group_channels();
        let n = output_len(g);
        let [batch, channel, _, col] = self.src_strides;
        let [out_step, in_step, _, _] = self.kernel_strides;
        let kernel_l = matrices(
            [g.b, g.groups, c_out, c_in],
            [0, c_out * out_step, out_step, in_step],
            self.kernel_offset,
        );
        let src_l = matrices(
            [g.b, g.groups, c_in, n],
            [batch, c_in * channel, channel, col],
            self.src_offset,
        );
        let bmnk = (g.b * g.groups, c_out, n, c_in);
        if !extras.is_none() && c_in <= matmul::MOST_WINDOW {
            let problem = matmul::Problem::new(bmnk, &kernel_l, &src_l)?;
            let extras = (extras, g.c_out);
            let made = matmul::product_of_planes(self.kernel, self.src, &problem, extras, to)?;
            if let Some(made) = made {
                return Ok(made);
            }
        }
        let made = matmul::product(self.kernel, self.src, bmnk, &kernel_l, &src_l, to)?;
        extras::after(made, extras, g)
    }
}

/// A layout's strides, with one over a height of 1 in 1D.
fn strides(layout: &Layout) -> [usize; 4] {
    match *layout.stride() {
        [first, second, col] => [first, second, 0, col],
        [first, second, row, col] => [first, second, row, col],
        _ => [0; 4],
    }
}

/// A storage and a layout in which it is contiguous; copied only if it was not.
fn contiguous(src: &WebGpuStorage, layout: &Layout) -> Result<(Option<WebGpuStorage>, usize)> {
    if layout.is_contiguous() {
        return Ok((None, layout.start_offset()));
    }
    Ok((Some(elementwise::copy(src, layout)?), 0))
}

/// A layout of matrices: `(batch, group, row, column)`.
fn matrices(dims: [usize; 4], stride: [usize; 4], offset: usize) -> Layout {
    Layout::new(Shape::from(dims.to_vec()), stride.to_vec(), offset)
}

/// A plain convolution of floats, of geometry `g`, with what follows it.
pub(in super::super) fn run_with(
    operands: Operands<'_>,
    g: Geometry,
    conv: Conv2d<'_, WebGpuStorage>,
) -> Result<WebGpuStorage> {
    extras::in_order(conv, |extras| run_any(operands, g, extras))
}

/// A convolution. The kernel of a plain one is `(c_out, c_in / groups, height, width)`, that of a transposed one `(c_in, c_out / groups,
/// height, width)`.
pub(in super::super) fn run(operands: Operands<'_>, g: Geometry) -> Result<WebGpuStorage> {
    run_any(operands, g, Extras::default())
}

fn run_any(operands: Operands<'_>, g: Geometry, extras: Extras<'_>) -> Result<WebGpuStorage> {
    operands.elem(g.op)?;
    let device = operands.src.device();
    let dtype = operands.src.dtype();
    let len = g.b * g.c_out * output_len(&g);
    if len == 0 || g.c_in * input_len(&g) == 0 {
        let zeros = device.zeros_impl(&Shape::from(len), dtype)?;
        return extras::after(zeros, extras, &g);
    }
    let conv = operands.whole(g)?;
    let fits = conv.fits();
    match g.transposed {
        true if fits && Form::transposed_is_direct(&g) => direct::run(&conv, dtype),
        true => transposed::run(operands, g),
        false => {
            // The matrix products split themselves.
            let whole = fits || (g.groups == 1 && conv.in_order());
            let fused = whole && extras.each().all(WebGpuStorage::fits_binding);
            match (whole, fused) {
                (_, true) => conv.make(extras, dtype),
                (true, _) => extras::after(conv.make(Extras::default(), dtype)?, extras, &g),
                (false, _) => extras::after(parts::run(&operands, &g)?, extras, &g),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::Steps;

    #[test]
    fn forms() {
        let form = |groups: usize, c_in: usize, c_out: usize, size: usize, wide: bool| {
            let g = Geometry {
                op: "conv2d",
                transposed: false,
                b: 1,
                groups,
                c_in: groups * c_in,
                c_out: groups * c_out,
                input: [28, 28],
                kernel: [size, size],
                output: [28, 28],
                steps: [Steps {
                    padding: size / 2,
                    stride: 1,
                    dilation: 1,
                }; 2],
            };
            Form::of(&g, size == 1, wide)
        };
        assert_eq!(form(1, 64, 64, 1, true), Form::Product);
        assert_eq!(form(1, 64, 1, 1, false), Form::Product);
        assert_eq!(form(1, 64, 64, 3, true), Form::Tile);
        assert_eq!(form(4, 64, 64, 3, true), Form::Tile);
        assert_eq!(form(4, 64, 64, 1, true), Form::Product);
        assert_eq!(form(64, 1, 1, 1, true), Form::Direct);
        assert_eq!(form(64, 1, 1, 9, true), Form::Direct);
        assert_eq!(form(64, 2, 2, 3, true), Form::Direct);
        assert_eq!(form(1, 128, 3, 3, true), Form::Direct);
        assert_eq!(form(1, 64, 1, 9, true), Form::Tile);
        assert_eq!(form(1, 64, 9, 3, true), Form::Tile);
        // A dtype that tiles do not support.
        assert_eq!(form(1, 64, 64, 3, false), Form::Direct);
    }
}
