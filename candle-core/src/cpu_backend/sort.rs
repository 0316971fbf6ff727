//! Sorting of rows: elements are mapped to integers of the same order, which are sorted together with their indexes.

use half::{bf16, f16};
use rayon::prelude::*;

use super::nchw::fill_rows;
use super::storage::per_dtype;
use super::strided_iter::{StridedIter, PAR_MIN};
use super::CpuStorage;
use crate::{Layout, Result, WithDType};

/// The indexes that sort each row of the last dimension, as u32. Equal elements keep their order; NaN is greater than all
/// numbers, and the two zeros are equal.
///
/// # Errors
/// A scalar; rows whose indexes do not fit in u32; a dtype without arithmetic.
pub(crate) fn arg_sort(
    vs: &CpuStorage,
    layout: &Layout,
    asc: bool,
    op: &'static str,
) -> Result<CpuStorage> {
    let Some((&len, _)) = layout.dims().split_last() else {
        crate::bail!("{op}: a scalar has no dimension to sort")
    };
    if u32::try_from(len).is_err() {
        crate::bail!(
            "{op}: rows of {len} elements exceed the limit of u32 indexes, {}",
            u32::MAX
        )
    }
    per_dtype!(vs, op, |vs: T| Ok(CpuStorage::U32(arg_sort_rows(
        vs, layout, len, asc
    ))))
}

fn arg_sort_rows<T: SortKey>(vs: &[T], layout: &Layout, len: usize, asc: bool) -> Vec<u32> {
    let iter = StridedIter::of([layout]);
    let [stride] = iter.strides();
    let mut dst = vec![0u32; iter.len()];
    let cost = 2 * (usize::BITS - len.leading_zeros()) as usize;
    fill_rows(&mut dst, len, cost, |row, dst| {
        let mut elements = Vec::with_capacity(len);
        iter.for_runs(row * len..(row + 1) * len, |run, [start]| {
            elements.extend((0..run.len()).map(|i| vs[start + i * stride].key()));
        });
        // For descending order the keys are complemented, so that equal elements keep their order there too.
        let keys = elements.into_iter().enumerate();
        if T::WIDE {
            let key = |key: u64| if asc { key } else { !key };
            let keys = keys.map(|(i, k)| (key(k), i as u32)).collect();
            sort_into(keys, dst, |(_, i)| i);
        } else {
            let key = |key: u64| if asc { key } else { key ^ u64::from(u32::MAX) };
            let keys = keys.map(|(i, k)| key(k) << 32 | i as u64).collect();
            sort_into(keys, dst, |packed: u64| packed as u32);
        }
    });
    dst
}

/// Sorts keys that contain their index, and are therefore distinct, and writes the indexes.
fn sort_into<K: Ord + Copy + Send>(mut keys: Vec<K>, dst: &mut [u32], index: impl Fn(K) -> u32) {
    if keys.len() >= PAR_MIN {
        keys.par_sort_unstable();
    } else {
        keys.sort_unstable();
    }
    for (dst, key) in dst.iter_mut().zip(keys) {
        *dst = index(key);
    }
}

/// An element as an integer of the same order.
trait SortKey: WithDType {
    /// Whether keys need more than 32 bits.
    const WIDE: bool;

    fn key(self) -> u64;
}

macro_rules! sort_keys {
    ($($ty:ty, $wide:literal, |$v:ident| $key:expr;)+) => {$(
        impl SortKey for $ty {
            const WIDE: bool = $wide;

            #[inline(always)]
            fn key(self) -> u64 {
                let $v = self;
                $key
            }
        }
    )+};
}

sort_keys! {
    u8, false, |v| u64::from(v);
    u32, false, |v| u64::from(v);
    i16, false, |v| i32_key(v.into());
    i32, false, |v| i32_key(v);
    i64, true, |v| v as u64 ^ 1 << 63;
    f16, false, |v| f32_key(v.to_f32());
    bf16, false, |v| f32_key(v.to_f32());
    float8::F8E4M3, false, |v| f32_key(v.to_f32());
    f32, false, |v| f32_key(v);
    f64, true, |v| f64_key(v);
}

fn i32_key(v: i32) -> u64 {
    (v as u32 ^ 1 << 31).into()
}

/// The key of an f32: inverts all bits of a negative number, since a greater magnitude is less, and the sign bit of others.
fn f32_key(v: f32) -> u64 {
    if v.is_nan() {
        return u32::MAX.into();
    }
    // Adding 0 makes the negative zero positive.
    let bits = (v + 0.).to_bits();
    (bits ^ ((bits as i32 >> 31) as u32 | 1 << 31)).into()
}

fn f64_key(v: f64) -> u64 {
    if v.is_nan() {
        return u64::MAX;
    }
    let bits = (v + 0.).to_bits();
    bits ^ ((bits as i64 >> 63) as u64 | 1 << 63)
}
