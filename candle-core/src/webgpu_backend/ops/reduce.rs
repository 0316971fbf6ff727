//! Reductions over any set of dimensions: sums, least and greatest elements, and where those are.
//!
//! The dimensions that stay are moved to the front, so that each result has a row of elements, in the order of the CPU.

use super::copy2d::{copy2d, Rows};
use super::elementwise::functions;
use super::windows::{fit, reach, room, Operand, Split};
use super::{bind, elementwise, fill, index, Views, WORKGROUP};
use crate::backend::BackendStorage;
use crate::op::ReduceOp;
use crate::scalar::Scalar;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Error, Layout, Result};

params!(ReduceParams {
    dims: Dims,
    src_stride: Dims,
    src_offset: u32,
    inner: u32,
    chunks: u32,
    chunk: u32,
    outputs: u32,
});

/// Rows shorter than this leave most of a workgroup idle.
const SHORT: u32 = 64;
/// So many invocations keep a GPU busy, one to a row.
const MANY: u32 = 1 << 14;
/// Rows from this length on are cut into parts where there are few of them.
const LONG: u32 = 1 << 14;
/// Fewer workgroups than this leave a large GPU idle.
const FEW: u32 = 64;
/// Elements of a part at the least: eight to an invocation.
const CHUNK: u32 = 8 * WORKGROUP;
/// From so many parts on a workgroup joins them: one invocation waits for each before it asks for the next.
const SHARED: u32 = 16;
/// The most parts in a dispatch.
const MAX_CHUNKS: u32 = 1024;

/// Who reduces a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One invocation.
    Alone,
    /// One workgroup.
    Group,
    /// So many workgroups, each a part, and a second dispatch.
    Chunks(u32),
}

/// The way to reduce `outputs` rows of `inner` elements each, which lie next to each other if `adjacent`.
fn way(outputs: u32, inner: u32, adjacent: bool) -> Way {
    if inner < SHORT || (!adjacent && outputs >= MANY) {
        Way::Alone
    } else if inner >= LONG && outputs < FEW {
        Way::Chunks(inner.div_ceil(CHUNK).min(MAX_CHUNKS / outputs.max(1)))
    } else {
        Way::Group
    }
}

/// A dispatch over rows of `inner` elements, each cut into `chunks` parts.
struct Pass<'a> {
    op: ReduceOp,
    src: &'a WebGpuStorage,
    /// For rows of earlier results: where those were found.
    places: Option<&'a WebGpuStorage>,
    views: Views<1>,
    rows: u32,
    inner: u32,
    chunks: u32,
    group: bool,
}

impl Pass<'_> {
    /// Writes the results to `dst`, or values to it and their places to `dst_places`.
    fn run(
        &self,
        device: &WebGpuDevice,
        dst: &WebGpuStorage,
        dst_places: Option<&WebGpuStorage>,
    ) -> Result<()> {
        let op = self.op.name();
        let from = device.elem(self.src.dtype(), op)?;
        let to = device.elem(dst.dtype(), op)?;
        let finds_place = matches!(self.op, ReduceOp::ArgMin | ReduceOp::ArgMax);
        let key = Key::new("reduce")
            .with(self.op as u32, 3)
            .elem(from)
            .elem(to)
            .with(self.views.rank as u32, 4)
            .with(self.group.into(), 1)
            .with(self.places.is_some().into(), 1)
            .with(dst_places.is_some().into(), 1);
        let bindings: Vec<_> = [Some(self.src), self.places, Some(dst), dst_places]
            .into_iter()
            .flatten()
            .map(bind)
            .collect();
        let outputs = self.rows * self.chunks;
        let words = outputs.div_ceil(to.lanes()) as usize;
        device.launch(
            key,
            || {
                let label = format!("{op} {from:?}->{to:?} rank{}", self.views.rank);
                let mut shader = Shader::new(label).input("src", from);
                let mut place_of = "j";
                if self.places.is_some() {
                    shader = shader.input("found", Elem::U32);
                    place_of = "found_at(i)";
                }
                shader = shader.output("dst", to);
                let mut keep = "";
                if dst_places.is_some() {
                    shader = shader.output("found_dst", Elem::U32);
                    keep = "found_dst_put(o, array<found_dst_t, 1>(place));";
                }
                let result = match finds_place && dst_places.is_none() {
                    true => "place",
                    false => "value",
                };
                let wins = match self.op {
                    ReduceOp::Max | ReduceOp::ArgMax => "f_gt",
                    _ => "f_lt",
                };
                shader
                    .strided("src", self.views.rank)
                    .constant("WG", WORKGROUP)
                    .constant("SUM", self.op == ReduceOp::Sum)
                    .text(functions(from))
                    .text(&format!(
                        "fn wins(a: src_t, b: src_t) -> bool {{ return {wins}(a, b) == 1u; }}\n\
                         fn place_of(i: u32, j: u32) -> u32 {{ return {place_of}; }}\n\
                         fn result(found: Found) -> dst_t {{ return found.{result}; }}\n\
                         fn keep_place(o: u32, place: u32) {{ {keep} }}"
                    ))
                    .text(match self.group {
                        true => include_str!("../shaders/reduce_group.wgsl"),
                        false => include_str!("../shaders/reduce_alone.wgsl"),
                    })
                    .body::<ReduceParams>(include_str!("../shaders/reduce.wgsl"))
            },
            &bindings,
            &ReduceParams {
                dims: self.views.dims,
                src_stride: self.views.strides[0],
                src_offset: self.views.offsets[0],
                inner: self.inner,
                chunks: self.chunks,
                chunk: self.inner.div_ceil(self.chunks),
                outputs,
            },
            device.grid(words, if self.group { 1 } else { WORKGROUP }),
        )
    }
}

