//! Rotary position embedding (Su et al., arXiv 2104.09864), with the norms of heads before it and a cache after it.

use super::super::indexing::number;
use super::super::windows::{fit, Operand, Split};
use super::super::{bind, index, MOST_STEPS, WORKGROUP};
use super::float_elem;
use crate::backend::BackendStorage;
use crate::fused::RopeKind;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::queue::Binding;
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
    // The number of query heads, which are first, and the end of the rotated heads.
    queries: u32,
    rotated: u32,
    seq: u32,
    dim: u32,
    // The number of rotated elements of a head, from the first on.
    rotary: u32,
    // Offset and stride of the norms' weights.
    norms_offset: u32,
    norms_head: u32,
    norms_dim: u32,
    eps: f32,
    // For a cache: its strides, the positions at which sequences continue, and the op's code in the status buffer.
    cache_offset: u32,
    cache_batch: u32,
    cache_head: u32,
    cache_seq: u32,
    capacity: u32,
    position: u32,
    positions_offset: u32,
    positions_step: u32,
    op: u32,
});

/// A rotation of heads, with norms before it.
pub type Rotation<'a> = crate::fused::Rotation<'a, WebGpuStorage>;
/// The index in a cache at which a sequence continues.
pub type RopePosition<'a> = crate::fused::RopePosition<'a, WebGpuStorage>;
/// The destination of the keys and values of a rotation.
pub type RopeCache<'a> = crate::fused::RopeCache<'a, WebGpuStorage>;

/// The op's name in errors about positions on the device.
const APPEND: &str = "rope-append";
const OP: &str = "rope";

/// `cos` or `sin`, `(seq, n)` or `(batch, seq, n)`, over the three leading dimensions of `x`.
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

/// `cos` and `sin` over `x`; the layout of `x` replaces theirs if nothing is rotated.
fn angles_over(
    x_l: &Layout,
    [cos_l, sin_l]: [&Layout; 2],
    rotation: &Rotation<'_>,
) -> Result<[Layout; 2]> {
    let (d0, d1, d2, dim) = x_l.shape().dims4()?;
    if !dim.is_multiple_of(2) || rotation.rotary > dim || !rotation.rotary.is_multiple_of(2) {
        crate::bail!(
            "rope rotates pairs: the last dimension and its rotated part must be even, got {dim} and {}",
            rotation.rotary
        );
    }
    if rotation.rotary == 0 {
        return Ok([x_l.clone(), x_l.clone()]);
    }
    let (_, seq_axis) = axes(rotation.kind);
    let over = |layout| over(layout, [d0, d1, d2], seq_axis);
    Ok([over(cos_l)?, over(sin_l)?])
}

/// Applies `rotation` to `[x, cos, sin]`. `x` is 4D, any strides; the result is contiguous in its shape.
pub fn rope(
    [(x, x_l), (cos, cos_l), (sin, sin_l)]: [Operand<'_>; 3],
    rotation: Rotation<'_>,
) -> Result<WebGpuStorage> {
    let (d0, d1, d2, dim) = x_l.shape().dims4()?;
    let dst = x.device().alloc(x_l.shape().elem_count(), x.dtype(), OP)?;
    let [cos_l, sin_l] = angles_over(x_l, [cos_l, sin_l], &rotation)?;
    let operands = [(x, x_l), (cos, &cos_l), (sin, &sin_l)];
    if fit([x, cos, sin, &dst]) {
        rope_into(&dst, operands, rotation, None)?;
        return Ok(dst);
    }
    let split = Split {
        op: OP,
        dims: &[d0, d1, d2],
        unit: dim,
        bytes: dim * x.dtype().size_in_bytes(),
        inputs: operands,
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let operands = part.inputs.each_ref().map(|(s, l)| (s, l));
        let before = part.start[axes(rotation.kind).0];
        let queries = rotation.queries.saturating_sub(before);
        let rotated = (rotation.queries + rotation.keys).saturating_sub(before);
        let rotation = Rotation {
            queries,
            keys: rotated - queries,
            ..rotation
        };
        rope_into(&part.dst, operands, rotation, None)
    })?;
    Ok(dst)
}

