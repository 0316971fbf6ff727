//! Pooling: the mean or the greatest element of windows.

use super::planes::{fill_rows, zeros, Pixel, Planes};
use super::storage::per_dtype;
use super::CpuStorage;
use crate::{Layout, Result, WithDType};

/// Windows that are folded together.
const WINDOWS: usize = 64;

/// Windows of `kernel` elements, `stride` apart; `(height, width)` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    pub kernel: (usize, usize),
    pub stride: (usize, usize),
}

/// The mean of each window.
pub(super) fn avg_pool2d(vs: &CpuStorage, layout: &Layout, windows: Windows) -> Result<CpuStorage> {
    const OP: &str = "avg_pool2d";
    let (k_h, k_w) = windows.kernel;
    per_dtype!(vs, OP, |vs: T| {
        let mean = |sum: <T as Pixel>::Sum| T::mean(sum, k_h * k_w);
        let add = |sum: <T as Pixel>::Sum, v: T| v.add_to(sum);
        let dst = pool(vs, layout, windows, OP, |_| <T as Pixel>::NO_SUM, add, mean)?;
        Ok(T::to_cpu_storage_owned(dst))
    })
}

/// The greatest element of each window; a NaN counts as such.
pub(super) fn max_pool2d(vs: &CpuStorage, layout: &Layout, windows: Windows) -> Result<CpuStorage> {
    const OP: &str = "max_pool2d";
    per_dtype!(vs, OP, |vs: T| {
        #[allow(clippy::eq_op, reason = "NaN is unequal to itself")]
        let greater = |max: T, v: T| if v > max || v != v { v } else { max };
        let dst = pool(vs, layout, windows, OP, |first| first, greater, |max| max)?;
        Ok(T::to_cpu_storage_owned(dst))
    })
}

/// Folds each window: `start` makes the fold's state from the first element, which `push` then sees as well.
fn pool<T: Pixel, S: Copy>(
    vs: &[T],
    layout: &Layout,
    Windows { kernel, stride }: Windows,
    op: &'static str,
    start: impl Fn(T) -> S + Sync,
    push: impl Fn(S, T) -> S + Sync,
    finish: impl Fn(S) -> T + Sync,
) -> Result<Vec<T>> {
    let planes = Planes::new(layout, vs.len(), op)?;
    let [b, c, h, w] = planes.dims;
    let h_out = (h - kernel.0) / stride.0 + 1;
    let w_out = (w - kernel.1) / stride.1 + 1;
    let mut dst = zeros(&[b, c, h_out, w_out], op)?;
    let [_, _, row_stride, step] = planes.strides;
    let next = stride.1.saturating_mul(step);
    fill_rows(&mut dst, w_out, kernel.0 * kernel.1, |row, dst| {
        let first_row = planes.start(row / h_out) + row % h_out * stride.0 * row_stride;
        for (i, dst) in dst.chunks_mut(WINDOWS).enumerate() {
            let first = first_row + i * WINDOWS * next;
            let mut states = [start(vs[first]); WINDOWS];
            let states = &mut states[..dst.len()];
            every(&vs[first..], next, states, |_, v| start(v));
            for y in 0..kernel.0 {
                for x in 0..kernel.1 {
                    every(
                        &vs[first + y * row_stride + x * step..],
                        next,
                        states,
                        &push,
                    );
                }
            }
            for (dst, &state) in dst.iter_mut().zip(&*states) {
                *dst = finish(state);
            }
        }
    });
    Ok(dst)
}

/// `states[i] = f(states[i], vs[i * step])`.
#[inline(always)]
fn every<T: Copy, S: Copy>(vs: &[T], step: usize, states: &mut [S], f: impl Fn(S, T) -> S) {
    match step {
        1 => {
            for (state, &v) in states.iter_mut().zip(vs) {
                *state = f(*state, v);
            }
        }
        // Known steps are what the compiler can vectorise.
        2 => {
            for (state, vs) in states.iter_mut().zip(vs.chunks(2)) {
                *state = f(*state, vs[0]);
            }
        }
        step => {
            for (i, state) in states.iter_mut().enumerate() {
                *state = f(*state, vs[i * step]);
            }
        }
    }
}
