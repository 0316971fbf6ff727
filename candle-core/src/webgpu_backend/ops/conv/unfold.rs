//! Windows of f16 images as rows of a matrix, the form in which the cooperative kernel reads an operand.

use std::ops::Range;

use super::{index, output_len, taps, Conv};
use crate::backend::BackendStorage;
use crate::conv::Steps;
use crate::webgpu_backend::kernel::{params, Caps, Kernel, Shader};
use crate::webgpu_backend::ops::{bind, matmul, WORKGROUP};
use crate::webgpu_backend::unroll::unrolled;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

/// Rows that a workgroup computes, and groups of eight elements in each: 64 invocations read 128 contiguous bytes, and eight write as many.
const COLS: usize = 64;
const GROUPS: usize = 8;

params!(UnfoldParams {
    src_offset: u32,
    src_batch: u32,
    src_channel: u32,
    src_row: u32,
    src_col: u32,
    i_h: u32,
    i_w: u32,
    k_h: u32,
    k_w: u32,
    o_w: u32,
    start_h: u32,
    start_w: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_h: u32,
    dilation_w: u32,
    // Positions of the result for each image; the first position; positions that become rows.
    positions: u32,
    first: u32,
    rows: u32,
    // Elements of a window, and groups of eight in a row.
    k: u32,
    groups: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Unfold {
    /// Height and width of the kernel, or 0 to read them from the parameters.
    kernel: [usize; 2],
    /// Whether no window extends past its image.
    inside: bool,
}

impl Kernel for Unfold {
    type Params = UnfoldParams;

    fn shader(&self, _: &Caps) -> Shader {
        let [k_h, k_w] = match self.kernel {
            [0, 0] => ["p.k_h".into(), "p.k_w".into()],
            size => size.map(|size| format!("{size}u")),
        };
        let loads = (COLS * GROUPS) as u32 / WORKGROUP;
        let text = unrolled(
            include_str!("../../shaders/conv_unfold.wgsl"),
            &[("LOADS", loads), ("EIGHT", 8)],
        );
        Shader::default()
            .input_words("src", "u32")
            .output_words("dst", "vec4<u32>")
            .constant("WG", WORKGROUP)
            .constant("COLS", COLS as u32)
            .constant("LOADS", loads)
            .constant("EIGHT", 8u32)
            .constant("INSIDE", self.inside)
            .body::<UnfoldParams>(&text.replace("K_H", &k_h).replace("K_W", &k_w))
    }
}

/// The windows of `positions`, which count over all images, as rows of `row` elements, a multiple of eight. A row begins with its window
/// `(channel, ky, kx)` and ends with zeros. The input is f16; only the first group of channels is read.
pub(super) fn rows(conv: &Conv<'_>, positions: Range<usize>, row: usize) -> Result<WebGpuStorage> {
    let g = &conv.g;
    let device = conv.src.device();
    let (c_in, _) = g.group_channels();
    // A power of two, so that convolutions of different sizes use the same few buffers.
    let len = (positions.len() * row).next_power_of_two();
    let len = len.min(device.max_binding() as usize / 2);
    let dst = device.alloc(len.max(positions.len() * row), DType::F16, g.op)?;
    let compiled = g.kernel.iter().all(|size| *size <= matmul::MOST_COMPILED);
    let inside = |d: usize| {
        let Steps {
            stride, dilation, ..
        } = g.steps[d];
        let last = (g.output[d] - 1) * stride + (g.kernel[d] - 1) * dilation;
        conv.start[d] as usize + last < g.input[d]
    };
    let kernel = Unfold {
        kernel: if compiled { g.kernel } else { [0; 2] },
        inside: inside(0) && inside(1),
    };
    let [src_batch, src_channel, src_row, src_col] = conv.src_strides;
    let params = UnfoldParams {
        src_offset: index(conv.src_offset)?,
        src_batch: index(src_batch)?,
        src_channel: index(src_channel)?,
        src_row: index(src_row)?,
        src_col: index(src_col)?,
        i_h: index(g.input[0])?,
        i_w: index(g.input[1])?,
        k_h: index(g.kernel[0])?,
        k_w: index(g.kernel[1])?,
        o_w: index(g.output[1])?,
        start_h: conv.start[0],
        start_w: conv.start[1],
        stride_h: index(g.steps[0].stride)?,
        stride_w: index(g.steps[1].stride)?,
        dilation_h: index(g.steps[0].dilation)?,
        dilation_w: index(g.steps[1].dilation)?,
        positions: index(output_len(g))?,
        first: index(positions.start)?,
        rows: index(positions.len())?,
        k: index(c_in * taps(g))?,
        groups: index(row / 8)?,
    };
    let workgroups = positions.len().div_ceil(COLS) * (row / 8).div_ceil(GROUPS);
    let bindings = [bind(conv.src), bind(&dst)];
    device.run(&kernel, &bindings, &params, device.grid(workgroups, 1))?;
    Ok(dst)
}

#[cfg(test)]
mod tests {
    use super::Unfold;
    use crate::webgpu_backend::kernel::assert_valid;

    #[test]
    fn every_form_is_valid_wgsl() {
        for kernel in [[0; 2], [1, 1], [7, 3]] {
            for inside in [false, true] {
                assert_valid(&Unfold { kernel, inside });
            }
        }
    }
}
