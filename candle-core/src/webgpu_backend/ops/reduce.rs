//! Reductions over any set of dimensions: sums, minima, maxima, and the indexes of the last two.
//!
//! The kept dimensions are moved to the front, so that each result has a row of elements, in the order of the CPU.

use super::elementwise::functions;
use super::windows::{extent, fit, halves, longest, window_bytes, Operand, Part, Split};
use super::{bind, elementwise, fill, index, Views, MOST_STEPS, WORKGROUP};
use crate::backend::BackendStorage;
use crate::op::ReduceOp;
use crate::scalar::Scalar;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
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
    // The offsets of a carry's values and indexes, and the index of a row's first element.
    carry_offset: u32,
    carry_place_offset: u32,
    first_place: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Reduce {
    op: ReduceOp,
    from: Elem,
    to: Elem,
    rank: usize,
    /// Whether a workgroup shares a row.
    group: bool,
    /// Whether the elements are earlier results, with their indexes.
    found: bool,
    /// The element type of the carry from the row's earlier elements, and whether it has indexes too.
    carry: Option<Elem>,
    carry_places: bool,
    /// Whether indexes are written in addition to the values.
    found_dst: bool,
}

impl Kernel for Reduce {
    type Params = ReduceParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { op, from, .. } = *self;
        let shader = Shader::default().view("src", from, self.rank);
        let shader = if self.found {
            shader
                .input("found", Elem::U32)
                .text("fn place_of(i: u32, j: u32) -> u32 { return found_at(i); }")
        } else {
            shader.text("fn place_of(i: u32, j: u32) -> u32 { return p.first_place + j; }")
        };
        let shader = match (self.carry, self.carry_places) {
            (None, _) => shader.text("fn before(row: u32) -> Found { return look(row, 0u); }"),
            (Some(elem), false) => shader.input("carry", elem).text(
                "fn before(row: u32) -> Found { return Found(carry_at(p.carry_offset + row), 0u); }",
            ),
            (Some(elem), true) => shader.input("carry", elem).input("carry_place", Elem::U32).text(
                "fn before(row: u32) -> Found {\n\
                 return Found(carry_at(p.carry_offset + row), carry_place_at(p.carry_place_offset + row));\n}",
            ),
        };
        let shader = shader.output("dst", self.to);
        let shader = if self.found_dst {
            shader.output("found_dst", Elem::U32).text(
                "fn keep_place(o: u32, place: u32) { found_dst_put(o, array<found_dst_t, 1>(place)); }",
            )
        } else {
            shader.text("fn keep_place(o: u32, place: u32) {}")
        };
        shader
            .constant("WG", WORKGROUP)
            .constant("SUM", op == ReduceOp::Sum)
            .constant("CARRY", self.carry.is_some())
            .constant("GREATEST", matches!(op, ReduceOp::Max | ReduceOp::ArgMax))
            .text(functions(from))
            .text(if finds_place(op) && !self.found_dst {
                "fn result(found: Found) -> dst_t { return found.place; }"
            } else {
                "fn result(found: Found) -> dst_t { return found.value; }"
            })
            .text(if self.group {
                include_str!("../shaders/reduce_group.wgsl")
            } else {
                include_str!("../shaders/reduce_alone.wgsl")
            })
            .body::<ReduceParams>(include_str!("../shaders/reduce.wgsl"))
    }
}

/// Rows shorter than this leave most of a workgroup idle.
const SHORT: u32 = 64;
/// Minimum number of rows for which one invocation per row keeps a GPU busy.
const MANY: u32 = 1 << 14;
/// Minimum length of rows that are split into parts if there are few rows.
const LONG: u32 = 1 << 14;
/// Minimum number of workgroups that keeps a large GPU busy.
const FEW: u32 = 64;
/// Minimum number of elements of a part: eight per invocation.
const CHUNK: u32 = 8 * WORKGROUP;
/// Minimum number of parts for which a workgroup joins them: a single invocation would wait for each load in sequence.
const SHARED: u32 = 16;
/// Maximum number of parts in a dispatch, if the parts are not too long for their invocations then.
const MAX_CHUNKS: u32 = 1024;
/// Maximum number of elements of a row that one invocation reduces, for each lane of a word.
const MOST_ALONE: u32 = MOST_STEPS as u32 / 4;
/// Maximum number of elements of a part that a workgroup reduces, for a single lane.
const MOST_TOGETHER: u32 = MOST_STEPS as u32 * WORKGROUP;

