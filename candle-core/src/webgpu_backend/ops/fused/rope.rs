//! Rotary position embedding (Su et al., arXiv 2104.09864).

use super::super::copy2d::{copy2d, Rows};
use super::super::windows::{fit, Operand, Split};
use super::super::{bind, elementwise, index, WORKGROUP};
use super::float_elem;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result, Shape};

params!(RopeParams {
    x_offset: u32,
    x_batch: u32,
    x_head: u32,
    x_seq: u32,
    x_dim: u32,
    cos_offset: u32,
    cos_batch: u32,
    cos_seq: u32,
    cos_dim: u32,
    sin_offset: u32,
    sin_batch: u32,
    sin_seq: u32,
    sin_dim: u32,
    len: u32,
    heads: u32,
    rotated: u32,
    seq: u32,
    dim: u32,
    // Of a cache: the heads before those that go there, and its steps.
    queries: u32,
    cache_offset: u32,
    cache_batch: u32,
    cache_head: u32,
    cache_seq: u32,
});

/// Where the keys and values of a rotation go.
#[derive(Clone, Copy)]
pub struct RopeCache<'a> {
    /// Written from `position` on: `(batch, heads - queries, capacity, dim)`, contiguous.
    pub cache: (&'a WebGpuStorage, &'a Layout),
    /// The first place along the capacity that is written.
    pub position: usize,
    /// The first heads of the input: the result. Those after them go to the cache.
    pub queries: usize,
}

/// Which elements of a head turn together, and in which order the dimensions come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    /// `x[i]` with `x[i + dim / 2]`, in `(batch, heads, seq, dim)`.
    HalfSplit,
    /// `x[2 * i]` with `x[2 * i + 1]`, in `(batch, heads, seq, dim)`.
    Interleaved,
    /// As `HalfSplit`, in `(batch, seq, heads, dim)`.
    Thd,
}

/// `cos` or `sin`, `(seq, dim / 2)` or `(batch, seq, dim / 2)`, over the three leading dimensions of `x`.
fn over(layout: &Layout, dims: [usize; 3], seq_axis: usize) -> Result<Layout> {
    let [batch, seq, dim] = match *layout.stride() {
        [seq, dim] => [0, seq, dim],
        [batch, seq, dim] => [batch, seq, dim],
        _ => crate::bail!(
            "rope needs cos and sin of shape (seq, dim / 2) or (batch, seq, dim / 2), got {:?}",
            layout.shape()
        ),
    };
    let half = layout.dims()[layout.dims().len() - 1];
    let mut stride = vec![batch, 0, 0, dim];
    stride[seq_axis] = seq;
    let [a, b, c] = dims;
    Ok(Layout::new(
        Shape::from((a, b, c, half)),
        stride,
        layout.start_offset(),
    ))
}

/// Turns each pair of elements of the first `rotated` heads of `x` by its position's angle; other heads are copied. `x` is 4D,
/// any strides; the result is contiguous in its shape.
#[allow(clippy::too_many_arguments)]
pub fn rope(
    x: &WebGpuStorage,
    x_l: &Layout,
    cos: &WebGpuStorage,
    cos_l: &Layout,
    sin: &WebGpuStorage,
    sin_l: &Layout,
    kind: RopeKind,
    rotated: usize,
) -> Result<WebGpuStorage> {
    let (d0, d1, d2, dim) = x_l.shape().dims4()?;
    if !dim.is_multiple_of(2) {
        crate::bail!("rope turns pairs, so the last dimension must be even, got {dim}");
    }
    let dst = x.device().alloc(x_l.shape().elem_count(), x.dtype(), OP)?;
    let (_, seq_axis) = axes(kind);
    let dims = [d0, d1, d2];
    let (cos_l, sin_l) = (over(cos_l, dims, seq_axis)?, over(sin_l, dims, seq_axis)?);
    let operands = [(x, x_l), (cos, &cos_l), (sin, &sin_l)];
    if fit([x, cos, sin, &dst]) {
        rope_into(&dst, operands, kind, rotated, None)?;
        return Ok(dst);
    }
    let split = Split {
        op: OP,
        dims: &dims,
        unit: dim,
        bytes: dim * x.dtype().size_in_bytes(),
        inputs: operands,
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let operands = part.inputs.each_ref().map(|(s, l)| (s, l));
        let rotated = rotated.saturating_sub(part.start[axes(kind).0]);
        rope_into(&part.dst, operands, kind, rotated, None)
    })?;
    Ok(dst)
}

