//! A convolution as passes in which taps read elements with a constant stride: a plain one is one pass; a transposed one of stride s is s
//! passes along each axis, each with the taps that reach its share of the result.

use crate::conv::Geometry;

/// Maximum size and offset for the kernel's 32-bit integers, with room to add a few.
const REACH: usize = 1 << 28;

/// A pass along one axis: element `q` of `count` reads the elements `q * step + tap * reach + base`, and is written at `q * apart + first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AxisPass {
    pub(super) count: usize,
    pub(super) step: usize,
    pub(super) reach: i64,
    pub(super) base: i64,
    pub(super) first: usize,
    pub(super) apart: usize,
    /// Number of taps, the first of them in the kernel, and their stride there.
    pub(super) taps: usize,
    pub(super) first_tap: usize,
    pub(super) tap_step: usize,
}

/// The passes along an axis, or `None` if there are more than `most` or offsets are too large.
pub(super) fn along(g: &Geometry, d: usize, most: usize) -> Option<Vec<AxisPass>> {
    let s = g.steps[d];
    let (kernel, output) = (g.kernel[d], g.output[d]);
    let span = kernel.checked_mul(s.dilation)?;
    let far = output.checked_mul(s.stride)?;
    if [span, far, s.padding, g.input[d]]
        .iter()
        .any(|n| *n > REACH)
    {
        return None;
    }
    if !g.transposed {
        return Some(vec![AxisPass {
            count: output,
            step: s.stride,
            reach: s.dilation as i64,
            base: -(s.padding as i64),
            first: 0,
            apart: 1,
            taps: kernel,
            first_tap: 0,
            tap_step: 1,
        }]);
    }
    let shares = s.stride.min(output);
    if shares > most {
        return None;
    }
    let common = gcd(s.stride, s.dilation);
    let tap_step = s.stride / common;
    let pass = |first: usize| {
        let at = |tap: usize| first as i64 + s.padding as i64 - (tap * s.dilation) as i64;
        let stride = s.stride as i64;
        let first_tap = (0..kernel.min(tap_step)).find(|tap| at(*tap).rem_euclid(stride) == 0);
        let (taps, base) = match first_tap {
            Some(tap) => ((kernel - tap).div_ceil(tap_step), at(tap) / stride),
            // No tap reaches these elements; a tap that reads nothing sets them to zero.
            None => (1, -(2 * REACH as i64)),
        };
        AxisPass {
            count: (output - first).div_ceil(s.stride),
            step: 1,
            reach: -((s.dilation / common) as i64),
            base,
            first,
            apart: s.stride,
            taps,
            first_tap: first_tap.unwrap_or(0),
            tap_step,
        }
    };
    Some((0..shares).map(pass).collect())
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::along;
    use crate::conv::{Geometry, ParamsConvTranspose1D};

    /// Every pair of an element of the result and a tap that meet is in exactly one pass, with the element of the input from the
    /// definition.
    #[test]
    fn passes_are_the_definition() {
        for (stride, dilation, padding, k_size) in [
            (1, 1, 0, 3),
            (2, 1, 1, 4),
            (3, 2, 2, 3),
            (4, 6, 1, 5),
            (5, 1, 0, 2),
            (2, 2, 3, 3),
        ] {
            let g = Geometry::conv_transpose1d(&ParamsConvTranspose1D {
                b_size: 1,
                l_in: 9,
                c_out: 1,
                c_in: 1,
                k_size,
                padding,
                output_padding: 0,
                stride,
                dilation,
                groups: 1,
            })
            .unwrap();
            let mut found = vec![];
            for pass in along(&g, 1, 8).unwrap() {
                for q in 0..pass.count {
                    for tap in 0..pass.taps {
                        let read = (q * pass.step) as i64 + tap as i64 * pass.reach + pass.base;
                        if (0..9).contains(&read) {
                            let to = q * pass.apart + pass.first;
                            found.push((to, pass.first_tap + tap * pass.tap_step, read));
                        }
                    }
                }
            }
            let mut expected = vec![];
            for read in 0..9i64 {
                for tap in 0..k_size {
                    let to = read * stride as i64 + (tap * dilation) as i64 - padding as i64;
                    if (0..g.output[1] as i64).contains(&to) {
                        expected.push((to as usize, tap, read));
                    }
                }
            }
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "stride {stride}, dilation {dilation}");
        }
    }
}
