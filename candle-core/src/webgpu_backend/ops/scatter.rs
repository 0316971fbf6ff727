//! Elements written by index: the counterpart of `indexing.rs`.

use super::elementwise::{self, functions};
use super::indexing::{ids_elem, number, reads_ids};
use super::windows::{fit, halves, longest, window};
use super::{bind, index, ranges, Views, MOST_STEPS, WORKGROUP};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Error, Layout, Result};

params!(ScatterParams {
    dims: Dims,
    ids_stride: Dims,
    src_stride: Dims,
    dst_stride: Dims,
    ids_offset: u32,
    src_offset: u32,
    dst_offset: u32,
    ids_step: u32,
    src_step: u32,
    dst_step: u32,
    size: u32,
    first: u32,
    window: u32,
    count: u32,
    len: u32,
    op: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Scatter {
    ids: Elem,
    elem: Elem,
    rank: usize,
    by_column: bool,
    /// For sums: the dtype to which each is rounded, for which `elem` may be a replacement.
    add: Option<Elem>,
}

impl Kernel for Scatter {
    type Params = ScatterParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .view("ids", self.ids, self.rank)
            .view("src", self.elem, self.rank)
            .output("dst", self.elem)
            .status()
            .strided("dst", self.rank)
            .constant("WG", WORKGROUP)
            .constant("BY_COLUMN", self.by_column)
            .constant("ADD", self.add.is_some())
            .text(functions(self.elem))
            .text(&rounding(self.add))
            .text(&reads_ids(self.ids, true))
            .body::<ScatterParams>(include_str!("../shaders/scatter.wgsl"))
    }
}

/// `rounded(sum)`: the sum rounded as by a store and a load.
fn rounding(elem: Option<Elem>) -> String {
    let (lanes, round) = elem.map_or((1, ""), |elem| (elem.lanes(), elem.round()));
    format!(
        "fn rounded(sum: dst_t) -> dst_t {{ var v: array<dst_t, {lanes}>; v[0] = sum; {round} return v[0]; }}"
    )
}

type Updates<'a> = crate::updates::Updates<'a, WebGpuStorage>;

/// `dst[.., ids[.., i, ..], ..] = src[.., i, ..]` in place, or `+=` if `add`. If several elements have the same index, the last one counts,
/// or they are added in order.
pub(in super::super) fn scatter(
    dst: &mut WebGpuStorage,
    layout: &Layout,
    updates: Updates<'_>,
    add: bool,
) -> Result<()> {
    let op = if add { "scatter-add" } else { "scatter" };
    let elem = dst.device().elem(dst.dtype(), op)?;
    update(dst, layout, updates, add.then_some(elem), op)
}

fn update(
    dst: &WebGpuStorage,
    layout: &Layout,
    updates: Updates<'_>,
    add: Option<Elem>,
    op: &'static str,
) -> Result<()> {
    let device = dst.device();
    let elem = device.elem(dst.dtype(), op)?;
    ids_elem(device, updates.ids, op)?;
    if updates.ids_l.shape().elem_count() == 0 {
        return Ok(());
    }
    // If dst has no element there is no word to process, but the indexes have to be checked.
    let by_column = elem.lanes() == 1 || layout.shape().elem_count() == 0;
    if !by_column && !layout.is_contiguous() {
        return Err(Error::RequiresContiguous { op }.bt());
    }
    let share = Share {
        dst: layout.clone(),
        first: 0,
        ids: updates.ids_l.clone(),
        src: updates.src_l.clone(),
    };
    let job = Job {
        dst,
        ids: updates.ids,
        src: updates.src,
        dim: updates.dim,
        size: layout.dims()[updates.dim],
        by_column,
        add,
        op,
    };
    if fit([dst, updates.ids, updates.src]) {
        return job.launch(&share);
    }
    if by_column {
        return job.split(share);
    }
    // A packed dtype is updated through a dtype whose elements are words. Sums are rounded to the packed dtype.
    let wide = match dst.dtype() {
        DType::U8 => DType::U32,
        DType::I16 => DType::I32,
        _ => DType::F32,
    };
    let wide_dst = elementwise::to_dtype(dst, layout, wide)?;
    let wide_src = elementwise::to_dtype(updates.src, updates.src_l, wide)?;
    let updates = Updates {
        src: &wide_src,
        src_l: &Layout::contiguous(updates.src_l.shape()),
        ..updates
    };
    let wide_l = Layout::contiguous(layout.shape());
    update(&wide_dst, &wide_l, updates, add, op)?;
    elementwise::convert_into(&wide_dst, &wide_l, dst, layout.start_offset())
}

/// The values that all dispatches of an update share.
struct Job<'a> {
    dst: &'a WebGpuStorage,
    ids: &'a WebGpuStorage,
    src: &'a WebGpuStorage,
    dim: usize,
    /// Size of the indexed dimension.
    size: usize,
    /// Whether an invocation processes a position of the other dimensions, or a word of `dst`.
    by_column: bool,
    add: Option<Elem>,
    op: &'static str,
}

/// A part of an update: some positions of the other dimensions, and along the dimension some of the destinations and some of the updates.
struct Share {
    dst: Layout,
    /// The first index of `dst` along the dimension.
    first: usize,
    ids: Layout,
    src: Layout,
}

