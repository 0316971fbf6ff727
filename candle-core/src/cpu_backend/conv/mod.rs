//! Convolutions, plain and transposed. One dimension is two with a height of 1.

use super::element::{Accumulator, Element};
use super::planes::{zeros, Planes};
use super::storage::{peer, per_dtype};
use super::CpuStorage;
use crate::conv::{
    ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D, Steps,
};
use crate::{Layout, Result, WithDType};

/// Sizes and steps of a convolution, `[height, width]` where there are two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    b: usize,
    groups: usize,
    /// Channels of all groups.
    c_in: usize,
    c_out: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    output: [usize; 2],
    steps: [Steps; 2],
    op: &'static str,
}

/// The steps along the height of something that has none.
const STILL: Steps = Steps {
    padding: 0,
    stride: 1,
    dilation: 1,
};

fn size(op: &'static str, size: std::result::Result<usize, &'static str>) -> Result<usize> {
    size.map_err(|msg| crate::Error::Msg(format!("{op}: {msg}")).bt())
}

impl Geometry {
    pub fn conv1d(p: &ParamsConv1D) -> Result<Self> {
        let op = "conv1d";
        let steps = Steps {
            padding: p.padding,
            stride: p.stride,
            dilation: p.dilation,
        };
        Ok(Self {
            b: p.b_size,
            groups: p.groups,
            c_in: p.c_in,
            c_out: p.c_out,
            input: [1, p.l_in],
            kernel: [1, p.k_size],
            output: [1, size(op, steps.conv_size(p.l_in, p.k_size))?],
            steps: [STILL, steps],
            op,
        })
    }

    pub fn conv2d(p: &ParamsConv2D) -> Result<Self> {
        let op = "conv2d";
        let steps = Steps {
            padding: p.padding,
            stride: p.stride,
            dilation: p.dilation,
        };
        Ok(Self {
            b: p.b_size,
            groups: p.groups,
            c_in: p.c_in,
            c_out: p.c_out,
            input: [p.i_h, p.i_w],
            kernel: [p.k_h, p.k_w],
            output: [
                size(op, steps.conv_size(p.i_h, p.k_h))?,
                size(op, steps.conv_size(p.i_w, p.k_w))?,
            ],
            steps: [steps, steps],
            op,
        })
    }

    pub fn conv_transpose1d(p: &ParamsConvTranspose1D) -> Result<Self> {
        let op = "conv_transpose1d";
        let steps = Steps {
            padding: p.padding,
            stride: p.stride,
            dilation: p.dilation,
        };
        let length = steps.transposed_size(p.l_in, p.k_size, p.output_padding);
        Ok(Self {
            b: p.b_size,
            groups: p.groups,
            c_in: p.c_in,
            c_out: p.c_out,
            input: [1, p.l_in],
            kernel: [1, p.k_size],
            output: [1, size(op, length)?],
            steps: [STILL, steps],
            op,
        })
    }

    pub fn conv_transpose2d(p: &ParamsConvTranspose2D) -> Result<Self> {
        let op = "conv_transpose2d";
        let steps = Steps {
            padding: p.padding,
            stride: p.stride,
            dilation: p.dilation,
        };
        let out = |length, k| size(op, steps.transposed_size(length, k, p.output_padding));
        Ok(Self {
            b: p.b_size,
            groups: 1,
            c_in: p.c_in,
            c_out: p.c_out,
            input: [p.i_h, p.i_w],
            kernel: [p.k_h, p.k_w],
            output: [out(p.i_h, p.k_h)?, out(p.i_w, p.k_w)?],
            steps: [steps, steps],
            op,
        })
    }
}

/// A convolution.
pub(super) fn conv(
    inp: &CpuStorage,
    inp_l: &Layout,
    kernel: &CpuStorage,
    kernel_l: &Layout,
    geometry: Geometry,
) -> Result<CpuStorage> {
    per_dtype!(inp, geometry.op, |inp: T| {
        let kernel = peer::<T>(kernel, geometry.op)?;
        let dst = plain(inp, inp_l, kernel, kernel_l, geometry, false)?;
        Ok(T::to_cpu_storage_owned(dst))
    })
}

/// A transposed convolution.
pub(super) fn conv_transpose(
    inp: &CpuStorage,
    inp_l: &Layout,
    kernel: &CpuStorage,
    kernel_l: &Layout,
    geometry: Geometry,
) -> Result<CpuStorage> {
    per_dtype!(inp, geometry.op, |inp: T| {
        let kernel = peer::<T>(kernel, geometry.op)?;
        let dst = plain(inp, inp_l, kernel, kernel_l, geometry, true)?;
        Ok(T::to_cpu_storage_owned(dst))
    })
}

fn plain<T: Element>(
    inp: &[T],
    inp_l: &Layout,
    kernel: &[T],
    kernel_l: &Layout,
    g: Geometry,
    transposed: bool,
) -> Result<Vec<T>> {
    let (ip, kp) = (
        Planes::new(inp_l, inp.len(), g.op)?,
        Planes::new(kernel_l, kernel.len(), g.op)?,
    );
    let [h_out, w_out] = g.output;
    let (gi, go) = (g.c_in / g.groups, g.c_out / g.groups);
    let mut dst = zeros::<T>(&[g.b, g.c_out, h_out, w_out], g.op)?;
    let mut acc = vec![T::Acc::ZERO; dst.len()];
    let plane = h_out * w_out;
    for b in 0..g.b {
        for co in 0..g.c_out {
            let acc = &mut acc[(b * g.c_out + co) * plane..][..plane];
            let group = co / go;
            for ci in 0..gi {
                let src = ip.start(b * g.c_in + group * gi + ci);
                let k = match transposed {
                    false => kp.start(co * gi + ci),
                    true => kp.start((group * gi + ci) * go + co % go),
                };
                // The smaller side of the relation `large = small * stride + k * dilation - padding`.
                let small = if transposed { g.input } else { g.output };
                let large = if transposed { g.output } else { g.input };
                for y in 0..small[0] {
                    for x in 0..small[1] {
                        for ky in 0..g.kernel[0] {
                            for kx in 0..g.kernel[1] {
                                let at = |d: usize, i: usize, k: usize| {
                                    let s = g.steps[d];
                                    (i * s.stride + k * s.dilation)
                                        .checked_sub(s.padding)
                                        .filter(|&v| v < large[d])
                                };
                                let (Some(ly), Some(lx)) = (at(0, y, ky), at(1, x, kx)) else {
                                    continue;
                                };
                                let (iy, ix, oy, ox) = if transposed {
                                    (y, x, ly, lx)
                                } else {
                                    (ly, lx, y, x)
                                };
                                let v = inp[src + iy * ip.strides[2] + ix * ip.strides[3]].to_acc();
                                let w =
                                    kernel[k + ky * kp.strides[2] + kx * kp.strides[3]].to_acc();
                                let dst = &mut acc[oy * w_out + ox];
                                *dst = dst.add(v.mul(w));
                            }
                        }
                    }
                }
            }
        }
    }
    for (dst, acc) in dst.iter_mut().zip(acc) {
        *dst = T::from_acc(acc);
    }
    Ok(dst)
}