/// The invocations that reduce a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One invocation.
    Alone,
    /// One workgroup.
    Group,
    /// A number of workgroups, each for a part, and a second dispatch.
    Chunks(u32),
}

/// The method for `outputs` rows of `inner` elements each, contiguous in memory if `adjacent`.
fn way(outputs: u32, inner: u32, adjacent: bool) -> Way {
    let least = inner.div_ceil(MOST_TOGETHER);
    if inner < SHORT || (!adjacent && outputs >= MANY && inner <= MOST_ALONE) {
        Way::Alone
    } else if inner >= LONG && outputs < FEW {
        let chunks = inner.div_ceil(CHUNK).min(MAX_CHUNKS / outputs.max(1));
        Way::Chunks(chunks.max(least))
    } else if inner > MOST_ALONE * WORKGROUP {
        Way::Chunks(least.max(2))
    } else {
        Way::Group
    }
}

/// Whether the result is an index, not a value.
fn finds_place(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::ArgMin | ReduceOp::ArgMax)
}

/// The results for the earlier elements of each row. Offsets are those of the first row; the other rows follow.
#[derive(Clone, Copy)]
struct Carry<'a> {
    values: (&'a WebGpuStorage, usize),
    places: Option<(&'a WebGpuStorage, usize)>,
    /// Number of earlier elements.
    len: usize,
}

/// A dispatch over rows of `inner` elements, each split into `chunks` parts.
struct Pass<'a> {
    op: ReduceOp,
    src: &'a WebGpuStorage,
    /// For rows of earlier results: their indexes.
    places: Option<&'a WebGpuStorage>,
    carry: Option<Carry<'a>>,
    views: Views<1>,
    rows: u32,
    inner: u32,
    chunks: u32,
    group: bool,
}

