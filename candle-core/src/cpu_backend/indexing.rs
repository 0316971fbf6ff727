//! Reading and writing by index: gather, scatter, index_select, index_add.
//!
//! The largest value of the index type means "no element": reading it returns 0, writing to it does nothing.

use std::ops::Range;

use super::element::Element;
use super::map::{contiguous, map, unary_map};
use super::storage::{peer, per_dtype};
use super::strided_iter::{filled, StridedIter, PAR_MIN};
use super::CpuStorage;
use crate::backend::BackendStorage;
use crate::inline_vec::InlineVec;
use crate::{Error, IntDType, Layout, Result, Shape, WithDType};

/// The index that means "no element".
const NONE: usize = usize::MAX;

/// The indexes in row-major order, each below `size` or [`NONE`]. A few indexes, as for the next token, need no allocation.
fn read_ids(
    ids: &CpuStorage,
    layout: &Layout,
    size: usize,
    op: &'static str,
) -> Result<InlineVec<usize>> {
    fn read<T: IntDType>(
        ids: &[T],
        layout: &Layout,
        size: usize,
        op: &'static str,
    ) -> Result<InlineVec<usize>> {
        // Checked here: after the conversion, -1 would equal `NONE`.
        let mut invalid = None;
        let check = |id: T| {
            let index = id.as_usize();
            if id == T::max_value() {
                NONE
            } else {
                if index >= size {
                    invalid.get_or_insert(index);
                }
                index
            }
        };
        let ids = match contiguous(ids, layout) {
            Some(ids) if ids.len() <= InlineVec::<usize>::INLINE => {
                ids.iter().copied().map(check).collect()
            }
            _ => InlineVec::OnHeap(unary_map(ids, layout, check)),
        };
        match invalid {
            Some(index) => Err(Error::InvalidIndex { op, index, size }.bt()),
            None => Ok(ids),
        }
    }
    match ids {
        CpuStorage::U8(ids) => read(ids, layout, size, op),
        CpuStorage::U32(ids) => read(ids, layout, size, op),
        CpuStorage::I16(ids) => read(ids, layout, size, op),
        CpuStorage::I32(ids) => read(ids, layout, size, op),
        CpuStorage::I64(ids) => read(ids, layout, size, op),
        other => Err(Error::UnsupportedDTypeForOp(other.dtype(), op).bt()),
    }
}

fn mismatch(lhs: &Layout, rhs: &Layout, op: &'static str) -> Error {
    Error::ShapeMismatchBinaryOp {
        lhs: lhs.shape().clone(),
        rhs: rhs.shape().clone(),
        op,
    }
    .bt()
}

fn check_dim(layout: &Layout, dim: usize, op: &'static str) -> Result<()> {
    if dim < layout.dims().len() {
        return Ok(());
    }
    Err(Error::DimOutOfRange {
        shape: layout.shape().clone(),
        dim: dim as i32,
        op,
    }
    .bt())
}

/// The strides of `layout` without the indexed dimension, where the index selects.
fn strides_without(layout: &Layout, dim: usize) -> InlineVec<usize> {
    let mut strides = InlineVec::from(layout.stride());
    strides[dim] = 0;
    strides
}

/// Checks that indexes of the shape of `ids` stay within `layout` in every dimension except the indexed one.
fn check_ids(layout: &Layout, ids_l: &Layout, dim: usize, op: &'static str) -> Result<()> {
    check_dim(layout, dim, op)?;
    let fits = layout.dims().len() == ids_l.dims().len()
        && (0..ids_l.dims().len()).all(|d| d == dim || ids_l.dims()[d] <= layout.dims()[d]);
    if fits {
        Ok(())
    } else {
        Err(mismatch(layout, ids_l, op))
    }
}

pub(super) fn gather(
    src: &CpuStorage,
    layout: &Layout,
    ids: &CpuStorage,
    ids_l: &Layout,
    dim: usize,
) -> Result<CpuStorage> {
    const OP: &str = "gather";
    check_ids(layout, ids_l, dim, OP)?;
    let size = layout.dims()[dim];
    let ids = &*read_ids(ids, ids_l, size, OP)?;
    let id_stride = layout.stride()[dim];
    let strides = strides_without(layout, dim);
    let iter = StridedIter::new(ids_l.dims(), [&strides], [layout.start_offset()]);
    let [stride] = iter.strides();
    per_dtype!(src, OP, |src: T| {
        let zero = T::from_i64(0);
        let fill = |piece: Range<usize>, dst: &mut [T]| {
            let base = piece.start;
            iter.for_runs(piece, |run, [start]| {
                let dst = &mut dst[run.start - base..run.end - base];
                if (stride, id_stride) == (0, 1) {
                    // The slices of one row.
                    let src = &src[start..start + size];
                    for (dst, &id) in dst.iter_mut().zip(&ids[run]) {
                        *dst = src.get(id).copied().unwrap_or(zero);
                    }
                    return;
                }
                for (i, (dst, &id)) in dst.iter_mut().zip(&ids[run]).enumerate() {
                    *dst = match id {
                        NONE => zero,
                        id => src[start + i * stride + id * id_stride],
                    };
                }
            });
        };
        // SAFETY: the runs cover each chunk; elements are numbers.
        Ok(T::to_cpu_storage_owned(unsafe {
            filled(ids.len(), 1, 2, &fill)
        }))
    })
}

