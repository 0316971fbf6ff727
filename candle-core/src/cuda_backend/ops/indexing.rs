//! Elements read by index. Indexes select along one dimension; all other dimensions are iterated in parallel.
//!
//! An index that is the greatest number of its dtype is skipped; its element is 0. One that is out of range is reported to the host, which
//! returns an error when it next waits for the card.

use crate::backend::BackendStorage;
use crate::cuda_backend::elem::{bits_type, common_unit};
use crate::cuda_backend::faults;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::{index_type, is_wide, Walk};
use crate::cuda_backend::CudaStorage;
use crate::{Layout, Result, Shape};

/// The C++ type of indexes.
pub(super) fn ids_type(ids: &CudaStorage, op: &'static str) -> Result<&'static str> {
    let device = ids.device();
    if ids.dtype().is_int() {
        device.c_type(ids.dtype(), op)
    } else {
        Err(device.unsupported(op, ids.dtype(), "indexes must be u8, u32, i16, i32 or i64"))
    }
}

/// The source of a selection: elements, or runs of them that are moved as one.
struct Source<'a> {
    storage: &'a CudaStorage,
    layout: Layout,
    /// Bytes of an element or a run.
    unit: usize,
}

impl Source<'_> {
    /// `dst[.., i, ..] = src[.., ids[.., i, ..], ..]`; `dst` has the shape of `ids_l`.
    fn choose(
        &self,
        (ids, ids_l): (&CudaStorage, &Layout),
        dst: &CudaStorage,
        dim: usize,
        op: &'static str,
    ) -> Result<()> {
        let device = dst.device();
        let walk = Walk::new([ids_l, &self.layout.over(ids_l.dims(), dim, 0)])?;
        let wide = walk.index() == index_type(true) || is_wide(&[&self.layout]);
        let kernel = Kernel::new(source!("ids", => "gather"))
            .define("ID", ids_type(ids, op)?)
            .define("BITS", bits_type(self.unit))
            .define("RANK", walk.rank)
            .define("INDEX", index_type(wide));
        let args = Args::new()
            .storage(ids)
            .storage(self.storage)
            .storage(dst)
            .value(walk.views)
            .size(self.layout.stride()[dim])
            .size(self.layout.dims()[dim])
            .value(device.faults().address())
            .value(faults::code(op));
        device.launch(&kernel, Grid::of_threads(walk.len()), args)
    }
}

pub(in crate::cuda_backend) fn gather(
    src: &CudaStorage,
    layout: &Layout,
    ids: &CudaStorage,
    ids_l: &Layout,
    dim: usize,
) -> Result<CudaStorage> {
    const OP: &str = "gather";
    let device = src.device();
    device.c_type(src.dtype(), OP)?;
    let dst = device.new_storage(ids_l.shape().elem_count(), src.dtype(), OP)?;
    let source = Source {
        storage: src,
        layout: layout.clone(),
        unit: src.dtype().size_in_bytes(),
    };
    source.choose((ids, ids_l), &dst, dim, OP)?;
    Ok(dst)
}

/// `layout` with its last, contiguous elements merged into units: the largest unit that divides every offset.
fn in_units<'a>(storage: &'a CudaStorage, layout: &Layout, dim: usize) -> Source<'a> {
    let size = storage.dtype().size_in_bytes();
    let rank = layout.dims().len();
    let (dims, strides) = (layout.dims(), layout.stride());
    // The elements that share an index.
    let mut run = 1;
    let mut first = rank;
    while first > dim + 1 && (dims[first - 1] == 1 || strides[first - 1] == run) {
        first -= 1;
        run *= dims[first];
    }
    let places = strides[..first].iter().zip(dims);
    let places = places.filter(|(_, size)| **size > 1);
    let places = places.map(|(stride, _)| *stride);
    let bytes = places
        .chain([run, layout.start_offset()])
        .map(|n| (n * size) as u64);
    let unit = common_unit(bytes.chain([storage.address()])).max(size);
    let lanes = unit / size;
    let mut dims = dims[..first].to_vec();
    let mut strides: Vec<_> = strides[..first].iter().map(|n| n / lanes).collect();
    dims.push(run / lanes);
    strides.push(1);
    Source {
        storage,
        layout: Layout::new(Shape::from(dims), strides, layout.start_offset() / lanes),
        unit,
    }
}

/// `dst[.., i, ..] = src[.., ids[i], ..]`.
pub(in crate::cuda_backend) fn index_select(
    src: &CudaStorage,
    ids: &CudaStorage,
    layout: &Layout,
    ids_l: &Layout,
    dim: usize,
) -> Result<CudaStorage> {
    const OP: &str = "index-select";
    let device = src.device();
    device.c_type(src.dtype(), OP)?;
    let source = in_units(src, layout, dim);
    let mut shape = source.layout.dims().to_vec();
    shape[dim] = ids_l.shape().elem_count();
    let len: usize = shape.iter().product();
    let dst = device.new_storage(
        len * (source.unit / src.dtype().size_in_bytes()),
        src.dtype(),
        OP,
    )?;
    source.choose((ids, &ids_l.along(&shape, dim)), &dst, dim, OP)?;
    Ok(dst)
}
