//! Elements read by index. Indexes select along one dimension; all other dimensions are iterated in parallel.
//!
//! An index that is the greatest number of its dtype is skipped. One that is out of range is reported to the host, which returns an error
//! from the next readback.

use super::windows::{fit, reach, window_bytes, Operand, Split};
use super::{bind, index, Views};
use crate::backend::BackendStorage;
pub(super) use crate::fault_codes::code as number;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{Layout, Result};

params!(GatherParams {
    dims: Dims,
    ids_stride: Dims,
    src_stride: Dims,
    ids_offset: u32,
    src_offset: u32,
    src_step: u32,
    size: u32,
    first: u32,
    count: u32,
    len: u32,
    op: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Gather {
    ids: Elem,
    elem: Elem,
    rank: usize,
    part: bool,
}

impl Kernel for Gather {
    type Params = GatherParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .view("ids", self.ids, self.rank)
            .view("src", self.elem, self.rank)
            .output("dst", self.elem)
            .status()
            .constant("PART", self.part)
            .text(&reads_ids(self.ids, true))
            .each_element::<GatherParams>(include_str!("../shaders/gather.wgsl"))
    }
}

/// The storage format of indexes.
pub(super) fn ids_elem(
    device: &WebGpuDevice,
    ids: &WebGpuStorage,
    op: &'static str,
) -> Result<Elem> {
    let elem = device.elem(ids.dtype(), op)?;
    if elem.is_float() {
        return Err(device.unsupported(
            op,
            ids.dtype(),
            "indexes must be u8, u32, i16, i32 or i64",
        ));
    }
    Ok(elem)
}

/// WGSL that reads indexes: `id_at`. An index that is the greatest number of its dtype is skipped if `skips`, otherwise it is out of range.
pub(super) fn reads_ids(ids: Elem, skips: bool) -> String {
    let (skipped, low, fits) = match ids {
        Elem::U8 => ("id == 0xffu", "id", "true"),
        Elem::I16 => ("id == 0x7fff", "bitcast<u32>(id)", "id >= 0"),
        Elem::I32 => ("id == 0x7fffffff", "bitcast<u32>(id)", "id >= 0"),
        Elem::I64 => (
            "id.x == 0xffffffffu && id.y == 0x7fffffffu",
            "id.x",
            "id.y == 0u",
        ),
        _ => ("id == 0xffffffffu", "id", "true"),
    };
    let skipped = if skips { skipped } else { "false" };
    format!(
        "fn skipped(id: ids_t) -> bool {{ return {skipped}; }}\n\
         fn low_word(id: ids_t) -> u32 {{ return {low}; }}\n\
         fn fits(id: ids_t) -> bool {{ return {fits}; }}\n{}",
        include_str!("../shaders/ids.wgsl")
    )
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
    let dst = device.alloc(ids_l.shape().elem_count(), src.dtype(), op)?;
    let choice = Choice {
        op,
        dim,
        size: layout.dims()[dim],
    };
    if fit([src, ids, &dst]) {
        choice.launch(&dst, (src, layout), (ids, ids_l), 0)?;
        return Ok(dst);
    }
    let split = Split {
        op,
        dims: ids_l.dims(),
        unit: 1,
        bytes: dst.dtype().size_in_bytes(),
        inputs: [(ids, ids_l)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let mut part_l = layout.clone();
        for axis in (0..part.dims.len()).filter(|axis| *axis != dim) {
            part_l = part_l.narrow(axis, part.start[axis], part.dims[axis])?;
        }
        let [(ids, ids_l)] = &part.inputs;
        choice.by_windows(&part.dst, (src, &part_l), (ids, ids_l))
    })?;
    Ok(dst)
}

/// A gather or an index-select.
#[derive(Clone, Copy)]
struct Choice {
    op: &'static str,
    dim: usize,
    /// Number of elements to select from.
    size: usize,
}

impl Choice {
    /// Gathers the selected elements from windows of `src` along `dim`, one at a time.
    fn by_windows(self, dst: &WebGpuStorage, src: Operand<'_>, ids: Operand<'_>) -> Result<()> {
        let (storage, layout) = src;
        if storage.fits_binding() {
            return self.launch(dst, src, ids, 0);
        }
        let most = window_bytes(dst.device()) / storage.dtype().size_in_bytes();
        let step = layout.stride()[self.dim];
        let beside = (0..layout.dims().len()).filter(|axis| *axis != self.dim);
        let beside = beside.map(|axis| (layout.dims()[axis] - 1) * layout.stride()[axis]);
        let beside = 1 + beside.sum::<usize>();
        let others = layout.shape().elem_count() / self.size.max(1);
        // The number that a window holds, or a copy if they are far apart.
        let count = match most.checked_sub(beside) {
            Some(rest) => rest / step.max(1) + 1,
            None => most / others.max(1),
        };
        let count = count.clamp(1, self.size.max(1));
        let mut first = 0;
        while first < self.size {
            let count = count.min(self.size - first);
            let (src, layout) = reach((storage, &layout.narrow(self.dim, first, count)?))?;
            self.launch(dst, (&src, &layout), ids, first)?;
            first += count;
        }
        if self.size == 0 {
            // There is nothing to select, but invalid indexes have to be reported.
            let (src, layout) = (storage.device().alloc(1, storage.dtype(), self.op)?, layout);
            self.launch(dst, (&src, layout), ids, 0)?;
        }
        Ok(())
    }

    /// One dispatch, for the indexes of `layout` from `first` on; elements selected by other indexes are unchanged.
    fn launch(
        self,
        dst: &WebGpuStorage,
        (src, layout): Operand<'_>,
        (ids, ids_l): Operand<'_>,
        first: usize,
    ) -> Result<()> {
        let Self { op, dim, size } = self;
        let device = src.device();
        let by = ids_elem(device, ids, op)?;
        let elem = device.elem(src.dtype(), op)?.bits();
        let views = Views::new([ids_l, &layout.over(ids_l.dims(), dim, 0)])?;
        if views.len == 0 {
            return Ok(());
        }
        let count = layout.dims()[dim];
        let kernel = Gather {
            ids: by,
            elem,
            rank: views.rank,
            part: count < size,
        };
        device.run(
            &kernel,
            &[bind(ids), bind(src), bind(dst), Binding::Status],
            &GatherParams {
                dims: views.dims,
                ids_stride: views.strides[0],
                src_stride: views.strides[1],
                ids_offset: views.offsets[0],
                src_offset: views.offsets[1],
                src_step: index(layout.stride()[dim])?,
                size: index(size)?,
                first: index(first)?,
                count: index(count)?,
                len: views.len,
                op: number(op),
            },
            device.grid_of_words(views.len as usize, elem),
        )
    }
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
    let ids_l = ids_l.along(&shape, dim);
    choose(src, layout, ids, &ids_l, dim, "index-select")
}