/// The effect of a source element on the old element: replacement or addition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Write {
    Set,
    Add,
}

#[allow(clippy::too_many_arguments)]
pub(super) fn scatter(
    dst: &mut CpuStorage,
    layout: &Layout,
    ids: &CpuStorage,
    ids_l: &Layout,
    src: &CpuStorage,
    src_l: &Layout,
    dim: usize,
    write: Write,
) -> Result<()> {
    let op = match write {
        Write::Set => "scatter",
        Write::Add => "scatter-add",
    };
    check_ids(layout, ids_l, dim, op)?;
    if ids_l.shape() != src_l.shape() {
        return Err(mismatch(ids_l, src_l, op));
    }
    let ids = &*read_ids(ids, ids_l, layout.dims()[dim], op)?;
    let id_stride = layout.stride()[dim];
    let strides = strides_without(layout, dim);
    let offsets = [layout.start_offset(), src_l.start_offset()];
    let iter = StridedIter::new(ids_l.dims(), [&strides, src_l.stride()], offsets);
    let [dst_stride, src_stride] = iter.strides();
    per_dtype!(dst, op, |dst: T| {
        let src = peer::<T>(src, op)?;
        // On one thread: several sources may write the same element, and the last one counts.
        iter.for_runs(0..ids.len(), |run, [dst_start, src_start]| {
            for (i, &id) in ids[run].iter().enumerate() {
                if id != NONE {
                    let dst = &mut dst[dst_start + i * dst_stride + id * id_stride];
                    let src = src[src_start + i * src_stride];
                    *dst = match write {
                        Write::Set => src,
                        Write::Add => dst.plus(src),
                    };
                }
            }
        });
        Ok(())
    })
}

fn check_1d(ids_l: &Layout) -> Result<()> {
    match ids_l.dims().len() {
        1 => Ok(()),
        got => Err(Error::UnexpectedNumberOfDims {
            expected: 1,
            got,
            shape: ids_l.shape().clone(),
        }
        .bt()),
    }
}

/// Iterators over the dimensions of a shape before and after one of its dimensions.
fn around(layout: &Layout, dim: usize, offset: usize) -> (StridedIter<1>, StridedIter<1>) {
    let (dims, strides) = (layout.dims(), layout.stride());
    let before = StridedIter::new(&dims[..dim], [&strides[..dim]], [offset]);
    let after = StridedIter::new(&dims[dim + 1..], [&strides[dim + 1..]], [0]);
    (before, after)
}

/// `n / by` and `n % by`, without a division if `n < by`: a division takes longer than a short copy.
fn divided(n: usize, by: usize) -> (usize, usize) {
    if n < by {
        (0, n)
    } else {
        (n / by, n % by)
    }
}

/// The slices at `ids` from every group of `size` slices of `len` elements: a short path without planning.
fn slices<T: Element>(src: &[T], ids: &[usize], size: usize, len: usize) -> Vec<T> {
    let groups = src.chunks_exact(size * len);
    let mut dst = Vec::with_capacity(groups.len() * ids.len() * len);
    for group in groups {
        for &id in ids {
            match id {
                NONE => dst.resize(dst.len() + len, T::from_i64(0)),
                id => dst.extend_from_slice(&group[id * len..][..len]),
            }
        }
    }
    dst
}