/// The dtype that kernels compute `dtype` in.
pub(super) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        DType::U8 => DType::U32,
        DType::I16 => DType::I32,
        other => other,
    }
}

/// Reduces `dims`; the result is contiguous, in the order of the other dimensions.
pub(in super::super) fn reduce(
    src: &WebGpuStorage,
    op: ReduceOp,
    layout: &Layout,
    dims: &[usize],
) -> Result<WebGpuStorage> {
    let name = op.name();
    let device = src.device();
    let kept: Vec<usize> = (0..layout.dims().len())
        .filter(|dim| !dims.contains(dim))
        .collect();
    let count = |dims: &[usize]| dims.iter().map(|&dim| layout.dims()[dim]).product();
    let rows = index(count(&kept))?;
    let inner = index(count(dims))?;
    let finds_place = matches!(op, ReduceOp::ArgMin | ReduceOp::ArgMax);
    let dtype = if finds_place { DType::U32 } else { src.dtype() };
    if inner == 0 && op != ReduceOp::Sum {
        return Err(Error::EmptyTensor { op: name }.bt());
    }
    let mut dst = device.alloc(rows as usize, dtype, name)?;
    if rows == 0 {
        return Ok(dst);
    }
    if inner == 0 {
        let all = Layout::contiguous(rows as usize);
        fill::const_set(&mut dst, Scalar::zero(dtype), &all)?;
        return Ok(dst);
    }
    let order: Vec<usize> = kept.iter().chain(dims).copied().collect();
    rows_into(&dst, op, (src, &layout.permute(&order)?), kept.len())?;
    Ok(dst)
}

/// Reduces all dimensions but the first `kept` ones. `dst` may be of the dtype that kernels compute in.
pub(super) fn rows_into(
    dst: &WebGpuStorage,
    op: ReduceOp,
    (src, layout): Operand<'_>,
    kept: usize,
) -> Result<()> {
    let name = op.name();
    let device = src.device();
    let (dims, row) = layout.dims().split_at(kept);
    if !fit([src, dst]) {
        let bytes = row.iter().product::<usize>() * src.dtype().size_in_bytes();
        if bytes > room(device) {
            return long_rows_into(dst, op, (src, layout), kept);
        }
        let split = Split {
            op: name,
            dims,
            unit: 1,
            bytes: dst.dtype().size_in_bytes(),
            inputs: [(src, layout)],
            anywhere: false,
        };
        return split.run(dst, 0, &mut |part| {
            let [(src, layout)] = &part.inputs;
            rows_into(&part.dst, op, (src, layout), kept)
        });
    }
    let rows = index(dims.iter().product())?;
    let inner = index(row.iter().product())?;
    let finds_place = matches!(op, ReduceOp::ArgMin | ReduceOp::ArgMax);
    let views = Views::new([layout])?;
    let adjacent = views.rank == 0 || views.strides[0][views.rank - 1] == 1;
    let whole = |group| Pass {
        op,
        src,
        places: None,
        views,
        rows,
        inner,
        chunks: 1,
        group,
    };
    match way(rows, inner, adjacent) {
        Way::Alone => whole(false).run(device, dst, None),
        Way::Group => whole(true).run(device, dst, None),
        Way::Chunks(chunks) => {
            // Every part must have an element.
            let chunks = inner.div_ceil(inner.div_ceil(chunks));
            let partial = (rows * chunks) as usize;
            let values = device.alloc(partial, accumulator(src.dtype()), name)?;
            let places = match finds_place {
                true => Some(device.alloc(partial, DType::U32, name)?),
                false => None,
            };
            let parts = Pass {
                chunks,
                ..whole(true)
            };
            parts.run(device, &values, places.as_ref())?;
            let last = Pass {
                src: &values,
                places: places.as_ref(),
                views: Views::new([&Layout::contiguous(partial)])?,
                inner: chunks,
                ..whole(chunks >= SHARED)
            };
            last.run(device, dst, None)
        }
    }
}

