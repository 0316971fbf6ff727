//! Pooling: the mean or the greatest element of windows.

use super::planes::{fill_rows, zeros, Pixel, Planes};
use super::storage::per_dtype;
use super::CpuStorage;
use crate::{Layout, Result, WithDType};

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
    fill_rows(&mut dst, w_out, kernel.0 * kernel.1, |row, dst| {
        let first_row = planes.start(row / h_out) + row % h_out * stride.0 * row_stride;
        for (x, dst) in dst.iter_mut().enumerate() {
            let first = first_row + x * stride.1 * step;
            let mut state = start(vs[first]);
            for y in 0..kernel.0 {
                let row = first + y * row_stride;
                if step == 1 {
                    for &v in &vs[row..row + kernel.1] {
                        state = push(state, v);
                    }
                } else {
                    for x in 0..kernel.1 {
                        state = push(state, vs[row + x * step]);
                    }
                }
            }
            *dst = finish(state);
        }
    });
    Ok(dst)
}