impl Job<'_> {
    /// Halves a part until each operand fits a window. Updates keep their order: the first half comes first.
    fn split(&self, mut share: Share) -> Result<()> {
        // The updates may have more positions than the destination.
        for axis in (0..share.ids.dims().len()).filter(|axis| *axis != self.dim) {
            share.dst = share.dst.narrow(axis, 0, share.ids.dims()[axis])?;
        }
        let windows = (
            window((self.dst, &share.dst)),
            window((self.ids, &share.ids)),
            window((self.src, &share.src)),
        );
        let (cut, of_dst) = match windows {
            (Some((dst, dst_l)), Some((ids, ids_l)), Some((src, src_l))) => {
                let job = Job {
                    dst: &dst,
                    ids: &ids,
                    src: &src,
                    ..*self
                };
                return job.launch(&Share {
                    dst: dst_l,
                    ids: ids_l,
                    src: src_l,
                    ..share
                });
            }
            (None, _, _) => (&share.dst, true),
            (_, None, _) => (&share.ids, false),
            (_, _, None) => (&share.src, false),
        };
        let Some(axis) = longest(cut.dims(), cut.stride()) else {
            return Err(Error::Msg(format!("{}: no window has a single element", self.op)).bt());
        };
        let both = |layout: &Layout| halves(layout, axis);
        let keep = |layout: &Layout| Ok([layout.clone(), layout.clone()]);
        let along = axis == self.dim;
        let dst = if along && !of_dst {
            keep(&share.dst)
        } else {
            both(&share.dst)
        }?;
        let ids = if along && of_dst {
            keep(&share.ids)
        } else {
            both(&share.ids)
        }?;
        let src = if along && of_dst {
            keep(&share.src)
        } else {
            both(&share.src)
        }?;
        let second = if along && of_dst {
            share.first + dst[0].dims()[axis]
        } else {
            share.first
        };
        let parts = dst.into_iter().zip(ids).zip(src).zip([share.first, second]);
        for (((dst, ids), src), first) in parts {
            self.split(Share {
                dst,
                first,
                ids,
                src,
            })?;
        }
        Ok(())
    }

    /// Dispatches the updates in order, with at most the number that an invocation may read.
    fn launch(&self, share: &Share) -> Result<()> {
        let count = share.ids.dims()[self.dim];
        let elem = self.dst.device().elem(self.dst.dtype(), self.op)?;
        for part in ranges(count, MOST_STEPS / elem.lanes() as usize) {
            let narrow = |layout: &Layout| layout.narrow(self.dim, part.start, part.len());
            self.dispatch(&Share {
                dst: share.dst.clone(),
                ids: narrow(&share.ids)?,
                src: narrow(&share.src)?,
                ..*share
            })?;
        }
        Ok(())
    }

    /// One dispatch; skips indexes outside of the part.
    fn dispatch(&self, share: &Share) -> Result<()> {
        let Job {
            dim, by_column, op, ..
        } = *self;
        let Share {
            dst: layout,
            ids: ids_l,
            src: src_l,
            ..
        } = share;
        let device = self.dst.device();
        let by = ids_elem(device, self.ids, op)?;
        let mut elem = device.elem(self.dst.dtype(), op)?;
        if self.add.is_none() {
            elem = elem.bits();
        }
        let mut shape = if by_column { ids_l } else { layout }.dims().to_vec();
        if by_column {
            shape[dim] = 1;
        }
        let views = Views::new([
            &layout.over(&shape, dim, layout.stride()[dim]),
            &ids_l.over(&shape, dim, 0),
            &src_l.over(&shape, dim, 0),
        ])?;
        let lanes = elem.lanes();
        let invocations = if by_column {
            views.len
        } else {
            (views.offsets[0] % lanes + views.len).div_ceil(lanes)
        };
        // The stride of a dimension of size 1 may be anything, but it is the divisor that locates words.
        let dst_step = if by_column {
            index(layout.stride()[dim])?
        } else {
            index(layout.stride()[dim])?.max(1)
        };
        let kernel = Scatter {
            ids: by,
            elem,
            rank: views.rank,
            by_column,
            add: self.add,
        };
        device.run(
            &kernel,
            &[
                bind(self.ids),
                bind(self.src),
                bind(self.dst),
                Binding::Status,
            ],
            &ScatterParams {
                dims: views.dims,
                ids_stride: views.strides[1],
                src_stride: views.strides[2],
                dst_stride: views.strides[0],
                ids_offset: views.offsets[1],
                src_offset: views.offsets[2],
                dst_offset: views.offsets[0],
                ids_step: index(ids_l.stride()[dim])?,
                src_step: index(src_l.stride()[dim])?,
                dst_step,
                size: index(self.size)?,
                first: index(share.first)?,
                window: index(layout.dims()[dim])?,
                count: index(ids_l.dims()[dim])?,
                len: views.len,
                op: number(op),
            },
            device.grid(invocations as usize, WORKGROUP),
        )
    }
}

/// A contiguous copy of `src` with slice `i` of `add_src` added to slice `ids[i]` along `dim`.
pub(in super::super) fn index_add(
    src: &WebGpuStorage,
    layout: &Layout,
    ids: &WebGpuStorage,
    ids_l: &Layout,
    add_src: &WebGpuStorage,
    add_l: &Layout,
    dim: usize,
) -> Result<WebGpuStorage> {
    let dst = elementwise::copy(src, layout)?;
    let updates = Updates {
        ids,
        ids_l: &ids_l.along(add_l.dims(), dim),
        src: add_src,
        src_l: add_l,
        dim,
    };
    let dst_l = Layout::contiguous(layout.shape());
    let op = "index-add";
    let elem = dst.device().elem(dst.dtype(), op)?;
    update(&dst, &dst_l, updates, Some(elem), op)?;
    Ok(dst)
}
