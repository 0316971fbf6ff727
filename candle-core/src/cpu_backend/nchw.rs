//! Strided `(batch, channels, height, width)` tensors, for convolution, pooling and resampling. Results are written row by row on
//! several threads.

use float8::F8E4M3;
use half::{bf16, f16};

use super::element::Element;
use super::strided_iter::PAR_MIN;
use crate::cpu::threads;
use crate::{Error, Layout, Result};

/// An input `(batch, channels, height, width)`; an input of three dimensions has height 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct NchwView {
    pub dims: [usize; 4],
    pub strides: [usize; 4],
    pub offset: usize,
}

impl NchwView {
    /// The layout of a storage of `len` elements.
    ///
    /// # Errors
    /// A layout with a rank other than three or four, or one that exceeds the storage.
    pub fn new(layout: &Layout, len: usize, op: &'static str) -> Result<Self> {
        let four = |v: &[usize], height: usize| match *v {
            [b, c, h, w] => Some([b, c, h, w]),
            [b, c, l] => Some([b, c, height, l]),
            _ => None,
        };
        let (Some(dims), Some(strides)) = (four(layout.dims(), 1), four(layout.stride(), 0)) else {
            return Err(Error::UnexpectedNumberOfDims {
                expected: 4,
                got: layout.dims().len(),
                shape: layout.shape().clone(),
            }
            .context(op)
            .bt());
        };
        let planes = Self {
            dims,
            strides,
            offset: layout.start_offset(),
        };
        if !dims.contains(&0) {
            let reach = dims
                .iter()
                .zip(strides)
                .try_fold(planes.offset, |at, (dim, stride)| {
                    at.checked_add((dim - 1).checked_mul(stride)?)
                });
            if reach.is_none_or(|last| last >= len) {
                crate::bail!("{op}: {layout:?} reaches past its storage of {len} elements")
            }
        }
        Ok(planes)
    }

    /// Whether the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut next = 1;
        self.dims
            .iter()
            .zip(self.strides)
            .rev()
            .all(|(&dim, stride)| {
                let fits = dim == 1 || stride == next;
                next *= dim;
                fits
            })
    }

    /// Offset of a plane's first element.
    pub fn start(&self, plane: usize) -> usize {
        let (b, c) = (plane / self.dims[1], plane % self.dims[1]);
        self.offset + b * self.strides[0] + c * self.strides[1]
    }
}

/// The number of elements of a result.
///
/// # Errors
/// If the memory cannot be allocated: a small input with a large target size can request any amount.
pub(super) fn checked_count<T>(dims: &[usize], op: &'static str) -> Result<usize> {
    const LARGE: usize = 1 << 28;
    let len = dims.iter().try_fold(1usize, |len, &d| len.checked_mul(d));
    let fits = |len: &usize| *len < LARGE || Vec::<T>::new().try_reserve_exact(*len).is_ok();
    match len.filter(fits) {
        Some(len) => Ok(len),
        None => crate::bail!("{op}: cannot allocate a result of shape {dims:?}"),
    }
}

/// A zeroed vector for a result; fails as [`checked_count`].
pub(super) fn zeros<T: Element>(dims: &[usize], op: &'static str) -> Result<Vec<T>> {
    Ok(vec![T::from_i64(0); checked_count::<T>(dims, op)?])
}

/// Calls `f` to fill each row of `width` elements, on several threads if that is faster; `f` receives the row's index. `cost` is the work
/// per element, in elements read.
pub(super) fn fill_rows<T: Send>(
    dst: &mut [T],
    width: usize,
    cost: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    if dst.is_empty() {
        return;
    }
    let rows = dst.len() / width;
    let work = |rows: usize| rows.saturating_mul(width).saturating_mul(cost.max(1));
    let threads = if work(rows) < PAR_MIN {
        1
    } else {
        threads::count()
    };
    if threads == 1 {
        return dst
            .chunks_mut(width)
            .enumerate()
            .for_each(|(i, row)| f(i, row));
    }
    let row_work = work(1);
    let piece = rows
        .div_ceil(4 * threads)
        .max((PAR_MIN / 4).div_ceil(row_work));
    threads::chunks_mut(dst, piece.saturating_mul(width), |i, rows| {
        for (r, row) in rows.chunks_mut(width).enumerate() {
            f(i * piece + r, row);
        }
    });
}

/// An element that can be averaged and interpolated.
pub(super) trait Pixel: Element {
    /// The type of sums of elements: i64 for integers, so that sums of small ones do not wrap.
    type Sum: Copy;
    /// The type of weighted sums: f64 for integers, rounded towards 0.
    type Weight: num_traits::Float + Send + Sync;

    const NO_SUM: Self::Sum;
    fn add_to(v: Self::Acc, sum: Self::Sum) -> Self::Sum;
    fn mean(sum: Self::Sum, count: usize) -> Self::Acc;
    fn to_weight(self) -> Self::Weight;
    fn from_weight(v: Self::Weight) -> Self;
    fn weight(v: f64) -> Self::Weight;
}

macro_rules! int_pixels {
    ($($ty:ty),+) => {$(
        impl Pixel for $ty {
            type Sum = i64;
            type Weight = f64;

            const NO_SUM: i64 = 0;

            #[inline(always)]
            fn add_to(v: Self, sum: i64) -> i64 {
                sum.wrapping_add(v as i64)
            }

            #[inline(always)]
            fn mean(sum: i64, count: usize) -> Self {
                // A window cannot have more elements than there are bytes of memory.
                (sum / count as i64) as Self
            }

            #[inline(always)]
            fn to_weight(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn from_weight(v: f64) -> Self {
                v as Self
            }

            #[inline(always)]
            fn weight(v: f64) -> f64 {
                v
            }
        }
    )+};
}

macro_rules! float_pixels {
    ($($ty:ty, $acc:ty;)+) => {$(
        impl Pixel for $ty {
            type Sum = $acc;
            type Weight = $acc;

            const NO_SUM: $acc = 0.;

            #[inline(always)]
            fn add_to(v: $acc, sum: $acc) -> $acc {
                sum + v
            }

            #[inline(always)]
            fn mean(sum: $acc, count: usize) -> $acc {
                sum / count as $acc
            }

            #[inline(always)]
            fn to_weight(self) -> $acc {
                self.to_acc()
            }

            #[inline(always)]
            fn from_weight(v: $acc) -> Self {
                Self::from_acc(v)
            }

            #[inline(always)]
            fn weight(v: f64) -> $acc {
                v as $acc
            }
        }
    )+};
}

int_pixels!(u8, u32, i16, i32, i64);
float_pixels! {
    f16, f32;
    bf16, f32;
    F8E4M3, f32;
    f32, f32;
    f64, f64;
}