pub(super) fn index_select(
    src: &CpuStorage,
    ids: &CpuStorage,
    layout: &Layout,
    ids_l: &Layout,
    dim: usize,
) -> Result<CpuStorage> {
    const OP: &str = "index-select";
    check_dim(layout, dim, OP)?;
    check_1d(ids_l)?;
    let size = layout.dims()[dim];
    let ids = &*read_ids(ids, ids_l, size, OP)?;
    if let Some((start, end)) = layout.contiguous_offsets() {
        let len: usize = layout.dims()[dim + 1..].iter().product();
        if len > 1 && size > 0 && ids.len().saturating_mul(end - start) / size < PAR_MIN {
            return per_dtype!(src, OP, |src: T| {
                Ok(T::to_cpu_storage_owned(slices(
                    &src[start..end],
                    ids,
                    size,
                    len,
                )))
            });
        }
    }
    let id_stride = layout.stride()[dim];
    let (before, after) = around(layout, dim, layout.start_offset());
    let [after_stride] = after.strides();
    let mut starts = InlineVec::EMPTY;
    let [before_stride] = before.strides();
    before.for_runs(0..before.len(), |run, [start]| {
        starts.extend((0..run.len()).map(|i| start + i * before_stride));
    });
    let starts = &*starts;
    per_dtype!(src, OP, |src: T| {
        let fill = |piece: Range<usize>, dst: &mut [T]| {
            // A chunk may begin and end within a slice.
            let (mut at, mut dst) = (piece.start, dst);
            while at < piece.end {
                let (slice, from) = divided(at, after.len());
                let to = after.len().min(from + piece.end - at);
                let (part, rest) = dst.split_at_mut(to - from);
                let (row, i) = divided(slice, ids.len());
                let id = ids[i];
                if id == NONE {
                    part.fill(T::from_i64(0));
                } else {
                    let base = starts[row] + id * id_stride;
                    after.for_runs(from..to, |run, [start]| {
                        let dst = &mut part[run.start - from..run.end - from];
                        let start = base + start;
                        if after_stride == 1 {
                            dst.copy_from_slice(&src[start..start + dst.len()]);
                        } else {
                            for (i, dst) in dst.iter_mut().enumerate() {
                                *dst = src[start + i * after_stride];
                            }
                        }
                    });
                }
                dst = rest;
                at += to - from;
            }
        };
        let columns = |piece: Range<usize>, dst: &mut [T]| {
            // Single elements: a row of them for each outer index.
            let base = piece.start;
            let mut at = piece.start;
            while at < piece.end {
                let (row, from) = (at / ids.len(), at % ids.len());
                let to = ids.len().min(from + piece.end - at);
                let dst = &mut dst[at - base..][..to - from];
                for (dst, &id) in dst.iter_mut().zip(&ids[from..to]) {
                    *dst = match id {
                        NONE => T::from_i64(0),
                        id => src[starts[row] + id * id_stride],
                    };
                }
                at += to - from;
            }
        };
        let len = before.len() * ids.len() * after.len();
        // SAFETY: both write every element of a chunk; elements are numbers.
        let dst = unsafe {
            match after.len() {
                1 => filled(len, 1, 1, &columns),
                _ => filled(len, 1, 1, &fill),
            }
        };
        Ok(T::to_cpu_storage_owned(dst))
    })
}

pub(super) fn index_add(
    storage: &CpuStorage,
    layout: &Layout,
    ids: &CpuStorage,
    ids_l: &Layout,
    src: &CpuStorage,
    src_l: &Layout,
    dim: usize,
) -> Result<CpuStorage> {
    const OP: &str = "index-add";
    check_dim(layout, dim, OP)?;
    check_1d(ids_l)?;
    let mut expected = layout.dims().to_vec();
    expected[dim] = ids_l.dims()[0];
    if src_l.dims() != expected {
        return Err(Error::UnexpectedShape {
            msg: "index-add: the source differs from the result in more than the indexed dimension"
                .to_string(),
            expected: Shape::from(expected),
            got: src_l.shape().clone(),
        }
        .bt());
    }
    let ids = &*read_ids(ids, ids_l, layout.dims()[dim], OP)?;
    let dst_l = Layout::contiguous(layout.shape().clone());
    let dst_strides = strides_without(&dst_l, dim);
    let iter = StridedIter::new(
        src_l.dims(),
        [&dst_strides, src_l.stride()],
        [0, src_l.start_offset()],
    );
    let [dst_stride, src_stride] = iter.strides();
    let slice = dst_l.stride()[dim];
    per_dtype!(storage, OP, |storage: T| {
        let src = peer::<T>(src, OP)?;
        // SAFETY: `copy_from_slice` writes every element; elements are numbers.
        let mut dst: Vec<T> = unsafe {
            map(storage, layout, &|xs: &[T], ys: &mut [T]| {
                ys.copy_from_slice(xs)
            })
        };
        // The source is iterated in its own order, so the index follows from the position.
        iter.for_runs(0..iter.len(), |run, [dst_start, src_start]| {
            let (mut at, end) = (run.start, run.end);
            while at < end {
                // Elements that share an index.
                let next = ((at / slice + 1) * slice).min(end);
                let id = ids[at / slice % ids.len()];
                let i = at - run.start;
                if id != NONE {
                    let (to, from) = (
                        dst_start + i * dst_stride + id * slice,
                        src_start + i * src_stride,
                    );
                    if (dst_stride, src_stride) == (1, 1) {
                        let src = &src[from..from + next - at];
                        T::add_slice(&mut dst[to..to + src.len()], src);
                    } else {
                        for i in 0..next - at {
                            let dst = &mut dst[to + i * dst_stride];
                            *dst = dst.plus(src[from + i * src_stride]);
                        }
                    }
                }
                at = next;
            }
        });
        Ok(T::to_cpu_storage_owned(dst))
    })
}
