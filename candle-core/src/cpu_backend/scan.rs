//! Running sums.

use super::element::{Accumulator, Element};
use super::nchw::fill_rows;
use super::storage::per_dtype;
use super::strided_iter::StridedIter;
use super::CpuStorage;
use crate::{Layout, Result, WithDType};

/// The running sum of each row of the last dimension, contiguous. Each element is rounded once, from the accumulator type.
///
/// # Errors
/// A dtype without arithmetic.
pub(crate) fn cumsum(vs: &CpuStorage, layout: &Layout, op: &'static str) -> Result<CpuStorage> {
    per_dtype!(vs, op, |vs: T| Ok(T::to_cpu_storage_owned(rows::<T>(
        vs, layout
    ))))
}

fn rows<T: Element>(vs: &[T], layout: &Layout) -> Vec<T> {
    let len = layout.dims().last().copied().unwrap_or(1);
    let iter = StridedIter::of([layout]);
    let [stride] = iter.strides();
    let mut dst = vec![T::zero(); iter.len()];
    fill_rows(&mut dst, len, 1, |row, dst| {
        let mut sum: Option<T::Acc> = None;
        let mut dst = dst.iter_mut();
        iter.for_runs(row * len..(row + 1) * len, |run, [start]| {
            for (i, dst) in (0..run.len()).zip(&mut dst) {
                let v = vs[start + i * stride].to_acc();
                let next = sum.map_or(v, |sum| sum.add(v));
                *dst = T::from_acc(next);
                sum = Some(next);
            }
        });
    });
    dst
}
