//! Convolutions. One dimension is two with a height of 1.
//!
//! - `tile.rs` multiplies tiles whose elements are located while they are loaded, with matrix instructions if the dtype has them; `pack.rs`
//!   makes the channels of a position adjacent for it, `passes.rs` splits a transposed convolution into plain ones.
//! - `direct.rs` reads every tap for every element of the result: any steps, any dtype; the form for few channels.
//! - A kernel of one element is a matrix product, computed by `matmul`.

mod direct;
mod pack;
mod passes;
mod tile;

use super::matmul::matmul;
use super::planes::Planes;
use crate::backend::BackendStorage;
use crate::conv::Geometry;
use crate::cuda_backend::CudaStorage;
use crate::{Layout, Result, Shape};

/// Input and kernel of a convolution.
#[derive(Clone, Copy)]
pub(in crate::cuda_backend) struct Operands<'a> {
    input: &'a CudaStorage,
    input_l: &'a Layout,
    kernel: &'a CudaStorage,
    kernel_l: &'a Layout,
}

impl<'a> Operands<'a> {
    pub(in crate::cuda_backend) fn new(
        input: &'a CudaStorage,
        input_l: &'a Layout,
        kernel: &'a CudaStorage,
        kernel_l: &'a Layout,
    ) -> Self {
        Self {
            input,
            input_l,
            kernel,
            kernel_l,
        }
    }
}

/// The kernel's strides, by role: a transposed convolution has its first two dimensions swapped.
#[derive(Debug, Clone, Copy)]
struct Weights {
    offset: usize,
    group: usize,
    /// Stride over the channels of the result.
    out: usize,
    /// Stride over the channels of the input.
    channel: usize,
    row: usize,
    column: usize,
}

impl Weights {
    fn new(layout: &Layout, g: &Geometry) -> Self {
        let planes = Planes::new(layout);
        let (c_in, c_out) = g.group_channels();
        let [first, second, row, column] = planes.strides;
        let (out, channel, group) = if g.transposed {
            (second, first, c_in * first)
        } else {
            (first, second, c_out * first)
        };
        Self {
            offset: planes.offset,
            group,
            out,
            channel,
            row,
            column,
        }
    }
}

/// The inputs of every form of a convolution.
struct Conv<'a> {
    input: &'a CudaStorage,
    planes: Planes,
    kernel: &'a CudaStorage,
    weights: Weights,
    g: Geometry,
}

impl Conv<'_> {
    fn output_len(&self) -> usize {
        self.g.output[0] * self.g.output[1]
    }

    fn taps(&self) -> usize {
        self.g.kernel[0] * self.g.kernel[1]
    }

    /// Whether every window is one element, in order, and the windows have a constant stride.
    fn is_product(&self) -> bool {
        let [_, _, row, column] = self.planes.strides;
        let one_by_one = self.g.steps.iter().all(|s| s.stride == 1 && s.padding == 0);
        let [height, width] = self.planes.size;
        self.taps() == 1
            && one_by_one
            && self.g.output == self.g.input
            && (height == 1 || row == width * column)
    }

    fn product(&self) -> Result<CudaStorage> {
        let (c_in, c_out) = self.g.group_channels();
        let (b, groups, n) = (self.g.b, self.g.groups, self.output_len());
        let [batch, channel, _, column] = self.planes.strides;
        let matrices = |rows, columns, strides: [usize; 4], offset| {
            Layout::new(
                Shape::from((b, groups, rows, columns)),
                strides.to_vec(),
                offset,
            )
        };
        let w = &self.weights;
        let lhs_l = matrices(c_out, c_in, [0, w.group, w.out, w.channel], w.offset);
        let rhs = [batch, c_in * channel, channel, column];
        let rhs_l = matrices(c_in, n, rhs, self.planes.offset);
        let bmnk = (b * groups, c_out, n, c_in);
        matmul(self.kernel, self.input, bmnk, &lhs_l, &rhs_l)
    }
}

/// A convolution. The kernel of a plain one is `(c_out, c_in / groups, height, width)`, that of a transposed one `(c_in, c_out / groups,
/// height, width)`.
pub(in crate::cuda_backend) fn run(operands: Operands<'_>, g: Geometry) -> Result<CudaStorage> {
    let device = operands.input.device();
    let dtype = operands.input.dtype();
    device.c_type(dtype, g.op)?;
    let conv = Conv {
        input: operands.input,
        planes: Planes::new(operands.input_l),
        kernel: operands.kernel,
        weights: Weights::new(operands.kernel_l, &g),
        g,
    };
    let len = g.b * g.c_out * conv.output_len();
    if len > 0 && conv.is_product() {
        return conv.product();
    }
    let mut dst = device.new_storage(len, dtype, g.op)?;
    match (len, g.c_in) {
        (0, _) => {}
        (_, 0) => dst.clear()?,
        _ => match tile::plan(&conv) {
            Some(passes) => tile::run(&conv, &passes, &dst)?,
            None => direct::run(&conv, &dst)?,
        },
    }
    Ok(dst)
}
