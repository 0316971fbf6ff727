//! Convolutions in the tile regime: the kernel is lhs, and rhs is the matrix whose columns are the windows of the input. That matrix is
//! never stored. As a tile is loaded, row `k` corresponds to an element of the kernel `(channel, ky, kx)`, column `n` to a position of the
//! result, and together they determine the element of the input. Stored, the matrix would have the size of the input times the kernel's
//! elements, written once and read once for each row of tiles.

use super::{make, Extras, MatmulParams, Problem, Rows};
use crate::conv::Geometry;
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::ops::index;
use crate::webgpu_backend::unroll::unrolled;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

/// Maximum size of a kernel that is compiled in: a division by such a number becomes a multiplication.
pub(in super::super) const MOST_COMPILED: usize = 16;

/// The input of a convolution.
pub(in super::super) struct Image<'a> {
    pub(in super::super) storage: &'a WebGpuStorage,
    pub(in super::super) offset: usize,
    /// Strides over batch, channel, row and column.
    pub(in super::super) strides: [usize; 4],
    /// Row and column at which the first window begins; wraps if before the first.
    pub(in super::super) start: [u32; 2],
}

/// Steps and sizes that locate the elements of windows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    channel: u32,
    row: u32,
    col: u32,
    input: [u32; 2],
    kernel: [u32; 2],
    o_w: u32,
    start: [u32; 2],
    stride: [u32; 2],
    dilation: [u32; 2],
}

/// A plain convolution of one of the tile dtypes, as `(batch, c_out, o_h, o_w)` of dtype `to`. The kernel is contiguous, from an element
/// on; everything can be bound. The padding of `g` is ignored.
pub(in super::super) fn convolution(
    (kernel, kernel_offset): (&WebGpuStorage, usize),
    image: Image<'_>,
    g: &Geometry,
    extras: Extras<'_>,
    to: DType,
) -> Result<WebGpuStorage> {
    let (c_in, c_out) = g.group_channels();
    let k = c_in * g.kernel[0] * g.kernel[1];
    let n = g.output[0] * g.output[1];
    let [batch, channel, row, col] = image.strides;
    let matrices = |rows, cols, strides: [usize; 4], offset| {
        let dims = vec![g.b, g.groups, rows, cols];
        Layout::new(Shape::from(dims), strides.to_vec(), offset)
    };
    let lhs_l = matrices(c_out, k, [0, c_out * k, k, 1], kernel_offset);
    // Strides within the matrix are those of the windows.
    let rhs_l = matrices(k, n, [batch, c_in * channel, 0, 0], image.offset);
    let problem = Problem::new((g.b * g.groups, c_out, n, k), &lhs_l, &rhs_l)?;
    let pair = |of: &dyn Fn(usize) -> usize| Ok::<_, crate::Error>([index(of(0))?, index(of(1))?]);
    let windows = Windows {
        channel: index(channel)?,
        row: index(row)?,
        col: index(col)?,
        input: pair(&|d| g.input[d])?,
        kernel: pair(&|d| g.kernel[d])?,
        o_w: index(g.output[1])?,
        start: image.start,
        stride: pair(&|d| g.steps[d].stride)?,
        dilation: pair(&|d| g.steps[d].dilation)?,
    };
    let rows = Rows::Windows(g.c_out, windows);
    let made = make(kernel, image.storage, &problem, extras, rows, to)?;
    made.ok_or_else(|| {
        crate::Error::WebGpu(format!("{}: one part exceeds the binding size", g.op)).bt()
    })
}

impl Windows {
    /// The kernel's size if it is compiled in, else 0.
    pub(super) fn compiled(&self) -> [u32; 2] {
        let small = |size: &u32| *size as usize <= MOST_COMPILED;
        if self.kernel.iter().all(small) {
            self.kernel
        } else {
            [0; 2]
        }
    }

    pub(super) fn fill(&self, params: &mut MatmulParams) {
        params.src_channel = self.channel;
        params.src_row = self.row;
        params.src_col = self.col;
        [params.i_h, params.i_w] = self.input;
        [params.k_h, params.k_w] = self.kernel;
        params.o_w = self.o_w;
        [params.start_h, params.start_w] = self.start;
        [params.stride_h, params.stride_w] = self.stride;
        [params.dilation_h, params.dilation_w] = self.dilation;
    }
}

impl Shader {
    /// `rhs_block`, the tile kernel's access to an operand, for windows of a kernel of this size; 0 reads the size from the parameters.
    pub(super) fn windows(self, elem: Elem, kernel: [u32; 2]) -> Self {
        let [k_h, k_w] = match kernel {
            [0, 0] => ["p.k_h".into(), "p.k_w".into()],
            size => size.map(|size| format!("{size}u")),
        };
        let text = unrolled(
            include_str!("../../shaders/matmul_tile_windows.wgsl"),
            &[("FOUR", 4)],
        );
        self.input("rhs", elem)
            .text(&text.replace("K_H", &k_h).replace("K_W", &k_w))
    }
}
