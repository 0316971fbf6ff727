//! Elements read and written by index. Along one dimension indexes choose; all other positions are walked in step.
//!
//! An index that is the greatest number of its dtype is skipped, one that is out of range is reported to the host, which
//! gives an error with the next result that it reads.

use super::elementwise::{self, functions};
use super::{bind, index, Views, INDEX_OPS, WORKGROUP};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{Error, Layout, Result, Shape};

params!(GatherParams {
    dims: Dims,
    ids_stride: Dims,
    src_stride: Dims,
    ids_offset: u32,
    src_offset: u32,
    src_step: u32,
    size: u32,
    len: u32,
    op: u32,
});

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
    count: u32,
    len: u32,
    op: u32,
});

/// How an op is named in the status buffer.
fn number(op: &str) -> u32 {
    let place = INDEX_OPS.iter().position(|name| *name == op);
    debug_assert!(place.is_some(), "{op} is not in INDEX_OPS");
    place.map_or(0, |place| place as u32 + 1)
}

/// The storage of indexes.
fn ids_elem(device: &WebGpuDevice, ids: &WebGpuStorage, op: &'static str) -> Result<Elem> {
    match device.elem(ids.dtype(), op)? {
        Elem::F32 | Elem::F16 | Elem::BF16 => {
            Err(device.unsupported(op, ids.dtype(), "indexes must be u8, u32, i32 or i64"))
        }
        elem => Ok(elem),
    }
}

/// WGSL that reads indexes: `id_at`.
fn reads_ids(ids: Elem) -> String {
    let (skipped, low, fits) = match ids {
        Elem::U8 => ("id == 0xffu", "id", "true"),
        Elem::I32 => ("id == 0x7fffffff", "bitcast<u32>(id)", "id >= 0"),
        Elem::I64 => (
            "id.x == 0xffffffffu && id.y == 0x7fffffffu",
            "id.x",
            "id.y == 0u",
        ),
        _ => ("id == 0xffffffffu", "id", "true"),
    };
    format!(
        "fn skipped(id: ids_t) -> bool {{ return {skipped}; }}\n\
         fn low_word(id: ids_t) -> u32 {{ return {low}; }}\n\
         fn fits(id: ids_t) -> bool {{ return {fits}; }}\n{}",
        include_str!("../shaders/ids.wgsl")
    )
}

/// `layout` over `shape` with another stride in `dim`.
fn with_stride(layout: &Layout, shape: &[usize], dim: usize, stride: usize) -> Layout {
    let mut strides = layout.stride().to_vec();
    strides[dim] = stride;
    Layout::new(Shape::from(shape), strides, layout.start_offset())
}

/// A vector along `dim` of `shape`, the same at all other positions.
fn along(vector: &Layout, shape: &[usize], dim: usize) -> Layout {
    let mut strides = vec![0; shape.len()];
    strides[dim] = vector.stride()[0];
    Layout::new(Shape::from(shape), strides, vector.start_offset())
}

/// `dst[.., i, ..] = src[.., ids[.., i, ..], ..]`; `dst` has the shape of `ids_l`.
fn choose(
    src: &WebGpuStorage,
    layout: &Layout,
    ids: &WebGpuStorage,
    ids_l: &Layout,
    dim: usize,
    op: &'static str,
) -> Result<WebGpuStorage> {
    let device = src.device();
    let by = ids_elem(device, ids, op)?;
    let elem = device.elem(src.dtype(), op)?;
    let views = Views::new([ids_l, &with_stride(layout, ids_l.dims(), dim, 0)])?;
    let dst = device.alloc(views.len as usize, src.dtype(), op)?;
    if views.len == 0 {
        return Ok(dst);
    }
    let key = Key::new("gather")
        .elem(by)
        .elem(elem)
        .with(views.rank as u32, 4);
    device.launch(
        key,
        || {
            Shader::new(format!("gather {by:?} {elem:?} rank{}", views.rank))
                .input("ids", by)
                .input("src", elem)
                .output("dst", elem)
                .status()
                .strided("ids", views.rank)
                .strided("src", views.rank)
                .constant("WG", WORKGROUP)
                .text(&reads_ids(by))
                .body::<GatherParams>(include_str!("../shaders/gather.wgsl"))
        },
        &[bind(ids), bind(src), bind(&dst), Binding::Status],
        &GatherParams {
            dims: views.dims,
            ids_stride: views.strides[0],
            src_stride: views.strides[1],
            ids_offset: views.offsets[0],
            src_offset: views.offsets[1],
            src_step: index(layout.stride()[dim])?,
            size: index(layout.dims()[dim])?,
            len: views.len,
            op: number(op),
        },
        device.grid(views.len.div_ceil(elem.lanes()) as usize, WORKGROUP),
    )?;
    Ok(dst)
}