/// Rows that one binding does not reach: each is reduced in parts, then the parts' results.
///
/// The least and the greatest are looked for from the row's first element on, and a NaN counts only there. So a part starts with that
/// element as well; where a part's result is its first element, an earlier part has the same, and wins.
fn long_rows_into(
    dst: &WebGpuStorage,
    op: ReduceOp,
    (src, layout): Operand<'_>,
    kept: usize,
) -> Result<()> {
    let device = src.device();
    let name = op.name();
    let (rows, row) = layout.dims().split_at(kept);
    let (rows, len) = (
        rows.iter().product::<usize>(),
        row.iter().product::<usize>(),
    );
    let copy;
    let (src, offset) = match layout.is_contiguous() {
        true => (src, layout.start_offset()),
        false => {
            copy = elementwise::copy(src, layout)?;
            (&copy, 0)
        }
    };
    let most = room(device) / src.dtype().size_in_bytes() - 1;
    let parts = len.div_ceil(most);
    let (best, finds_place) = match op {
        ReduceOp::ArgMin => (ReduceOp::Min, true),
        ReduceOp::ArgMax => (ReduceOp::Max, true),
        op => (op, false),
    };
    let mut values = device.alloc(rows * parts, accumulator(src.dtype()), name)?;
    let mut places = device.alloc(if finds_place { rows * parts } else { 0 }, DType::U32, name)?;
    let element = |at| Rows::range(1, 0, at);
    for at in 0..rows * parts {
        let (first, start) = (offset + at / parts * len, at % parts * most);
        let count = most.min(len - start);
        let piece = Layout::contiguous_with_offset(count, first + start);
        let (piece, layout) = if op == ReduceOp::Sum || start == 0 {
            reach((src, &piece))?
        } else {
            let mut piece = device.alloc(1 + count, src.dtype(), name)?;
            copy2d(src, &mut piece, Rows::range(1, first, 0))?;
            copy2d(src, &mut piece, Rows::range(count, first + start, 1))?;
            (piece, Layout::contiguous(1 + count))
        };
        let value = device.alloc(1, values.dtype(), name)?;
        rows_into(&value, best, (&piece, &layout), 0)?;
        copy2d(&value, &mut values, element(at))?;
        if finds_place {
            let place = device.alloc(1, DType::U32, name)?;
            rows_into(&place, op, (&piece, &layout), 0)?;
            let behind = start.saturating_sub(1) as f64;
            let place = elementwise::affine(&place, &Layout::contiguous(1), 1., behind)?;
            copy2d(&place, &mut places, element(at))?;
        }
    }
    let results = Layout::contiguous((rows, parts));
    if !finds_place {
        return rows_into(dst, op, (&values, &results), 1);
    }
    let winner = device.alloc(rows, DType::U32, name)?;
    rows_into(&winner, op, (&values, &results), 1)?;
    let ids = Layout::contiguous((rows, 1));
    let found = super::indexing::gather(&places, &results, &winner, &ids, 1)?;
    elementwise::convert_into(&found, &Layout::contiguous(rows), dst, 0)
}

#[cfg(test)]
mod tests {
    use super::{way, Way};

    #[test]
    fn rows_are_shared_by_their_length_and_number() {
        // Short rows, however many.
        assert_eq!(way(1, 63, true), Way::Alone);
        assert_eq!(way(1 << 20, 8, true), Way::Alone);
        // Norms and softmax.
        assert_eq!(way(1, 64, true), Way::Group);
        assert_eq!(way(512, 8192, true), Way::Group);
        assert_eq!(way(63, (1 << 14) - 1, true), Way::Group);
        // Many columns, whose neighbours are read together.
        assert_eq!(way(1 << 14, 4096, false), Way::Alone);
        assert_eq!(way(64, 4096, false), Way::Group);
        // A vocabulary, and the sum of everything.
        assert_eq!(way(1, 128_256, true), Way::Chunks(63));
        assert_eq!(way(1, 1 << 30, true), Way::Chunks(1024));
        assert_eq!(way(63, 1 << 30, true), Way::Chunks(16));
        assert_eq!(way(64, 1 << 20, true), Way::Group);
    }
}
