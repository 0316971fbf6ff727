//! Reductions over any set of dimensions: sums, minima, maxima, and the indexes of the last two.
//!
//! Each result has a row of elements. If the elements of a row are adjacent, the threads that share a row are too; if those of neighbouring
//! rows are, neighbouring threads process neighbouring rows. A few long rows are split into parts, whose results a second pass joins. The
//! order of a sum depends only on shapes and the card, so that a sum is the same each time.

use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid, BLOCK};
use crate::cuda_backend::views::{index_type, Walk};
use crate::cuda_backend::{CudaDevice, CudaStorage};
use crate::op::ReduceOp;
use crate::{DType, Error, Layout, Result, Shape};

/// Minimum number of loads of a thread for splitting a row into parts.
const LOADS: usize = 8;
/// Minimum number of loads per lane for which a block reduces a row instead of a warp.
const WARP_LOADS: usize = 16;

/// Whether the result is an index, not a value.
fn finds_place(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::ArgMin | ReduceOp::ArgMax)
}

/// The dtype of partial results.
fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        DType::U8 => DType::U32,
        DType::I16 => DType::I32,
        other => other,
    }
}

/// Elements, and for earlier results their indexes.
struct Elements<'a> {
    values: &'a CudaStorage,
    places: Option<&'a CudaStorage>,
    /// The offsets of rows, in the order of the results, and of a row's elements relative to them.
    kept: Walk<1>,
    reduced: Walk<1>,
}

impl<'a> Elements<'a> {
    /// `kept` and `reduced`: sizes and strides.
    fn new(
        values: &'a CudaStorage,
        offset: usize,
        kept: &[(usize, usize)],
        reduced: &[(usize, usize)],
    ) -> Result<Self> {
        let walk = |dims: &[(usize, usize)], offset| {
            let shape = Shape::from_dims(&dims.iter().map(|(size, _)| *size).collect::<Vec<_>>());
            let strides = dims.iter().map(|(_, stride)| *stride).collect();
            Walk::new([&Layout::new(shape, strides, offset)])
        };
        Ok(Self {
            values,
            places: None,
            kept: walk(kept, offset)?,
            reduced: walk(reduced, 0)?,
        })
    }

    /// Sizes and strides of a walk that does not count as contiguous.
    fn dims(walk: &Walk<1>) -> impl Iterator<Item = (usize, usize)> + '_ {
        let dims = walk.views.dims.iter().zip(&walk.views.strides[0]);
        dims.take(walk.rank)
            .map(|(size, stride)| (*size as usize, *stride as usize))
    }

    /// The size of the last dimension if its elements are contiguous, 0 otherwise.
    fn run(walk: &Walk<1>) -> usize {
        match Self::dims(walk).last() {
            None => walk.len(),
            Some((size, 1)) => size,
            Some(_) => 0,
        }
    }

    /// The strides of `walk`, except those within runs.
    fn steps(walk: &Walk<1>, runs: bool) -> Vec<usize> {
        let mut dims: Vec<_> = Self::dims(walk).collect();
        if walk.rank == 0 && walk.len() > 1 {
            dims.push((walk.len(), 1));
        }
        let run = dims.pop_if(|(_, stride)| runs && *stride == 1);
        let steps = dims.iter().map(|(_, stride)| *stride);
        // A single run may end anywhere; one of several begins where the previous one ends.
        let run = run.filter(|_| !dims.is_empty()).map(|(size, _)| size);
        steps.chain(run).collect()
    }

    /// Number of neighbours along a walk with runs that a thread loads at once: the greatest that divides every offset.
    fn lanes(&self, along: &Walk<1>, other: &Walk<1>) -> usize {
        let size = self.values.dtype().size_in_bytes();
        let address = self.values.address() + self.kept.views.offsets[0] * size as u64;
        let mut steps = Self::steps(along, true);
        steps.extend(Self::steps(other, false));
        let fits = |lanes: usize| {
            address.is_multiple_of((lanes * size) as u64)
                && steps.iter().all(|step| step.is_multiple_of(lanes))
        };
        let mut lanes = 16 / size;
        while lanes > 1 && !fits(lanes) {
            lanes /= 2;
        }
        lanes
    }
}

