//! Convolutions in which few kernel positions overlap the input: paddings, strides or dilations far larger than the
//! input. Nothing is copied; each kernel position looks up its input element.

use super::super::element::{Accumulator, Element};
use super::super::nchw::fill_rows;
use super::{Geometry, NchwSlice};

/// Fills `dst`, `(batch, c_out, rows, columns)`.
pub(super) fn run<T: Element>(
    (inp, inp_p): NchwSlice<T>,
    (kernel, kernel_p): NchwSlice<T>,
    g: Geometry,
    dst: &mut [T],
) {
    let (group_c_in, group_c_out) = g.group_channels();
    let row_len = g.output[1];
    // For each output along a dimension, the taps that read an element, and its index.
    let meets = |d: usize, o: usize| {
        let steps = g.steps[d];
        (0..g.kernel[d]).filter_map(move |k| {
            let i = if g.transposed {
                let at = (o + steps.padding).checked_sub(k * steps.dilation)?;
                at.is_multiple_of(steps.stride)
                    .then_some(at / steps.stride)?
            } else {
                (o * steps.stride + k * steps.dilation).checked_sub(steps.padding)?
            };
            (i < g.input[d]).then_some((k, i))
        })
    };
    let cost = group_c_in * g.kernel[0] * g.kernel[1];
    fill_rows(dst, row_len, cost, |row, dst| {
        let (plane, y) = (row / g.output[0], row % g.output[0]);
        let (b, out) = (plane / g.c_out, plane % g.c_out);
        let group = out / group_c_out;
        for (x, dst) in dst.iter_mut().enumerate() {
            let mut sum = T::Acc::ZERO;
            for c in 0..group_c_in {
                let channel = group * group_c_in + c;
                let src = inp_p.start(b * g.c_in + channel);
                let weights = if g.transposed {
                    kernel_p.start(channel * group_c_out + out % group_c_out)
                } else {
                    kernel_p.start(out * group_c_in + c)
                };
                for (k_y, y) in meets(0, y) {
                    for (k_x, x) in meets(1, x) {
                        let v = inp[src + y * inp_p.strides[2] + x * inp_p.strides[3]];
                        let at = k_y * kernel_p.strides[2] + k_x * kernel_p.strides[3];
                        sum = sum.add(v.to_acc().mul(kernel[weights + at].to_acc()));
                    }
                }
            }
            *dst = T::from_acc(sum);
        }
    });
}
