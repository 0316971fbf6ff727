//! Elementwise ops on two storages of one shape and dtype.

use super::map::{binary_map, binary_map_vec_par, unary_map};
use super::storage::{peer, per_dtype};
use super::CpuStorage;
use crate::backend::BackendStorage;
use crate::cpu::kernels::{map_slice, zip_slices};
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
        ($($variant:ident $f:ident $vec:ident $scalar_vec:ident),+) => {
            match lhs {
                $(CpuStorage::$variant(lhs) => Ok(CpuStorage::$variant(binary_map_vec_par(
                    lhs_l, rhs_l, lhs, peer(rhs, B::NAME)?, B::$f, B::$vec, B::$scalar_vec,
                ))),)+
                CpuStorage::F8E4M3(lhs) => Ok(CpuStorage::F8E4M3(binary_map_vec_par(
                    lhs_l,
                    rhs_l,
                    lhs,
                    peer(rhs, B::NAME)?,
                    B::f8e4m3,
                    |xs1, xs2, ys| zip_slices(xs1, xs2, ys, B::f8e4m3),
                    |scalar, xs, ys| map_slice(xs, ys, |x| B::f8e4m3(x, scalar)),
                ))),
                other => Err(Error::UnsupportedDTypeForOp(other.dtype(), B::NAME).bt()),
            }
        };
    }
    run! {
        BF16 bf16 bf16_vec bf16_scalar_vec,
        F16 f16 f16_vec f16_scalar_vec,
        F32 f32 f32_vec f32_scalar_vec,
        F64 f64 f64_vec f64_scalar_vec,
        U8 u8 u8_vec u8_scalar_vec,
        U32 u32 u32_vec u32_scalar_vec,
        I16 i16 i16_vec i16_scalar_vec,
        I32 i32 i32_vec i32_scalar_vec,
        I64 i64 i64_vec i64_scalar_vec
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
            CmpOp::Eq => binary_map(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l == r)),
            CmpOp::Ne => binary_map(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l != r)),
            CmpOp::Lt => binary_map(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l < r)),
            CmpOp::Le => binary_map(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l <= r)),
            CmpOp::Gt => binary_map(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l > r)),
            CmpOp::Ge => binary_map(lhs_l, rhs_l, lhs, rhs, |l, r| u8::from(l >= r)),
        };
        Ok(CpuStorage::U8(dst))
    })
}
