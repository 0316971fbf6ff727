//! Direct convolutions, which read every tap: all groups in one dispatch, any steps, any dtype.

use std::ops::Range;

use super::{index, taps, Conv};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::ops::elementwise::{binary, functions, to_dtype};
use crate::webgpu_backend::ops::matmul::MOST_COMPILED;
use crate::webgpu_backend::ops::reduce::accumulator;
use crate::webgpu_backend::ops::{bind, ranges, window_parts, MOST_STEPS};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result};

/// Invocations in a workgroup: few, so that small planes keep them busy.
const WORKGROUP: usize = 64;
/// Elements of a row of the result per invocation, if the row is long enough: whole words of every dtype.
const STRIP: usize = 4;
/// Maximum number of bytes of a kernel in workgroup memory: half of a browser's limit, so that two workgroups fit a core.
const STAGED_BYTES: usize = 8 << 10;

/// Maximum number of products that an invocation adds for an element of its strip: each comes with two short loops over the strip.
const MOST_TAPS: usize = MOST_STEPS / (2 * STRIP);

params!(DirectParams {
    src_offset: u32,
    src_batch: u32,
    src_group: u32,
    src_channel: u32,
    src_row: u32,
    src_col: u32,
    kernel_offset: u32,
    kernel_group: u32,
    kernel_out: u32,
    kernel_channel: u32,
    kernel_row: u32,
    kernel_col: u32,
    groups: u32,
    // Channels of one group.
    c_in: u32,
    c_out: u32,
    i_h: u32,
    i_w: u32,
    k_h: u32,
    k_w: u32,
    o_h: u32,
    o_w: u32,
    start_h: u32,
    start_w: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_h: u32,
    dilation_w: u32,
    // Planes of the result, in all images.
    planes: u32,
    // Strips in a row.
    strips: u32,
    // Invocations of a workgroup for each plane, and workgroups that share a plane.
    lanes: u32,
    segments: u32,
});

