//! Shared by the CPU kernels of fused ops: strided tensors as rows, 16-bit floats computed in f32, rows split over
//! threads.

use candle_core::cpu::{erf, slices, threads};
use candle_core::cpu_backend::unary_map_vec_par;
use candle_core::{backend::BackendStorage, CpuStorage, Error, Layout, Result, WithDType};
use half::{bf16, f16};
use num_traits::Zero;

/// Below this many elementary steps a task is not worth handing to another thread.
const TASK_STEPS: usize = 16 * 1024;

/// Elements that are widened at a time, on the stack.
const CHUNK: usize = 256;

/// A float as it is stored, and the float it is computed in: f64 for f64, f32 for everything smaller.
pub(crate) trait Float: WithDType {
    type Acc: Acc;

    /// The stored value of a result, rounded. (Not called `round`, which on f32 would be the inherent method.)
    fn narrow(acc: Self::Acc) -> Self;

    /// The value to compute with.
    fn widen(self) -> Self::Acc;

    /// `src` in the dtype of the computation: `src` itself, or its conversion in `scratch` (of the same length).
    fn widen_row<'a>(src: &'a [Self], scratch: &'a mut [Self::Acc]) -> &'a [Self::Acc];

    /// Lets `f` write a row of results to `dst`, directly or through `scratch` (of the same length).
    fn write_row(dst: &mut [Self], scratch: &mut [Self::Acc], f: impl FnOnce(&mut [Self::Acc]));
}

/// The float of a computation, with loops over rows of it.
pub(crate) trait Acc: Float<Acc = Self> + num_traits::Float + num_traits::NumAssign {
    /// The dot product of two rows.
    fn dot(lhs: &[Self], rhs: &[Self]) -> Self {
        lanes(lhs.len(), |i| lhs[i] * rhs[i])
    }

    /// The elements of a storage of this dtype.
    fn slice_mut(storage: &mut CpuStorage) -> Result<&mut [Self]>;

    /// The sum of a row.
    fn sum(row: &[Self]) -> Self {
        lanes(row.len(), |i| row[i])
    }

    /// The largest element; NaN is skipped here and shows up in the sum that follows.
    fn greatest(row: &[Self]) -> Self {
        row.iter().fold(
            Self::neg_infinity(),
            |max, &x| if x > max { x } else { max },
        )
    }

    /// `dst = exp(row - shift)`
    fn exp_less(shift: Self, row: &[Self], dst: &mut [Self]) {
        for (dst, &x) in dst.iter_mut().zip(row) {
            *dst = (x - shift).exp();
        }
    }

    /// `dst += row * by`
    fn add_scaled(by: Self, row: &[Self], dst: &mut [Self]) {
        for (dst, &x) in dst.iter_mut().zip(row) {
            *dst += x * by;
        }
    }

    /// `row = cap * tanh(row / cap)`
    fn soft_cap(cap: Self, row: &mut [Self]) {
        for x in row {
            *x = (*x / cap).tanh() * cap;
        }
    }

    /// `dst = 1 / (1 + exp(-row))`
    fn sigmoid(row: &[Self], dst: &mut [Self]) {
        for (dst, &x) in dst.iter_mut().zip(row) {
            *dst = (Self::one() + (-x).exp()).recip();
        }
    }

    /// `dst = row * Φ(row)`, Φ being the distribution function of the normal distribution.
    fn gelu_erf(row: &[Self], dst: &mut [Self]);

    /// The same in its tanh approximation.
    fn gelu_tanh(row: &[Self], dst: &mut [Self]);
}

/// In eight partial sums, so that the compiler can vectorise: it may not reorder float additions.
fn lanes<A: num_traits::Float + num_traits::NumAssign>(
    len: usize,
    value: impl Fn(usize) -> A,
) -> A {
    let mut lanes = [A::zero(); 8];
    let whole = len - len % 8;
    for start in (0..whole).step_by(8) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += value(start + i);
        }
    }
    let rest = (whole..len).fold(A::zero(), |sum, i| sum + value(i));
    lanes.into_iter().fold(rest, |sum, lane| sum + lane)
}

fn of_other_dtype<T: WithDType>(storage: &CpuStorage) -> Error {
    Error::UnexpectedDType {
        msg: "a CPU kernel's storage",
        expected: T::DTYPE,
        got: storage.dtype(),
    }
    .bt()
}