/// As [`rope`] on `[x, cos, sin]`, of which only the first heads are the result, `(batch, queries, seq, dim)`; the others, keys
/// and values, go straight into a cache, whose buffer is written in place.
pub fn rope_append(
    [(x, x_l), (cos, cos_l), (sin, sin_l)]: [Operand<'_>; 3],
    kind: RopeKind,
    rotated: usize,
    into: RopeCache<'_>,
) -> Result<WebGpuStorage> {
    let (cache, cache_l) = into.cache;
    let (batch, heads, seq, dim) = x_l.shape().dims4()?;
    let (cache_batch, cache_heads, capacity, cache_dim) = cache_l.shape().dims4()?;
    let fits = (cache_batch, cache_heads + into.queries, cache_dim) == (batch, heads, dim)
        && into.position + seq <= capacity
        && cache_l.is_contiguous()
        && cache_l.start_offset().is_multiple_of(2)
        && cache.dtype() == x.dtype()
        && dim.is_multiple_of(2)
        && kind != RopeKind::Thd;
    if !fits {
        crate::bail!(
            "rope: keys and values of {:?} {:?} without its first {} heads do not fit into a cache of {:?} {:?} from {} on",
            x.dtype(),
            x_l.shape(),
            into.queries,
            cache.dtype(),
            cache_l.shape(),
            into.position
        )
    }
    if !fit([x, cos, sin, cache]) {
        return rope_then_copy([(x, x_l), (cos, cos_l), (sin, sin_l)], kind, rotated, into);
    }
    let dst = x
        .device()
        .alloc(batch * into.queries * seq * dim, x.dtype(), OP)?;
    let dims = [batch, heads, seq];
    let (cos_l, sin_l) = (over(cos_l, dims, 2)?, over(sin_l, dims, 2)?);
    let operands = [(x, x_l), (cos, &cos_l), (sin, &sin_l)];
    rope_into(&dst, operands, kind, rotated, Some(into))?;
    Ok(dst)
}

/// The same where a binding does not reach all of a tensor.
fn rope_then_copy(
    [(x, x_l), (cos, cos_l), (sin, sin_l)]: [Operand<'_>; 3],
    kind: RopeKind,
    rotated: usize,
    into: RopeCache<'_>,
) -> Result<WebGpuStorage> {
    let turned = rope(x, x_l, cos, cos_l, sin, sin_l, kind, rotated)?;
    let (batch, heads, seq, dim) = x_l.shape().dims4()?;
    let (cache, cache_l) = into.cache;
    let capacity = cache_l.dims()[2];
    let kept = heads - into.queries;
    for b in 0..batch {
        let rows = Rows {
            d1: kept,
            d2: seq * dim,
            src_stride: seq * dim,
            dst_stride: capacity * dim,
            src_offset: (b * heads + into.queries) * seq * dim,
            dst_offset: cache_l.start_offset() + (b * kept * capacity + into.position) * dim,
        };
        copy2d(&turned, &mut cache.share(), rows)?;
    }
    let queries = Layout::contiguous(x_l.shape()).narrow(1, 0, into.queries)?;
    elementwise::copy(&turned, &queries)
}

const OP: &str = "rope";

/// The dimensions of heads and of positions.
fn axes(kind: RopeKind) -> (usize, usize) {
    match kind {
        RopeKind::Thd => (2, 1),
        _ => (1, 2),
    }
}

/// `x`, `cos` and `sin` over one shape but for the last dimension.
fn rope_into(
    dst: &WebGpuStorage,
    [(x, x_l), (cos, cos_l), (sin, sin_l)]: [Operand<'_>; 3],
    kind: RopeKind,
    rotated: usize,
    into: Option<RopeCache<'_>>,
) -> Result<()> {
    let device = x.device();
    let elem = float_elem(device, x.dtype(), OP)?;
    let (head_axis, seq_axis) = axes(kind);
    let len = x_l.shape().elem_count();
    let dims = x_l.dims();
    let stride = x_l.stride();
    let steps = |layout: &Layout| -> Result<[u32; 3]> {
        let stride = layout.stride();
        Ok([
            index(stride[0])?,
            index(stride[seq_axis])?,
            index(stride[3])?,
        ])
    };
    let [cos_batch, cos_seq, cos_dim] = steps(cos_l)?;
    let [sin_batch, sin_seq, sin_dim] = steps(sin_l)?;
    let key = Key::new(OP)
        .elem(elem)
        .with(kind as u32, 2)
        .with(into.is_some().into(), 1);
    let mut bindings = vec![bind(x), bind(cos), bind(sin), bind(dst)];
    let mut cache_steps = [0; 4];
    if let Some(RopeCache {
        cache: (cache, layout),
        position,
        ..
    }) = into
    {
        bindings.push(bind(cache));
        let step = layout.stride();
        cache_steps = [
            index(layout.start_offset() + position * step[2])?,
            index(step[0])?,
            index(step[1])?,
            index(step[2])?,
        ];
    }
    let [cache_offset, cache_batch, cache_head, cache_seq] = cache_steps;
    device.launch(
        key,
        || {
            let into_cache = if into.is_some() { " into a cache" } else { "" };
            let shader = Shader::new(format!("rope {kind:?} {elem:?}{into_cache}"))
                .input("x", elem)
                .input("cos_table", elem)
                .input("sin_table", elem)
                .output("dst", elem);
            let shader = match into {
                Some(_) => shader
                    .output("cache", elem)
                    .text(include_str!("../../shaders/rope_cache.wgsl")),
                None => shader.text(include_str!("../../shaders/rope_whole.wgsl")),
            };
            shader
                .constant("WG", WORKGROUP)
                .constant("INTERLEAVED", kind == RopeKind::Interleaved)
                .constant("HEADS_LAST", kind == RopeKind::Thd)
                .body::<RopeParams>(include_str!("../../shaders/rope.wgsl"))
        },
        &bindings,
        &RopeParams {
            x_offset: index(x_l.start_offset())?,
            x_batch: index(stride[0])?,
            x_head: index(stride[head_axis])?,
            x_seq: index(stride[seq_axis])?,
            x_dim: index(stride[3])?,
            cos_offset: index(cos_l.start_offset())?,
            cos_batch,
            cos_seq,
            cos_dim,
            sin_offset: index(sin_l.start_offset())?,
            sin_batch,
            sin_seq,
            sin_dim,
            len: index(len)?,
            heads: index(dims[head_axis])?,
            rotated: index(rotated)?,
            seq: index(dims[seq_axis])?,
            dim: index(dims[3])?,
            queries: index(into.map_or(dims[head_axis], |into| into.queries))?,
            cache_offset,
            cache_batch,
            cache_head,
            cache_seq,
        },
        device.grid(len.div_ceil(elem.lanes() as usize), WORKGROUP),
    )
}
