//! Direct convolutions, which read every tap.

use super::Conv;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid, BLOCK, MAX_GRID_YZ};
use crate::cuda_backend::CudaStorage;
use crate::Result;

/// Maximum number of taps that are compiled in.
const MOST_COMPILED: usize = 32;
/// Rows of the result per thread, if there are several.
const ROWS: usize = 4;

pub(super) fn run(conv: &Conv<'_>, dst: &CudaStorage) -> Result<()> {
    let g = &conv.g;
    let device = dst.device();
    let (c_in, c_out) = g.group_channels();
    let compiled = |size: usize| {
        if conv.taps() <= MOST_COMPILED {
            size
        } else {
            0
        }
    };
    let rows = if g.output[0] >= ROWS { ROWS } else { 1 };
    let kernel = Kernel::new(source!("conv_direct"))
        .define("T", device.c_type(dst.dtype(), g.op)?)
        .define("TRANSPOSED", g.transposed)
        .define("C_IN", if c_in == 1 { 1 } else { 0 })
        .define("K_H", compiled(g.kernel[0]))
        .define("K_W", compiled(g.kernel[1]))
        .define("ROWS", rows)
        .define("INDEX", index(conv));
    let w = &conv.weights;
    let sizes = [
        w.offset,
        w.out,
        w.group,
        w.channel,
        w.row,
        w.column,
        c_in,
        c_out,
        g.groups,
        g.b * g.c_out,
    ];
    let axis = |d: usize| {
        let s = &g.steps[d];
        let numbers = [
            g.input[d],
            g.kernel[d],
            g.output[d],
            s.padding,
            s.stride,
            s.dilation,
        ];
        numbers.map(|n| n as i64)
    };
    let parameters = Parameters {
        places: conv.planes.places(),
        sizes: sizes.map(|size| size as u64),
        axes: [axis(0), axis(1)],
    };
    let area = g.output[0].div_ceil(rows) * g.output[1];
    let threads = area.next_multiple_of(32).min(BLOCK as usize);
    let planes = (g.b * g.c_out).min(MAX_GRID_YZ);
    let grid = Grid::new(
        [area.div_ceil(threads) as u32, planes as u32, 1],
        threads as u32,
    );
    let args = Args::new()
        .storage(conv.input)
        .storage(conv.kernel)
        .storage(dst)
        .value(parameters);
    device.launch(&kernel, grid, args)
}

/// The signed integer type that covers every offset within a plane, and those beyond its edges.
fn index(conv: &Conv<'_>) -> &'static str {
    let g = &conv.g;
    let reach = |d: usize| {
        let s = &g.steps[d];
        let last = g.output[d].saturating_add(ROWS).saturating_mul(s.stride);
        let span = g.kernel[d].saturating_mul(s.dilation);
        last.saturating_add(span).saturating_add(s.padding)
    };
    let [_, channel, row, column] = conv.planes.strides;
    let of_group = |steps: [(usize, usize); 3]| {
        let all = steps.iter().map(|(size, step)| size.saturating_mul(*step));
        all.fold(0usize, usize::saturating_add)
    };
    let (c_in, _) = g.group_channels();
    let input = of_group([(c_in, channel), (g.input[0], row), (g.input[1], column)]);
    let w = &conv.weights;
    let kernel = of_group([
        (c_in, w.channel),
        (g.kernel[0], w.row),
        (g.kernel[1], w.column),
    ]);
    let area = conv
        .output_len()
        .saturating_add(ROWS * g.output[1] + BLOCK as usize);
    let most = [reach(0), reach(1), input, kernel, area].into_iter().max();
    if most.is_some_and(|most| most > i32::MAX as usize) {
        "i64"
    } else {
        "i32"
    }
}

/// `struct Conv` of `kernels/conv_direct.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    places: [u64; 5],
    sizes: [u64; 10],
    axes: [[i64; 6]; 2],
}

// SAFETY: words of 64 bits only, without padding.
unsafe impl bytemuck::Zeroable for Parameters {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Parameters {}