/// Whether [`rope_append`] supports these storages: `x`, cos, sin and the cache.
pub fn rope_append_fits(storages: [&WebGpuStorage; 4]) -> bool {
    fit(storages)
}

/// Like [`rope`] on `[x, cos, sin]`, but returns only the queries, `(batch, queries, seq, dim)`; keys and values are written to a cache, in
/// place. All of them have to fit a binding.
pub fn rope_append(
    [(x, x_l), (cos, cos_l), (sin, sin_l)]: [Operand<'_>; 3],
    rotation: Rotation<'_>,
    into: RopeCache<'_>,
) -> Result<WebGpuStorage> {
    let shape = into.check((x, x_l), &rotation)?;
    if !into.cache.1.start_offset().is_multiple_of(2) {
        crate::bail!(
            "rope: the cache starts at element {}; the start must be even",
            into.cache.1.start_offset()
        )
    }
    let len = shape.iter().product();
    let dst = x.device().alloc(len, x.dtype(), OP)?;
    let [cos_l, sin_l] = angles_over(x_l, [cos_l, sin_l], &rotation)?;
    let operands = [(x, x_l), (cos, &cos_l), (sin, &sin_l)];
    rope_into(&dst, operands, rotation, Some(into))?;
    Ok(dst)
}

/// The indices of the heads' and the positions' dimensions.
fn axes(kind: RopeKind) -> (usize, usize) {
    match kind {
        RopeKind::Thd => (2, 1),
        _ => (1, 2),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Rope {
    kind: RopeKind,
    elem: Elem,
    norms: bool,
    cache: Option<Elem>,
    places: Places,
}

/// Where new positions go in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Places {
    /// From one place on in all rows of a batch.
    Same,
    /// From a place on in each row.
    PerRow,
    /// Each to a separate place.
    Each,
}

impl Rope {
    /// Number of elements that are written at once: a word of the result or of the cache, whichever has more.
    fn unit(&self) -> u32 {
        let cache = self.cache.map_or(1, Elem::lanes);
        self.elem.lanes().max(cache)
    }
}

impl Kernel for Rope {
    type Params = RopeParams;

    fn shader(&self, caps: &Caps) -> Shader {
        let Self { kind, elem, .. } = *self;
        let mut shader = Shader::default()
            .input("x", elem)
            .input("cos_table", elem)
            .input("sin_table", elem)
            .output("dst", elem)
            .constant("UNIT", self.unit());
        if self.norms {
            shader = shader.input("norms", elem);
        }
        shader = match self.cache {
            Some(cache) => shader
                .output("cache", cache)
                .text(include_str!("../../shaders/rope_cache.wgsl")),
            None => shader.text(include_str!("../../shaders/rope_whole.wgsl")),
        };
        let positions = |shader: Shader| shader.input("positions", Elem::U32).status();
        shader = match self.places {
            Places::Same => shader.text(
                "fn place_in_cache(batch: u32, seq: u32) -> u32 { return p.position + seq; }",
            ),
            Places::PerRow => {
                positions(shader).text(include_str!("../../shaders/rope_positions.wgsl"))
            }
            Places::Each => positions(shader).text(include_str!("../../shaders/rope_places.wgsl")),
        };
        shader = if self.norms {
            shader
                .sums(caps, NORMS_WORKGROUP, 1)
                .text(include_str!("../../shaders/rope_norms.wgsl"))
        } else {
            shader
                .constant("WG", WORKGROUP)
                .text(include_str!("../../shaders/rope_plain.wgsl"))
        };
        shader
            .constant("INTERLEAVED", kind == RopeKind::Interleaved)
            .constant("HEADS_LAST", kind == RopeKind::Thd)
            .body::<RopeParams>(include_str!("../../shaders/rope.wgsl"))
    }
}

/// Invocations that share a head with a norm.
const NORMS_WORKGROUP: u32 = 64;
/// Maximum `head_dim` with a norm: an invocation iterates over its share twice.
const MOST_NORMED: usize = MOST_STEPS / 4 * NORMS_WORKGROUP as usize;

/// `x`, `cos` and `sin` have the same shape except for the last dimension.
fn rope_into(
    dst: &WebGpuStorage,
    [(x, x_l), (cos, cos_l), (sin, sin_l)]: [Operand<'_>; 3],
    rotation: Rotation<'_>,
    into: Option<RopeCache<'_>>,
) -> Result<()> {
    let device = x.device();
    let (head_axis, seq_axis) = axes(rotation.kind);
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
    let cache_elem = |into: RopeCache<'_>| float_elem(device, into.cache.0.dtype(), APPEND);
    if rotation.norms.is_some() && dims[3] > MOST_NORMED {
        crate::bail!(
            "{OP} with norms takes heads of up to {MOST_NORMED} elements, got {}",
            dims[3]
        )
    }
    let kernel = Rope {
        kind: rotation.kind,
        elem: float_elem(device, x.dtype(), OP)?,
        norms: rotation.norms.is_some(),
        cache: into.map(cache_elem).transpose()?,
        places: match into.map(|into| into.position) {
            None | Some(RopePosition::Same(_)) => Places::Same,
            Some(RopePosition::PerRow(_)) => Places::PerRow,
            Some(RopePosition::Each(_)) => Places::Each,
        },
    };
    let mut params = RopeParams {
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
        queries: index(rotation.queries)?,
        rotated: index(rotation.queries + rotation.keys)?,
        seq: index(dims[seq_axis])?,
        dim: index(dims[3])?,
        rotary: index(rotation.rotary)?,
        op: number(APPEND),
        ..bytemuck::Zeroable::zeroed()
    };
    let mut bindings = vec![bind(x), bind(cos), bind(sin), bind(dst)];
    if let Some(((norms, layout), eps)) = rotation.norms {
        bindings.push(bind(norms));
        let step = layout.stride();
        params.norms_offset = index(layout.start_offset())?;
        params.norms_head = index(step[0])?;
        params.norms_dim = index(step[1])?;
        params.eps = eps;
    }
    if let Some(into) = into {
        let (cache, layout) = into.cache;
        bindings.push(bind(cache));
        let step = layout.stride();
        params.cache_offset = index(layout.start_offset())?;
        params.cache_batch = index(step[0])?;
        params.cache_head = index(step[1])?;
        params.cache_seq = index(step[2])?;
        params.capacity = index(layout.dims()[2])?;
        match into.position {
            RopePosition::Same(position) => params.position = index(position)?,
            RopePosition::PerRow((positions, layout)) | RopePosition::Each((positions, layout)) => {
                if kernel.places == Places::Each {
                    params.cache_batch = 0;
                }
                bindings.extend([bind(positions), Binding::Status]);
                params.positions_offset = index(layout.start_offset())?;
                params.positions_step = index(layout.stride()[0])?;
            }
        }
    }
    let grid = if kernel.norms {
        device.grid(len / dims[3].max(1), 1)
    } else {
        device.grid(len.div_ceil(kernel.unit() as usize), WORKGROUP)
    };
    device.run(&kernel, &bindings, &params, grid)
}

#[cfg(test)]
mod tests {
    use super::{Places, Rope, RopeKind};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_form_is_valid_wgsl() {
        use RopeKind::*;
        for kind in [HalfSplit, Interleaved, Thd] {
            for elem in [Elem::F32, Elem::F16, Elem::BF16] {
                for cache in [None, Some(Elem::F32), Some(Elem::F16)] {
                    for (flags, places) in
                        (0..6).zip([Places::Same, Places::PerRow, Places::Each].repeat(2))
                    {
                        assert_valid(&Rope {
                            kind,
                            elem,
                            norms: flags >= 3,
                            cache,
                            places: if cache.is_some() {
                                places
                            } else {
                                Places::Same
                            },
                        });
                    }
                }
            }
        }
    }
}
