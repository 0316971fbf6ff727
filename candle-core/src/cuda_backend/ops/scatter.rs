//! Elements written by index: the counterpart of `indexing.rs`.
//!
//! Updates of one element are applied in their order, as on the CPU, so results are the same each time. Without that order, atomic sums
//! would depend on the timing of threads.

use super::elementwise;
use super::indexing::ids_type;
use super::sort::arg_sort;
use crate::backend::BackendStorage;
use crate::cuda_backend::elem::bits_type;
use crate::cuda_backend::faults;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::{index_type, is_wide, Walk};
use crate::cuda_backend::CudaStorage;
use crate::{Error, Layout, Result, Shape};

/// Maximum number of updates that one thread processes.
const FEW: usize = 32;
/// Minimum number of positions for which one thread per position keeps a card busy.
const MANY: usize = 1 << 15;

type Updates<'a> = crate::updates::Updates<'a, CudaStorage>;

/// `dst[.., ids[.., i, ..], ..] = src[.., i, ..]` in place, or `+=` if `add`. If several elements have the same index, the last one counts,
/// or they are added in order.
pub(in crate::cuda_backend) fn scatter(
    dst: &mut CudaStorage,
    layout: &Layout,
    updates: Updates<'_>,
    add: bool,
) -> Result<()> {
    let op = if add { "scatter-add" } else { "scatter" };
    update(dst, layout, updates, add, op)
}

/// A contiguous copy of `src` with slice `i` of `add_src` added to slice `ids[i]` along `dim`.
pub(in crate::cuda_backend) fn index_add(
    src: &CudaStorage,
    layout: &Layout,
    ids: &CudaStorage,
    ids_l: &Layout,
    add_src: &CudaStorage,
    add_l: &Layout,
    dim: usize,
) -> Result<CudaStorage> {
    let dst = elementwise::copy(src, layout)?;
    let updates = Updates {
        ids,
        ids_l: &ids_l.along(add_l.dims(), dim),
        src: add_src,
        src_l: add_l,
        dim,
    };
    let dst_l = Layout::contiguous(layout.shape());
    update(&dst, &dst_l, updates, true, "index-add")?;
    Ok(dst)
}

fn update(
    dst: &CudaStorage,
    layout: &Layout,
    updates: Updates<'_>,
    add: bool,
    op: &'static str,
) -> Result<()> {
    let device = dst.device();
    let dtype = dst.dtype();
    if updates.src.dtype() != dtype {
        let (lhs, rhs) = (dtype, updates.src.dtype());
        return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt());
    }
    let c_type = device.c_type(dtype, op)?;
    let id = ids_type(updates.ids, op)?;
    let len = updates.ids_l.shape().elem_count();
    if len == 0 {
        return Ok(());
    }
    let Updates {
        ids,
        ids_l,
        src,
        src_l,
        dim,
    } = updates;
    let count = ids_l.dims()[dim];
    let sorted = count > FEW && len / count < MANY;
    let mut shape = ids_l.dims().to_vec();
    if !sorted {
        shape[dim] = 1;
    }
    let still = |layout: &Layout| layout.over(&shape, dim, 0);
    let source = if sorted {
        source!("functions", "ids", "scatter", => "scatter_sorted")
    } else {
        source!("functions", "ids", "scatter", => "scatter_columns")
    };
    let kernel = Kernel::new(source)
        .define("ID", id)
        .define(
            "T",
            if add {
                c_type
            } else {
                bits_type(dtype.size_in_bytes())
            },
        )
        .define("ADD", add);
    let define = |rank: usize, index: &str| {
        let wide = index == index_type(true) || is_wide(&[layout, ids_l, src_l]);
        kernel
            .define("RANK", rank)
            .define("INDEX", index_type(wide))
    };
    let operands = [still(ids_l), still(src_l), still(layout)];
    let [ids_v, src_v, dst_v] = &operands;
    let args = |args: Args| args.storage(ids).storage(src).storage(dst);
    let steps = [ids_l, src_l, layout].map(|layout| layout.stride()[dim] as u64);
    let end = |args: Args| {
        args.value(steps)
            .size(count)
            .size(layout.dims()[dim])
            .value(device.faults().address())
            .value(faults::code(op))
    };
    if !sorted {
        let walk = Walk::new([ids_v, src_v, dst_v])?;
        let args = end(args(Args::new()).value(walk.views));
        let kernel = define(walk.rank, walk.index());
        return device.launch(&kernel, Grid::of_threads(walk.len()), args);
    }
    let (order, order_l) = order(&updates, op)?;
    let mut place = vec![0; shape.len()];
    place[dim] = 1;
    let place = Layout::new(Shape::from(shape.as_slice()), place, 0);
    let walk = Walk::new([&order_l, ids_v, src_v, dst_v, &place])?;
    let args = end(args(Args::new().storage(&order)).value(walk.views));
    let kernel = define(walk.rank, walk.index());
    device.launch(&kernel, Grid::of_threads(walk.len()), args)
}

/// For each position of the other dimensions the updates in the order of their indexes, contiguous; in the shape of the updates.
fn order(updates: &Updates<'_>, op: &'static str) -> Result<(CudaStorage, Layout)> {
    let Updates {
        ids, ids_l, dim, ..
    } = *updates;
    let rank = ids_l.dims().len();
    let others: Vec<usize> = (0..rank).filter(|axis| *axis != dim).collect();
    let count = ids_l.dims()[dim];
    let mut strides = vec![0; rank];
    strides[dim] = 1;
    let shared = others
        .iter()
        .all(|&axis| ids_l.dims()[axis] == 1 || ids_l.stride()[axis] == 0);
    let sorted = if shared {
        let vector = Layout::new(
            Shape::from(count),
            vec![ids_l.stride()[dim]],
            ids_l.start_offset(),
        );
        arg_sort(ids, &vector, true, op)?
    } else {
        let mut step = count;
        for &axis in others.iter().rev() {
            strides[axis] = step;
            step *= ids_l.dims()[axis];
        }
        let axes: Vec<usize> = others.into_iter().chain([dim]).collect();
        arg_sort(ids, &ids_l.permute(&axes)?, true, op)?
    };
    let layout = Layout::new(ids_l.shape().clone(), strides, 0);
    Ok((sorted, layout))
}