impl DirectParams {
    /// The parameters for the sums over some channels of the input, and some rows and columns of the kernel.
    fn part(
        &self,
        channels: &Range<usize>,
        [rows, cols]: [&Range<usize>; 2],
        transposed: bool,
    ) -> Result<Self> {
        let (channel, row, col) = (
            index(channels.start)?,
            index(rows.start)?,
            index(cols.start)?,
        );
        // A transposed convolution reads its taps in the opposite direction.
        let start = |start: u32, tap: u32, dilation: u32| {
            if transposed {
                start.wrapping_sub(tap.wrapping_mul(dilation))
            } else {
                start.wrapping_add(tap.wrapping_mul(dilation))
            }
        };
        let kernel = [
            (channel, self.kernel_channel),
            (row, self.kernel_row),
            (col, self.kernel_col),
        ];
        let skipped = kernel.iter().fold(0u32, |sum, (at, step)| {
            sum.wrapping_add(at.wrapping_mul(*step))
        });
        Ok(Self {
            src_offset: self.src_offset + channel * self.src_channel,
            kernel_offset: self.kernel_offset.wrapping_add(skipped),
            c_in: index(channels.len())?,
            k_h: index(rows.len())?,
            k_w: index(cols.len())?,
            start_h: start(self.start_h, row, self.dilation_h),
            start_w: start(self.start_w, col, self.dilation_w),
            ..*self
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ConvDirect {
    elem: Elem,
    out: Elem,
    strip: usize,
    transposed: bool,
    slide: bool,
    staged: bool,
    /// Height and width of the kernel, or 0 to read them from the parameters.
    kernel: [usize; 2],
}

/// The convolution, plain or transposed, as `(batch, c_out, o_h, o_w)` of dtype `to`.
pub(super) fn run(conv: &Conv<'_>, to: DType) -> Result<WebGpuStorage> {
    let g = &conv.g;
    let device = conv.src.device();
    let elem = device.elem(conv.src.dtype(), g.op)?;
    let [o_h, o_w] = g.output;
    let packed = device.elem(to, g.op)?;
    // Rows of an odd length share words of a packed dtype; such a result is computed in whole words first and then converted.
    let packs = o_w.is_multiple_of(packed.lanes() as usize);
    let made = if packs { to } else { accumulator(to) };
    let out = device.elem(made, g.op)?;
    let planes = g.b * g.c_out;
    let dst = device.alloc(planes * o_h * o_w, made, g.op)?;

    let strip = if o_w > 2 { STRIP } else { out.lanes() as usize };
    let strips = o_w.div_ceil(strip);
    let lanes = (o_h * strips).next_power_of_two().min(WORKGROUP);
    let segments = (o_h * strips).div_ceil(lanes);
    let together = WORKGROUP / lanes;
    let (c_in, c_out) = g.group_channels();
    let kept = c_in * taps(g) * together * scalar_bytes(elem);

    // A transposed convolution with stride 1 is a plain one with the kernel reversed.
    let [kernel_row, kernel_col] = [conv.kernel_strides[2], conv.kernel_strides[3]];
    let mut kernel_offset = conv.kernel_offset;
    let mut kernel_steps = [index(kernel_row)?, index(kernel_col)?];
    let mut start = conv.start;
    let turned = g.transposed && g.steps.iter().all(|s| s.stride == 1);
    if turned {
        kernel_offset += (g.kernel[0] - 1) * kernel_row + (g.kernel[1] - 1) * kernel_col;
        kernel_steps = kernel_steps.map(u32::wrapping_neg);
        for (d, start) in start.iter_mut().enumerate() {
            let span = (g.kernel[d] - 1) * g.steps[d].dilation;
            *start = start.wrapping_sub(index(span)?);
        }
    }
    let transposed = g.transposed && !turned;
    let convolution = ConvDirect {
        elem,
        out,
        strip,
        transposed,
        slide: !transposed && g.steps[1].stride == g.steps[1].dilation,
        staged: kept <= STAGED_BYTES,
        kernel: if g.kernel.iter().all(|size| *size <= MOST_COMPILED) {
            g.kernel
        } else {
            [0; 2]
        },
    };
    let [out_step, channel_step] = if g.transposed {
        [conv.kernel_strides[1], conv.kernel_strides[0]]
    } else {
        [conv.kernel_strides[0], conv.kernel_strides[1]]
    };
    let group_step = if g.transposed {
        c_in * channel_step
    } else {
        c_out * out_step
    };
    let [src_batch, src_channel, src_row, src_col] = conv.src_strides;
    let params = DirectParams {
        src_offset: index(conv.src_offset)?,
        src_batch: index(src_batch)?,
        src_group: index(c_in * src_channel)?,
        src_channel: index(src_channel)?,
        src_row: index(src_row)?,
        src_col: index(src_col)?,
        kernel_offset: index(kernel_offset)?,
        kernel_group: index(group_step)?,
        kernel_out: index(out_step)?,
        kernel_channel: index(channel_step)?,
        kernel_row: kernel_steps[0],
        kernel_col: kernel_steps[1],
        groups: index(g.groups)?,
        c_in: index(c_in)?,
        c_out: index(c_out)?,
        i_h: index(g.input[0])?,
        i_w: index(g.input[1])?,
        k_h: index(g.kernel[0])?,
        k_w: index(g.kernel[1])?,
        o_h: index(o_h)?,
        o_w: index(o_w)?,
        start_h: start[0],
        start_w: start[1],
        stride_h: index(g.steps[0].stride)?,
        stride_w: index(g.steps[1].stride)?,
        dilation_h: index(g.steps[0].dilation)?,
        dilation_w: index(g.steps[1].dilation)?,
        planes: index(planes)?,
        strips: index(strips)?,
        lanes: index(lanes)?,
        segments: index(segments)?,
    };
    let grid = device.grid(planes.div_ceil(together) * segments, 1);
    let launch = |kernel: &ConvDirect, params: &DirectParams, dst: &WebGpuStorage| {
        let bindings = [bind(conv.src), bind(conv.kernel), bind(dst)];
        device.run(kernel, &bindings, params, grid)
    };
    if c_in * taps(g) > MOST_TAPS {
        // More terms than an invocation may add: some channels and taps at a time, in the dtype of sums.
        drop(dst);
        let sums_dtype = accumulator(to);
        let kernel = ConvDirect {
            out: device.elem(sums_dtype, g.op)?,
            staged: false,
            kernel: [0; 2],
            ..convolution
        };
        let all = Layout::contiguous(planes * o_h * o_w);
        let mut sums: Option<WebGpuStorage> = None;
        for [rows, cols] in window_parts(g.kernel, MOST_TAPS) {
            for channels in ranges(c_in, MOST_TAPS / (rows.len() * cols.len())) {
                let part = device.alloc(planes * o_h * o_w, sums_dtype, g.op)?;
                launch(
                    &kernel,
                    &params.part(&channels, [&rows, &cols], transposed)?,
                    &part,
                )?;
                sums = Some(match sums {
                    Some(sums) => binary(&sums, &part, &all, &all, "add")?,
                    None => part,
                });
            }
        }
        let sums = match sums {
            Some(sums) => sums,
            None => device.alloc(0, sums_dtype, g.op)?,
        };
        return if to == sums_dtype {
            Ok(sums)
        } else {
            to_dtype(&sums, &all, to)
        };
    }
    launch(&convolution, &params, &dst)?;
    if packs {
        Ok(dst)
    } else {
        to_dtype(&dst, &Layout::contiguous(dst.len()), to)
    }
}

/// Bytes of a number in the dtype's arithmetic.
fn scalar_bytes(elem: Elem) -> usize {
    match elem.word_bytes() {
        8 => 8,
        _ => 4,
    }
}

impl Kernel for ConvDirect {
    type Params = DirectParams;

    fn shader(&self, _: &Caps) -> Shader {
        let staged = if self.staged {
            STAGED_BYTES / scalar_bytes(self.elem)
        } else {
            1
        };
        Shader::default()
            .input("src", self.elem)
            .input("kernel", self.elem)
            .output("dst", self.out)
            .text(functions(self.elem))
            .text(multiply_add(self.elem))
            .constant("WG", WORKGROUP as u32)
            .constant("STRIP", self.strip as u32)
            .constant("TRANSPOSED", self.transposed)
            .constant("SLIDE", self.slide)
            .constant("STAGED", self.staged)
            .constant("STAGED_LEN", staged as u32)
            .constant("KERNEL_H", self.kernel[0] as u32)
            .constant("KERNEL_W", self.kernel[1] as u32)
            .body::<DirectParams>(include_str!("../../shaders/conv_direct.wgsl"))
    }
}

/// `multiply_add(a, b, sum)` in the arithmetic of a dtype.
fn multiply_add(elem: Elem) -> &'static str {
    if elem.computes_in_f32() {
        "fn multiply_add(a: f32, b: f32, sum: f32) -> f32 { return fma(a, b, sum); }"
    } else {
        "fn multiply_add(a: src_t, b: src_t, sum: src_t) -> src_t { return f_add(sum, f_mul(a, b)); }"
    }
}

#[cfg(test)]
mod tests {
    use super::{ConvDirect, STRIP};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_form_is_valid_wgsl() {
        for elem in Elem::ALL {
            for strip in [elem.lanes() as usize, STRIP] {
                for flags in 0..16 {
                    let [transposed, slide, staged, sized] =
                        std::array::from_fn(|bit| flags >> bit & 1 == 1);
                    assert_valid(&ConvDirect {
                        elem,
                        out: elem,
                        strip,
                        transposed,
                        slide,
                        staged,
                        kernel: if sized { [3, 1] } else { [0; 2] },
                    });
                }
            }
        }
    }
}