impl Acc for f64 {
    fn slice_mut(storage: &mut CpuStorage) -> Result<&mut [f64]> {
        match storage {
            CpuStorage::F64(values) => Ok(values),
            other => Err(of_other_dtype::<f64>(other)),
        }
    }

    fn gelu_erf(row: &[f64], dst: &mut [f64]) {
        for (dst, &x) in dst.iter_mut().zip(row) {
            *dst = 0.5 * x * erf::erfc_f64(-x * std::f64::consts::FRAC_1_SQRT_2);
        }
    }

    fn gelu_tanh(row: &[f64], dst: &mut [f64]) {
        // As x * sigmoid(2 u), which does not cancel for negative x.
        let scale = (8. / std::f64::consts::PI).sqrt();
        for (dst, &x) in dst.iter_mut().zip(row) {
            *dst = x / (1. + (-scale * x * (1. + 0.044715 * x * x)).exp());
        }
    }
}

/// The loops of candle-core, which are vectorised for the CPU that the program runs on.
impl Acc for f32 {
    fn slice_mut(storage: &mut CpuStorage) -> Result<&mut [f32]> {
        match storage {
            CpuStorage::F32(values) => Ok(values),
            other => Err(of_other_dtype::<f32>(other)),
        }
    }

    fn dot(lhs: &[f32], rhs: &[f32]) -> f32 {
        slices::dot(lhs, rhs)
    }

    fn sum(row: &[f32]) -> f32 {
        slices::sum(row)
    }

    fn greatest(row: &[f32]) -> f32 {
        slices::max(row)
    }

    fn exp_less(shift: f32, row: &[f32], dst: &mut [f32]) {
        slices::exp_less(shift, row, dst);
    }

    fn add_scaled(by: f32, row: &[f32], dst: &mut [f32]) {
        slices::add_scaled(by, row, dst);
    }

    fn soft_cap(cap: f32, row: &mut [f32]) {
        slices::soft_cap(cap, row);
    }

    fn sigmoid(row: &[f32], dst: &mut [f32]) {
        slices::sigmoid(row, dst);
    }

    fn gelu_erf(row: &[f32], dst: &mut [f32]) {
        slices::gelu_erf(row, dst);
    }

    fn gelu_tanh(row: &[f32], dst: &mut [f32]) {
        slices::gelu_tanh(row, dst);
    }
}

macro_rules! native_float {
    ($t:ty) => {
        impl Float for $t {
            type Acc = $t;

            fn narrow(acc: $t) -> $t {
                acc
            }

            fn widen(self) -> $t {
                self
            }

            fn widen_row<'a>(src: &'a [$t], _scratch: &'a mut [$t]) -> &'a [$t] {
                src
            }

            fn write_row(dst: &mut [$t], _scratch: &mut [$t], f: impl FnOnce(&mut [$t])) {
                f(dst);
            }
        }
    };
}

macro_rules! half_float {
    ($t:ty, $widen:ident, $narrow:ident) => {
        impl Float for $t {
            type Acc = f32;

            fn narrow(acc: f32) -> $t {
                <$t>::from_f32(acc)
            }

            fn widen(self) -> f32 {
                self.to_f32()
            }

            fn widen_row<'a>(src: &'a [$t], scratch: &'a mut [f32]) -> &'a [f32] {
                slices::$widen(src, scratch);
                scratch
            }

            fn write_row(dst: &mut [$t], scratch: &mut [f32], f: impl FnOnce(&mut [f32])) {
                f(scratch);
                slices::$narrow(scratch, dst);
            }
        }
    };
}

native_float!(f32);
native_float!(f64);
half_float!(f16, widen_f16, narrow_f16);
half_float!(bf16, widen_bf16, narrow_bf16);

/// Runs `$body` with `$t` standing for the element type of `$storage`, or fails with the dtype and the op's name.
macro_rules! with_float {
    ($op:expr, $storage:expr, $t:ident => $body:expr) => {
        match candle_core::backend::BackendStorage::dtype($storage) {
            candle_core::DType::F32 => {
                type $t = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $t = f64;
                $body
            }
            candle_core::DType::F16 => {
                type $t = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            dtype => Err(candle_core::Error::UnsupportedDTypeForOp(dtype, $op).bt()),
        }
    };
}
pub(crate) use with_float;

/// A strided tensor as rows along its last dimension, numbered in row-major order. A scalar is one row of one element.
pub(crate) struct StridedRows<'a, T> {
    data: &'a [T],
    start: usize,
    dims: &'a [usize],
    strides: &'a [usize],
    len: usize,
    step: usize,
}