pub(in super::super) fn gather(
    src: &WebGpuStorage,
    layout: &Layout,
    ids: &WebGpuStorage,
    ids_l: &Layout,
    dim: usize,
) -> Result<WebGpuStorage> {
    choose(src, layout, ids, ids_l, dim, "gather")
}

/// `dst[.., i, ..] = src[.., ids[i], ..]`.
pub(in super::super) fn index_select(
    src: &WebGpuStorage,
    ids: &WebGpuStorage,
    layout: &Layout,
    ids_l: &Layout,
    dim: usize,
) -> Result<WebGpuStorage> {
    let mut shape = layout.dims().to_vec();
    shape[dim] = ids_l.shape().elem_count();
    let ids_l = along(ids_l, &shape, dim);
    choose(src, layout, ids, &ids_l, dim, "index-select")
}

/// What is written along `dim`, and where: `ids_l` and `src_l` have one shape.
pub(in super::super) struct Updates<'a> {
    pub(in super::super) ids: &'a WebGpuStorage,
    pub(in super::super) ids_l: &'a Layout,
    pub(in super::super) src: &'a WebGpuStorage,
    pub(in super::super) src_l: &'a Layout,
    pub(in super::super) dim: usize,
}

/// `dst[.., ids[.., i, ..], ..] = src[.., i, ..]` in place, or `+=` if `add`. Of several elements for one place the last
/// stays, or they are added in order.
pub(in super::super) fn scatter(
    dst: &mut WebGpuStorage,
    layout: &Layout,
    updates: Updates<'_>,
    add: bool,
) -> Result<()> {
    let op = if add { "scatter-add" } else { "scatter" };
    update(dst, layout, updates, add, op)
}

fn update(
    dst: &WebGpuStorage,
    layout: &Layout,
    updates: Updates<'_>,
    add: bool,
    op: &'static str,
) -> Result<()> {
    let Updates {
        ids,
        ids_l,
        src,
        src_l,
        dim,
    } = updates;
    let device = dst.device();
    let by = ids_elem(device, ids, op)?;
    let elem = device.elem(dst.dtype(), op)?;
    if ids_l.shape().elem_count() == 0 {
        return Ok(());
    }
    // Where dst has no element there is no word to take, but the indexes are to be checked.
    let by_column = elem.lanes() == 1 || layout.shape().elem_count() == 0;
    if !by_column && !layout.is_contiguous() {
        return Err(Error::RequiresContiguous { op }.bt());
    }
    let mut shape = if by_column { ids_l } else { layout }.dims().to_vec();
    if by_column {
        shape[dim] = 1;
    }
    let views = Views::new([
        &with_stride(layout, &shape, dim, layout.stride()[dim]),
        &with_stride(ids_l, &shape, dim, 0),
        &with_stride(src_l, &shape, dim, 0),
    ])?;
    let lanes = elem.lanes();
    let invocations = match by_column {
        true => views.len,
        false => (views.offsets[0] % lanes + views.len).div_ceil(lanes),
    };
    // The stride of a dimension of size 1 may be anything, but words are found by dividing by it.
    let dst_step = match by_column {
        true => index(layout.stride()[dim])?,
        false => index(layout.stride()[dim])?.max(1),
    };
    let key = Key::new("scatter")
        .elem(by)
        .elem(elem)
        .with(views.rank as u32, 4)
        .with(by_column.into(), 1)
        .with(add.into(), 1);
    device.launch(
        key,
        || {
            Shader::new(format!("scatter {by:?} {elem:?} rank{}", views.rank))
                .input("ids", by)
                .input("src", elem)
                .output("dst", elem)
                .status()
                .strided("ids", views.rank)
                .strided("src", views.rank)
                .strided("dst", views.rank)
                .constant("WG", WORKGROUP)
                .constant("BY_COLUMN", by_column)
                .constant("ADD", add)
                .text(functions(elem))
                .text(&reads_ids(by))
                .body::<ScatterParams>(include_str!("../shaders/scatter.wgsl"))
        },
        &[bind(ids), bind(src), bind(dst), Binding::Status],
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
            size: index(layout.dims()[dim])?,
            count: index(ids_l.dims()[dim])?,
            len: views.len,
            op: number(op),
        },
        device.grid(invocations as usize, WORKGROUP),
    )
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
        ids_l: &along(ids_l, add_l.dims(), dim),
        src: add_src,
        src_l: add_l,
        dim,
    };
    let dst_l = Layout::contiguous(layout.shape());
    update(&dst, &dst_l, updates, true, "index-add")?;
    Ok(dst)
}
