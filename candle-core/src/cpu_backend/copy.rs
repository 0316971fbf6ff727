//! Copies between storages, constants, and choosing between two storages.

use super::element::Element;
use super::storage::{peer, per_dtype};
use super::walk::{fill_par, Walk};
use super::CpuStorage;
use crate::backend::BackendStorage;
use crate::scalar::Scalar;
use crate::{Error, IntDType, Layout, Result, WithDType};

fn too_small(op: &str, what: &str, needed: usize, len: usize) -> Error {
    Error::msg(format!(
        "{op}: needs {needed} elements in the {what}, which has {len}"
    ))
    .bt()
}

/// Copies the elements of `src_l` to `dst` from `dst_offset` on, contiguously.
pub(super) fn copy_strided_src(
    src: &CpuStorage,
    dst: &mut CpuStorage,
    dst_offset: usize,
    src_l: &Layout,
) -> Result<()> {
    const OP: &str = "copy_strided_src";
    let walk = Walk::of([src_l]);
    let [stride] = walk.strides();
    per_dtype!(dst, OP, |dst: T| {
        let src = peer::<T>(src, OP)?;
        let (end, len) = (dst_offset + walk.len(), dst.len());
        let Some(dst) = dst.get_mut(dst_offset..end) else {
            return Err(too_small(OP, "destination", end, len));
        };
        fill_par(dst, 1, |piece, dst| {
            let base = piece.start;
            walk.for_runs(piece, |run, [start]| {
                let dst = &mut dst[run.start - base..run.end - base];
                if stride == 1 {
                    dst.copy_from_slice(&src[start..start + run.len()]);
                } else {
                    for (i, dst) in dst.iter_mut().enumerate() {
                        *dst = src[start + i * stride];
                    }
                }
            });
        });
        Ok(())
    })
}

/// Where the rows of a 2D copy lie: the first one's offset, and the distance from one to the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub offset: usize,
    pub stride: usize,
}

/// Copies `d1` rows of `d2` elements.
pub(super) fn copy2d(
    src: &CpuStorage,
    dst: &mut CpuStorage,
    d1: usize,
    d2: usize,
    src_rows: Rows,
    dst_rows: Rows,
) -> Result<()> {
    const OP: &str = "copy2d";
    if d1 == 0 || d2 == 0 {
        return Ok(());
    }
    per_dtype!(dst, OP, |dst: T| {
        let src = peer::<T>(src, OP)?;
        let end = |rows: Rows| rows.offset + (d1 - 1) * rows.stride + d2;
        if end(src_rows) > src.len() {
            return Err(too_small(OP, "source", end(src_rows), src.len()));
        }
        if end(dst_rows) > dst.len() {
            return Err(too_small(OP, "destination", end(dst_rows), dst.len()));
        }
        for row in 0..d1 {
            let from = src_rows.offset + row * src_rows.stride;
            let to = dst_rows.offset + row * dst_rows.stride;
            dst[to..to + d2].copy_from_slice(&src[from..from + d2]);
        }
        Ok(())
    })
}

/// Sets the elements of `layout` to `value`, which has the storage's dtype.
pub(super) fn const_set(dst: &mut CpuStorage, value: Scalar, layout: &Layout) -> Result<()> {
    let dtype = dst.dtype();
    if value.dtype() != dtype {
        return Err(Error::UnexpectedDType {
            msg: "const_set: the value has another dtype than the tensor",
            expected: dtype,
            got: value.dtype(),
        }
        .bt());
    }
    let walk = Walk::of([layout]);
    let [stride] = walk.strides();
    per_dtype!(dst, "const_set", |dst: T| {
        let value = match value {
            Scalar::I64(value) => T::from_i64(value),
            other => T::from_f64(other.to_f64()),
        };
        walk.for_runs(0..walk.len(), |run, [start]| {
            if stride == 1 {
                dst[start..start + run.len()].fill(value);
            } else {
                (0..run.len()).for_each(|i| dst[start + i * stride] = value);
            }
        });
        Ok(())
    })
}

/// `on_true` where the condition is not 0, else `on_false`.
pub(super) fn where_cond(
    cond: (&CpuStorage, &Layout),
    on_true: (&CpuStorage, &Layout),
    on_false: (&CpuStorage, &Layout),
) -> Result<CpuStorage> {
    match cond.0 {
        CpuStorage::U8(vs) => choose((vs, cond.1), on_true, on_false),
        CpuStorage::U32(vs) => choose((vs, cond.1), on_true, on_false),
        CpuStorage::I16(vs) => choose((vs, cond.1), on_true, on_false),
        CpuStorage::I32(vs) => choose((vs, cond.1), on_true, on_false),
        CpuStorage::I64(vs) => choose((vs, cond.1), on_true, on_false),
        other => Err(Error::UnsupportedDTypeForOp(other.dtype(), "where_cond").bt()),
    }
}

fn choose<I: IntDType>(
    (cond, cond_l): (&[I], &Layout),
    (on_true, true_l): (&CpuStorage, &Layout),
    (on_false, false_l): (&CpuStorage, &Layout),
) -> Result<CpuStorage> {
    const OP: &str = "where_cond";
    for layout in [true_l, false_l] {
        if layout.shape() != cond_l.shape() {
            return Err(Error::ShapeMismatchBinaryOp {
                lhs: cond_l.shape().clone(),
                rhs: layout.shape().clone(),
                op: OP,
            }
            .bt());
        }
    }
    let walk = Walk::of([cond_l, true_l, false_l]);
    let [c_stride, t_stride, f_stride] = walk.strides();
    per_dtype!(on_true, OP, |on_true: T| {
        let on_false = peer::<T>(on_false, OP)?;
        let mut dst = vec![T::from_i64(0); walk.len()];
        fill_par(&mut dst, 1, |piece, dst| {
            let base = piece.start;
            walk.for_runs(piece, |run, [c, t, f]| {
                let dst = &mut dst[run.start - base..run.end - base];
                for (i, dst) in dst.iter_mut().enumerate() {
                    *dst = if cond[c + i * c_stride].is_true() {
                        on_true[t + i * t_stride]
                    } else {
                        on_false[f + i * f_stride]
                    };
                }
            });
        });
        Ok(T::to_cpu_storage_owned(dst))
    })
}