impl<'a, T: Float> StridedRows<'a, T> {
    pub(crate) fn new(data: &'a [T], layout: &'a Layout) -> Self {
        let (dims, len) = split_last(layout.dims(), 1);
        let (strides, step) = split_last(layout.stride(), 1);
        Self {
            data,
            start: layout.start_offset(),
            dims,
            strides,
            len,
            step,
        }
    }

    /// Elements in a row.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Row `index`, widened. `scratch` has the length of a row.
    pub(crate) fn get<'b>(&self, index: usize, scratch: &'b mut [T::Acc]) -> &'b [T::Acc]
    where
        'a: 'b,
    {
        self.row_at(self.offset(index), scratch)
    }

    /// The row that starts at `start`, widened; see [`get`](Self::get).
    pub(crate) fn row_at<'b>(&self, start: usize, scratch: &'b mut [T::Acc]) -> &'b [T::Acc]
    where
        'a: 'b,
    {
        if self.step == 1 || self.len <= 1 {
            return T::widen_row(&self.data[start..start + self.len], scratch);
        }
        for (i, dst) in scratch.iter_mut().enumerate() {
            *dst = self.data[start + i * self.step].widen();
        }
        scratch
    }

    /// The offset of row `index`.
    pub(crate) fn offset(&self, index: usize) -> usize {
        let mut rest = index;
        let mut offset = self.start;
        for (&dim, &stride) in self.dims.iter().zip(self.strides).rev() {
            offset += (rest % dim) * stride;
            rest /= dim;
        }
        offset
    }
}

fn split_last(values: &[usize], default: usize) -> (&[usize], usize) {
    match values.split_last() {
        Some((&last, rest)) => (rest, last),
        None => (values, default),
    }
}

/// A buffer of `len` zeros to widen a row into.
pub(crate) fn scratch<A: num_traits::Zero + Clone>(len: usize) -> Vec<A> {
    vec![A::zero(); len]
}

/// The new contiguous buffer whose row `i` of `len` elements was filled by `f(scratch, i, row)`.
///
/// `steps` is the approximate number of elementary operations per row. Threads get chunks of rows that are worth the cost of a thread; less
/// work than one chunk runs on the calling thread. Each chunk has a separate scratch value.
pub(crate) fn map_rows<T: Float, S>(
    count: usize,
    len: usize,
    steps: usize,
    scratch: impl Fn() -> S + Sync,
    f: impl Fn(&mut S, usize, &mut [T]) + Sync,
) -> Vec<T> {
    let mut dst = vec![T::zero(); count * len];
    if dst.is_empty() {
        return dst;
    }
    let rows_per_task = (TASK_STEPS / steps.max(1)).max(1);
    let run = |task: usize, rows: &mut [T]| {
        let mut s = scratch();
        for (i, row) in rows.chunks_mut(len).enumerate() {
            f(&mut s, task * rows_per_task + i, row);
        }
    };
    if count <= rows_per_task {
        run(0, &mut dst);
    } else {
        threads::chunks_mut(&mut dst, rows_per_task * len, run);
    }
    dst
}

/// `f` of each element, which gets slices of at most [`CHUNK`] elements and writes to others of the same length.
pub(crate) fn map_elements<T: Float>(
    src: &[T],
    layout: &Layout,
    f: impl Fn(&[T::Acc], &mut [T::Acc]) + Sync,
) -> Vec<T> {
    let map = |src: &[T], dst: &mut [T]| {
        let mut buffers = [[T::Acc::zero(); CHUNK]; 2];
        for (src, dst) in src.chunks(CHUNK).zip(dst.chunks_mut(CHUNK)) {
            let [widened, results] = buffers.each_mut().map(|buffer| &mut buffer[..src.len()]);
            let src = T::widen_row(src, widened);
            T::write_row(dst, results, |dst| f(src, dst));
        }
    };
    unary_map_vec_par(src, layout, |v| v, map)
}
