//! Elementwise ops on two storages of the same shape and dtype.

use super::element::{Accumulator, Element};
use super::map::{unary_map, zip};
use super::storage::{peer, per_dtype};
use super::CpuStorage;
use crate::backend::BackendStorage;
use crate::cpu::kernels::{map_slice, zip_slices};
use crate::cpu::scratch::{WidenBuffer, WIDEN};
use crate::op::{BinaryOpT, CmpOp};
use crate::{Error, Layout, Result, WithDType};

fn check_shapes(lhs_l: &Layout, rhs_l: &Layout, op: &'static str) -> Result<()> {
    if lhs_l.shape() == rhs_l.shape() {
        return Ok(());
    }
    Err(Error::ShapeMismatchBinaryOp {
        lhs: lhs_l.shape().clone(),
        rhs: rhs_l.shape().clone(),
        op,
    }
    .bt())
}

pub(super) fn binary<B: BinaryOpT>(
    lhs: &CpuStorage,
    rhs: &CpuStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<CpuStorage> {
    check_shapes(lhs_l, rhs_l, B::NAME)?;
    if B::NAME == "div" && lhs.dtype().is_int() && has_zero(rhs, rhs_l)? {
        let dtype = rhs.dtype().as_str();
        return Err(Error::msg(format!("div: division of {dtype} by zero")).bt());
    }
    macro_rules! run {
        ($($variant:ident $vec:ident $scalar_vec:ident),+) => {
            match lhs {
                // SAFETY: the slice functions of ops write all of their result, which consists of numbers.
                $(CpuStorage::$variant(lhs) => Ok(CpuStorage::$variant(unsafe {
                    zip(lhs_l, rhs_l, lhs, peer(rhs, B::NAME)?, &B::$vec, &B::$scalar_vec)
                })),)+
                CpuStorage::F8E4M3(lhs) => Ok(CpuStorage::F8E4M3(unsafe {
                    zip(
                        lhs_l,
                        rhs_l,
                        lhs,
                        peer(rhs, B::NAME)?,
                        &|xs1: &[_], xs2: &[_], ys: &mut [_]| zip_slices(xs1, xs2, ys, B::f8e4m3),
                        &|scalar, xs: &[_], ys: &mut [_]| map_slice(xs, ys, |x| B::f8e4m3(x, scalar)),
                    )
                })),
                other => Err(Error::UnsupportedDTypeForOp(other.dtype(), B::NAME).bt()),
            }
        };
    }
    run! {
        BF16 bf16_vec bf16_scalar_vec,
        F16 f16_vec f16_scalar_vec,
        F32 f32_vec f32_scalar_vec,
        F64 f64_vec f64_scalar_vec,
        U8 u8_vec u8_scalar_vec,
        U32 u32_vec u32_scalar_vec,
        I16 i16_vec i16_scalar_vec,
        I32 i32_vec i32_scalar_vec,
        I64 i64_vec i64_scalar_vec
    }
}

fn has_zero(storage: &CpuStorage, layout: &Layout) -> Result<bool> {
    per_dtype!(storage, "div", |vs: T| {
        let zero = T::from_f64(0.);
        Ok(unary_map(vs, layout, |v| v == zero).contains(&true))
    })
}

pub(super) fn cmp(
    op: CmpOp,
    lhs: &CpuStorage,
    rhs: &CpuStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<CpuStorage> {
    check_shapes(lhs_l, rhs_l, "cmp")?;
    per_dtype!(lhs, "cmp", |lhs: T| {
        let rhs = peer::<T>(rhs, "cmp")?;
        // One loop for each comparison: a match inside the loop would not vectorise.
        let dst = match op {
            CmpOp::Eq => compare(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l == r)),
            CmpOp::Ne => compare(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l != r)),
            CmpOp::Lt => compare(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l < r)),
            CmpOp::Le => compare(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l <= r)),
            CmpOp::Gt => compare(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l > r)),
            CmpOp::Ge => compare(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l >= r)),
        };
        Ok(CpuStorage::U8(dst))
    })
}

/// Compares the smaller floats as f32.
fn compare<T: Element>(
    lhs_l: &Layout,
    rhs_l: &Layout,
    lhs: &[T],
    rhs: &[T],
    f: impl Fn(T::Acc, T::Acc) -> u8 + Sync + Copy,
) -> Vec<u8> {
    let f_vec = |xs: &[T], ys: &[T], dst: &mut [u8]| {
        let (mut left, mut right) = (WidenBuffer::new(), WidenBuffer::new());
        let left = left.filled(T::Acc::ZERO, xs.len());
        let right = right.filled(T::Acc::ZERO, xs.len());
        let pairs = xs.chunks(WIDEN).zip(ys.chunks(WIDEN));
        for ((xs, ys), dst) in pairs.zip(dst.chunks_mut(WIDEN)) {
            zip_slices(T::acc_slice(xs, left), T::acc_slice(ys, right), dst, f);
        }
    };
    let f_scalar_vec = |y: T, xs: &[T], dst: &mut [u8]| {
        let (y, mut buffer) = (y.to_acc(), WidenBuffer::new());
        let buffer = buffer.filled(T::Acc::ZERO, xs.len());
        for (xs, dst) in xs.chunks(WIDEN).zip(dst.chunks_mut(WIDEN)) {
            map_slice(T::acc_slice(xs, buffer), dst, |x| f(x, y));
        }
    };
    // SAFETY: both write all of `dst`.
    unsafe { zip(lhs_l, rhs_l, lhs, rhs, &f_vec, &f_scalar_vec) }
}