/// The number of threads of a row, and its division into parts.
struct Way {
    by_column: bool,
    lanes: usize,
    /// Threads of a row, or columns of a block in units of `lanes`.
    group: usize,
    chunks: usize,
    chunk: usize,
}

impl Way {
    fn new(elements: &Elements<'_>, multiprocessors: usize) -> Self {
        let (rows, len) = (elements.kept.len(), elements.reduced.len());
        let beside = Elements::run(&elements.kept);
        if beside > 1 && Elements::run(&elements.reduced) <= 1 {
            let mut lanes = elements.lanes(&elements.kept, &elements.reduced);
            // A single run of columns must not end within a thread's columns either.
            while !rows.is_multiple_of(lanes) || (lanes > 1 && rows / lanes < 32 * multiprocessors)
            {
                lanes /= 2;
            }
            let group = (rows / lanes).next_power_of_two().min(32);
            let blocks = rows.div_ceil(group * lanes);
            let down = BLOCK as usize / group;
            let (chunks, chunk) = parts(len, down * LOADS, 8 * multiprocessors / blocks, 1);
            return Self {
                by_column: true,
                lanes,
                group,
                chunks,
                chunk,
            };
        }
        let lanes = match Elements::run(&elements.reduced) {
            0 => 1,
            _ => elements.lanes(&elements.reduced, &elements.kept),
        };
        let loads = len.div_ceil(lanes);
        let group = match loads {
            0..=32 => loads.next_power_of_two(),
            _ if loads <= 32 * WARP_LOADS && rows >= 8 * multiprocessors => 32,
            _ => BLOCK as usize,
        };
        let (chunks, chunk) = if group == BLOCK as usize {
            parts(
                len,
                group * lanes * LOADS,
                4 * multiprocessors / rows,
                lanes,
            )
        } else {
            (1, len)
        };
        Self {
            by_column: false,
            lanes,
            group,
            chunks,
            chunk,
        }
    }
}

/// Splits `len` elements into at most `most` parts of at least `least`, except the last; returns their number, and the length of each, a
/// multiple of `unit`.
fn parts(len: usize, least: usize, most: usize, unit: usize) -> (usize, usize) {
    let chunks = (len / least).min(most).max(1);
    let chunk = len.div_ceil(chunks).next_multiple_of(unit);
    (len.div_ceil(chunk), chunk)
}

/// One pass; the results are written to `dst`, or values to it and their indexes to `dst_places`.
fn pass(
    device: &CudaDevice,
    op: ReduceOp,
    elements: &Elements<'_>,
    way: &Way,
    (dst, dst_places): (&CudaStorage, Option<&CudaStorage>),
    partial: bool,
) -> Result<()> {
    let name = op.name();
    let source = if way.by_column {
        source!("functions", "reduce", => "reduce_columns")
    } else {
        source!("functions", "reduce", => "reduce_rows")
    };
    let index = [elements.kept.index(), elements.reduced.index()];
    let kernel = Kernel::new(source)
        .define("T", device.c_type(elements.values.dtype(), name)?)
        .define("DST", device.c_type(dst.dtype(), name)?)
        .define("SUM", op == ReduceOp::Sum)
        .define(
            "WINS",
            match op {
                ReduceOp::Max | ReduceOp::ArgMax => "f_gt",
                _ => "f_lt",
            },
        )
        .define("PLACES", finds_place(op))
        .define("FOUND", elements.places.is_some())
        .define("PARTIAL", partial)
        .define("KEPT_RANK", elements.kept.rank)
        .define("REDUCED_RANK", elements.reduced.rank)
        .define("LANES", way.lanes)
        .define("INDEX", index_type(index.contains(&"u64")))
        .define("BY_BLOCK", way.group == BLOCK as usize);
    let rows = elements.kept.len();
    let blocks = if way.by_column {
        rows.div_ceil(way.group * way.lanes) * way.chunks
    } else {
        (rows * way.chunks).div_ceil(BLOCK as usize / way.group)
    };
    let args = Args::new()
        .storage(elements.values)
        .storage_or_null(elements.places)
        .storage(dst)
        .storage_or_null(dst_places)
        .value(elements.kept.views)
        .value(elements.reduced.views)
        .size(way.chunk)
        .size(way.chunks)
        .value(way.group.trailing_zeros());
    device.launch(&kernel, Grid::of_rows(blocks, BLOCK), args)
}