impl<'a> Pass<'a> {
    /// Writes the results to `dst`, or values to it and their indexes to `dst_places`.
    fn run(
        &self,
        device: &WebGpuDevice,
        dst: &WebGpuStorage,
        dst_places: Option<&WebGpuStorage>,
    ) -> Result<()> {
        let op = self.op.name();
        let from = device.elem(self.src.dtype(), op)?;
        let to = device.elem(dst.dtype(), op)?;
        let carried = self.carry.map(|carry| carry.values);
        let carried_places = self.carry.and_then(|carry| carry.places);
        let accumulator = device.elem(accumulator(self.src.dtype()), op)?;
        let kernel = Reduce {
            op: self.op,
            from,
            to,
            rank: self.views.rank,
            group: self.group,
            found: self.places.is_some(),
            carry: carried.map(|_| accumulator),
            carry_places: carried_places.is_some(),
            found_dst: dst_places.is_some(),
        };
        let storage =
            |operand: Option<(&'a WebGpuStorage, usize)>| operand.map(|(storage, _)| storage);
        let inputs = [
            Some(self.src),
            self.places,
            storage(carried),
            storage(carried_places),
        ];
        let bindings: Vec<_> = inputs
            .into_iter()
            .chain([Some(dst), dst_places])
            .flatten()
            .map(bind)
            .collect();
        let outputs = self.rows * self.chunks;
        let words = outputs.div_ceil(to.lanes()) as usize;
        device.run(
            &kernel,
            &bindings,
            &ReduceParams {
                dims: self.views.dims,
                src_stride: self.views.strides[0],
                src_offset: self.views.offsets[0],
                inner: self.inner,
                chunks: self.chunks,
                chunk: self.inner.div_ceil(self.chunks),
                outputs,
                carry_offset: index(carried.map_or(0, |(_, offset)| offset))?,
                carry_place_offset: index(carried_places.map_or(0, |(_, offset)| offset))?,
                first_place: index(self.carry.map_or(0, |carry| carry.len))?,
            },
            device.grid(words, if self.group { 1 } else { WORKGROUP }),
        )
    }
}

/// The dtype in which kernels compute `dtype`.
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
    let finds_place = finds_place(op);
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

/// Reduces all dimensions except the first `kept`. `dst` may have the dtype of the arithmetic.
pub(super) fn rows_into(
    dst: &WebGpuStorage,
    op: ReduceOp,
    (src, layout): Operand<'_>,
    kept: usize,
) -> Result<()> {
    let (row, steps) = (&layout.dims()[kept..], &layout.stride()[kept..]);
    let reach = extent(row, steps) * src.dtype().size_in_bytes();
    if !src.fits_binding() && reach > window_bytes(src.device()) {
        return by_parts(dst, op, (src, layout), kept);
    }
    part_into(dst, op, (src, layout), kept, None)
}

/// Like [`rows_into`], for rows that fit a window, continuing from `carry`.
fn part_into(
    dst: &WebGpuStorage,
    op: ReduceOp,
    (src, layout): Operand<'_>,
    kept: usize,
    carry: Option<Carry<'_>>,
) -> Result<()> {
    let dims = &layout.dims()[..kept];
    let carried = carry.map_or(src, |carry| carry.values.0);
    let carried_places = carry
        .and_then(|carry| carry.places)
        .unwrap_or((carried, 0))
        .0;
    if fit([src, dst, carried, carried_places]) {
        return whole_into(dst, op, (src, layout), kept, carry);
    }
    let Some(carry) = carry else {
        return split(op, dims, [(src, layout)], dst, &mut |part| {
            let [(src, layout)] = &part.inputs;
            whole_into(&part.dst, op, (src, layout), kept, None)
        });
    };
    let rows = Layout::contiguous(dims);
    let inputs = [(src, layout), (carried, &rows), (carried_places, &rows)];
    split(op, dims, inputs, dst, &mut |part| {
        let [src, values, places] = part.inputs.each_ref().map(|(s, l)| (s, l));
        let (values, values_offset) = elementwise::in_order(values)?;
        let (places, places_offset) = elementwise::in_order(places)?;
        let carry = Carry {
            values: (&values, values_offset),
            places: carry.places.map(|_| (&places, places_offset)),
            ..carry
        };
        whole_into(&part.dst, op, src, kept, Some(carry))
    })
}

/// Computes `dst`, with an element at each index of `dims`, in parts.
fn split<const N: usize>(
    op: ReduceOp,
    dims: &[usize],
    inputs: [Operand<'_>; N],
    dst: &WebGpuStorage,
    f: &mut dyn FnMut(Part<N>) -> Result<()>,
) -> Result<()> {
    let split = Split {
        op: op.name(),
        dims,
        unit: 1,
        bytes: dst.dtype().size_in_bytes(),
        inputs,
        anywhere: false,
    };
    split.run(dst, 0, f)
}

/// Like [`part_into`], for operands that fit bindings.
fn whole_into(
    dst: &WebGpuStorage,
    op: ReduceOp,
    (src, layout): Operand<'_>,
    kept: usize,
    carry: Option<Carry<'_>>,
) -> Result<()> {
    let device = src.device();
    let (dims, row) = layout.dims().split_at(kept);
    let rows = index(dims.iter().product())?;
    let inner = index(row.iter().product())?;
    let finds_place = finds_place(op);
    let views = Views::new([layout])?;
    let adjacent = views.rank == 0 || views.strides[0][views.rank - 1] == 1;
    let whole = |group| Pass {
        op,
        src,
        places: None,
        carry,
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
            let values = device.alloc(partial, accumulator(src.dtype()), op.name())?;
            let places = if finds_place {
                Some(device.alloc(partial, DType::U32, op.name())?)
            } else {
                None
            };
            // Minima and maxima start from the carry; a sum adds it once.
            let (carry, carry_last) = match op {
                ReduceOp::Sum => (None, carry),
                _ => (carry, None),
            };
            let parts = Pass {
                chunks,
                carry,
                ..whole(true)
            };
            parts.run(device, &values, places.as_ref())?;
            let last = Pass {
                src: &values,
                places: places.as_ref(),
                carry: carry_last,
                views: Views::new([&Layout::contiguous(partial)])?,
                inner: chunks,
                ..whole(chunks >= SHARED)
            };
            last.run(device, dst, None)
        }
    }
}

/// Rows whose strides or extent exceed one binding: the parts of all rows in sequence, each continuing from the result of the earlier ones.
fn by_parts(
    dst: &WebGpuStorage,
    op: ReduceOp,
    (src, layout): Operand<'_>,
    kept: usize,
) -> Result<()> {
    let device = src.device();
    let name = op.name();
    let rows: usize = layout.dims()[..kept].iter().product();
    let most = window_bytes(device) / src.dtype().size_in_bytes();
    let (best, finds_place) = match op {
        ReduceOp::ArgMin => (ReduceOp::Min, true),
        ReduceOp::ArgMax => (ReduceOp::Max, true),
        op => (op, false),
    };
    let mut carry: Option<(WebGpuStorage, Option<WebGpuStorage>)> = None;
    let mut before = 0;
    // The remaining parts, the next one last. Indexes are searched along a single dimension, whose order this preserves.
    let mut left = vec![layout.clone()];
    while let Some(part) = left.pop() {
        let (row, steps) = (&part.dims()[kept..], &part.stride()[kept..]);
        if extent(row, steps) > most {
            let dim = longest(row, steps).unwrap_or(0);
            let [low, high] = halves(&part, kept + dim)?;
            left.extend([high, low]);
            continue;
        }
        let len: usize = row.iter().product();
        let so_far = carry.as_ref().map(|(values, places)| Carry {
            values: (values, 0),
            places: places.as_ref().map(|places| (places, 0)),
            len: before,
        });
        let values = device.alloc(rows, accumulator(src.dtype()), name)?;
        let values_carry = so_far.map(|carry| Carry {
            places: None,
            ..carry
        });
        part_into(&values, best, (src, &part), kept, values_carry)?;
        let places = if finds_place {
            let places = device.alloc(rows, DType::U32, name)?;
            part_into(&places, op, (src, &part), kept, so_far)?;
            Some(places)
        } else {
            None
        };
        carry = Some((values, places));
        before += len;
    }
    let Some((values, places)) = carry else {
        return Ok(());
    };
    let found = places.as_ref().unwrap_or(&values);
    elementwise::convert_into(found, &Layout::contiguous(rows), dst, 0)
}

#[cfg(test)]
mod tests {
    use super::{finds_place, way, Reduce, ReduceOp, Way};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_form_is_valid_wgsl() {
        use ReduceOp::*;
        for (from, sum) in [
            (Elem::F32, Elem::F32),
            (Elem::BF16, Elem::F32),
            (Elem::F64, Elem::F64),
            (Elem::U8, Elem::U32),
            (Elem::I16, Elem::I32),
            (Elem::I64, Elem::I64),
        ] {
            for op in [Sum, Min, Max, ArgMin, ArgMax] {
                for flags in 0..32 {
                    let [group, found, carry, carry_places, found_dst] =
                        std::array::from_fn(|bit| flags >> bit & 1 == 1);
                    // Indexes are written next to values of a word.
                    let to = match (finds_place(op), found_dst) {
                        (true, false) => Elem::U32,
                        _ => sum,
                    };
                    assert_valid(&Reduce {
                        op,
                        from,
                        to,
                        rank: 1,
                        group,
                        found,
                        carry: carry.then_some(sum),
                        carry_places,
                        found_dst,
                    });
                }
            }
        }
    }

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
        assert_eq!(way(64, 1 << 20, true), Way::Group);
        // More than an invocation may read.
        assert_eq!(way(63, 1 << 30, true), Way::Chunks(128));
        assert_eq!(way(1 << 14, 1 << 14, false), Way::Group);
        assert_eq!(way(64, 1 << 22, true), Way::Chunks(2));
    }
}
