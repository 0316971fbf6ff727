//! Copies between storages, constants, and selection between two storages.

use std::ops::Range;

use super::contiguous_blocks::{blocks, StridedOperand};
use super::copy_rows::copy_rows;
use super::element::Element;
use super::map::contiguous;
use super::storage::{peer, per_dtype};
use super::strided_iter::{fill_par_by, filled, StridedIter};
use super::CpuStorage;
use crate::backend::BackendStorage;
use crate::cpu::simd::multiversioned;
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
    per_dtype!(dst, OP, |dst: T| {
        let src = peer::<T>(src, OP)?;
        let (end, len) = (dst_offset + src_l.shape().elem_count(), dst.len());
        let Some(dst) = dst.get_mut(dst_offset..end) else {
            return Err(too_small(OP, "destination", end, len));
        };
        if let Some(src) = contiguous(src, src_l) {
            fill_par_by(dst, 1, 1, &|piece, dst| dst.copy_from_slice(&src[piece]));
            return Ok(());
        }
        let operand = StridedOperand::new(src, src_l);
        fill_par_by(dst, operand.unit(), 1, &|piece, dst| {
            operand.pack(piece, dst)
        });
        Ok(())
    })
}

/// The rows of a 2D copy: offset of the first row, and stride.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy2dRows {
    pub offset: usize,
    pub stride: usize,
}

/// Copies `d1` rows of `d2` elements.
pub(super) fn copy2d(
    src: &CpuStorage,
    dst: &mut CpuStorage,
    d1: usize,
    d2: usize,
    src_rows: Copy2dRows,
    dst_rows: Copy2dRows,
) -> Result<()> {
    const OP: &str = "copy2d";
    if d1 == 0 || d2 == 0 {
        return Ok(());
    }
    per_dtype!(dst, OP, |dst: T| {
        let src = peer::<T>(src, OP)?;
        let end = |rows: Copy2dRows| rows.offset + (d1 - 1) * rows.stride + d2;
        if end(src_rows) > src.len() {
            return Err(too_small(OP, "source", end(src_rows), src.len()));
        }
        if end(dst_rows) > dst.len() {
            return Err(too_small(OP, "destination", end(dst_rows), dst.len()));
        }
        let (src, dst) = (&src[src_rows.offset..], &mut dst[dst_rows.offset..]);
        if dst_rows.stride < d2 {
            // Rows of the destination overlap: copied in order, one at a time.
            for row in 0..d1 {
                let (from, to) = (row * src_rows.stride, row * dst_rows.stride);
                dst[to..to + d2].copy_from_slice(&src[from..from + d2]);
            }
            return Ok(());
        }
        let end = (d1 - 1) * dst_rows.stride + d2;
        fill_par_by(&mut dst[..end], dst_rows.stride, 1, &|piece, dst| {
            let first = piece.start / dst_rows.stride;
            let src = &src[first * src_rows.stride..];
            copy_rows(src, src_rows.stride, dst, dst_rows.stride, d2)
        });
        Ok(())
    })
}

/// Sets the elements of `layout` to `value`, which has the storage's dtype.
pub(super) fn const_set(dst: &mut CpuStorage, value: Scalar, layout: &Layout) -> Result<()> {
    let dtype = dst.dtype();
    if value.dtype() != dtype {
        return Err(Error::UnexpectedDType {
            msg: "const_set: the value's dtype differs from the tensor's",
            expected: dtype,
            got: value.dtype(),
        }
        .bt());
    }
    let iter = StridedIter::of([layout]);
    let [stride] = iter.strides();
    per_dtype!(dst, "const_set", |dst: T| {
        let value = match value {
            Scalar::I64(value) => T::from_i64(value),
            other => T::from_f64(other.to_f64()),
        };
        iter.for_runs(0..iter.len(), |run, [start]| {
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
    let cond = StridedOperand::new(cond, cond_l);
    per_dtype!(on_true, OP, |on_true: T| {
        let on_true = StridedOperand::new(on_true, true_l);
        let on_false = StridedOperand::new(peer::<T>(on_false, OP)?, false_l);
        let unit = cond.unit().max(on_true.unit()).max(on_false.unit());
        let all_contiguous =
            cond.is_contiguous() && on_true.is_contiguous() && on_false.is_contiguous();
        let fill = |piece: Range<usize>, dst: &mut [T]| {
            let base = piece.start;
            let (mut c, mut t, mut f) = (vec![], vec![], vec![]);
            // Contiguous operands need no blocks.
            let unit = if all_contiguous {
                piece.len().max(1)
            } else {
                unit
            };
            for block in blocks(piece, unit) {
                let dst = &mut dst[block.start - base..block.end - base];
                let c = cond.slice(block.clone(), &mut c);
                let t = on_true.slice(block.clone(), &mut t);
                select(c, t, on_false.slice(block, &mut f), dst);
            }
        };
        // SAFETY: `select` writes every element of a block; they are numbers.
        let dst = unsafe { filled(cond.len(), unit, 1, &fill) };
        Ok(T::to_cpu_storage_owned(dst))
    })
}

multiversioned! {
    /// `dst = c ? t : f`
    fn select[I: IntDType, T: Copy](c: &[I], t: &[T], f: &[T], dst: &mut [T]) {
        let zero = I::zero();
        for (((dst, &c), &t), &f) in dst.iter_mut().zip(c).zip(t).zip(f) {
            *dst = if c != zero { t } else { f };
        }
    }
}