/// The errors that the CPU returns as well.
fn check(op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<()> {
    let sizes = layout.dims();
    if let Some(&dim) = dims.iter().find(|&&dim| dim >= sizes.len()) {
        return Err(Error::DimOutOfRange {
            shape: layout.shape().clone(),
            dim: dim as i32,
            op: op.name(),
        }
        .bt());
    }
    if finds_place(op) && dims.len() != 1 {
        return Err(Error::OnlySingleDimension {
            op: op.name(),
            dims: dims.to_vec(),
        }
        .bt());
    }
    if op != ReduceOp::Sum && dims.iter().any(|&dim| sizes[dim] == 0) {
        return Err(Error::EmptyTensor { op: op.name() }.bt());
    }
    Ok(())
}

/// Reduces `dims`; the result is contiguous, in the order of the other dimensions.
pub(in crate::cuda_backend) fn reduce(
    src: &CudaStorage,
    op: ReduceOp,
    layout: &Layout,
    dims: &[usize],
) -> Result<CudaStorage> {
    check(op, layout, dims)?;
    let name = op.name();
    let device = src.device();
    let dim = |dim: usize| (layout.dims()[dim], layout.stride()[dim]);
    let (reduced, kept): (Vec<usize>, Vec<usize>) =
        (0..layout.dims().len()).partition(|dim| dims.contains(dim));
    let kept: Vec<_> = kept.into_iter().map(dim).collect();
    let mut reduced: Vec<_> = reduced.into_iter().map(dim).collect();
    if op == ReduceOp::Sum {
        // In the order of memory, independent of the order of the dimensions.
        reduced.sort_by_key(|(_, stride)| std::cmp::Reverse(*stride));
    }
    let rows: usize = kept.iter().map(|(size, _)| size).product();
    let len: usize = reduced.iter().map(|(size, _)| size).product();
    let dtype = if finds_place(op) {
        DType::U32
    } else {
        src.dtype()
    };
    device.c_type(src.dtype(), name)?;
    let mut dst = device.new_storage(rows, dtype, name)?;
    if rows == 0 || len == 0 {
        dst.clear()?;
        return Ok(dst);
    }
    let elements = Elements::new(src, layout.start_offset(), &kept, &reduced)?;
    let multiprocessors = device.card().multiprocessors;
    let way = Way::new(&elements, multiprocessors);
    if way.chunks == 1 {
        pass(device, op, &elements, &way, (&dst, None), false)?;
        return Ok(dst);
    }
    let values = device.new_storage(rows * way.chunks, accumulator(src.dtype()), name)?;
    let places = if finds_place(op) {
        Some(device.new_storage(rows * way.chunks, DType::U32, name)?)
    } else {
        None
    };
    pass(
        device,
        op,
        &elements,
        &way,
        (&values, places.as_ref()),
        true,
    )?;
    // By column the parts of all columns are consecutive, by row those of one row.
    let (row_step, part_step) = if way.by_column {
        (1, rows)
    } else {
        (way.chunks, 1)
    };
    let joined = Elements {
        places: places.as_ref(),
        ..Elements::new(&values, 0, &[(rows, row_step)], &[(way.chunks, part_step)])?
    };
    // A pass without further splitting: the number of parts is at most the number of elements of one.
    let last = Way {
        chunks: 1,
        chunk: way.chunks,
        ..Way::new(&joined, multiprocessors)
    };
    pass(device, op, &joined, &last, (&dst, None), false)?;
    Ok(dst)
}
