//! Rotates queries and keys and appends keys and values to a cache.

use super::{angles, Kind, Rope};
use crate::ops::{check_dtypes, in_graph};
use candle_core::{Result, Tensor};

/// Which elements of a head make a pair; see the [module above](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `i` and `i + head_dim / 2`, as [`super::rope`] has them.
    Halves,
    /// `2 i` and `2 i + 1`, as [`super::rope_i`] has them.
    Neighbours,
}

impl Pairs {
    fn kind(self) -> Kind {
        match self {
            Self::Halves => Kind::HalfSplit,
            Self::Neighbours => Kind::Interleaved,
        }
    }
}

/// Rotates the queries and keys of `xs`, (batch, queries + 2 * kv_heads, seq, head_dim), where the heads of the queries come first,
/// then those of the keys, then those of the values. Keys and values are written to `cache`, (batch, 2 * kv_heads, capacity,
/// head_dim), from `position` on, in place; the result are the queries, (batch, queries, seq, head_dim).
///
/// On a WebGPU device this is one kernel. Not in upstream's interface.
///
/// # Errors
/// Those of [`super::rope`], or `cache` is not contiguous, does not fit `xs`, or ends before.
pub fn rope_append(
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    pairs: Pairs,
    cache: &Tensor,
    position: usize,
) -> Result<Tensor> {
    let queries = check(xs, cache, position)?;
    let kind = pairs.kind();
    let (cos, sin) = (angles(kind, xs, cos)?, angles(kind, xs, sin)?);
    check_dtypes("rope-append", &[xs, &cos, &sin, cache])?;
    if xs.elem_count() == 0 || !xs.device().is_webgpu() || in_graph(&[xs, &cos, &sin, cache]) {
        return rope_append_slow(xs, &cos, &sin, pairs, cache, position);
    }
    let rope = Append {
        rope: Rope {
            kind,
            rotated: queries + (xs.dim(1)? - queries) / 2,
        },
        cache,
        position,
        queries,
    };
    xs.apply_op3_no_bwd(&cos, &sin, &rope)
}

/// The plain form of [`rope_append`].
///
/// # Errors
/// Those of [`rope_append`].
pub fn rope_append_slow(
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    pairs: Pairs,
    cache: &Tensor,
    position: usize,
) -> Result<Tensor> {
    let queries = check(xs, cache, position)?;
    let kv_heads = cache.dim(1)? / 2;
    let rotated = queries + kv_heads;
    let turned = super::apply(pairs.kind(), xs, cos, sin, Some(rotated))?;
    let new = turned.narrow(1, queries, 2 * kv_heads)?;
    if new.elem_count() > 0 {
        cache.slice_set(&new.contiguous()?, 2, position)?;
    }
    turned.narrow(1, 0, queries)?.contiguous()
}

/// The number of query heads.
fn check(xs: &Tensor, cache: &Tensor, position: usize) -> Result<usize> {
    let (batch, heads, seq, dim) = xs.dims4()?;
    let (cache_batch, kv_heads, capacity, cache_dim) = cache.dims4()?;
    let fits = (batch, dim) == (cache_batch, cache_dim)
        && kv_heads <= heads
        && kv_heads.is_multiple_of(2)
        && position + seq <= capacity
        && cache.is_contiguous();
    if !fits {
        candle_core::bail!(
            "rope-append: keys and values of {:?} do not fit into a cache of {:?} (batch, 2 * kv_heads, capacity, head_dim), \
             contiguous: {}, from {position} on",
            xs.dims(),
            cache.dims(),
            cache.is_contiguous()
        )
    }
    Ok(heads - kv_heads)
}

/// A rotation whose last heads go to a cache. All but `rope` is read by the WebGPU form alone, which not every build has.
#[allow(dead_code)]
struct Append<'a> {
    rope: Rope,
    cache: &'a Tensor,
    position: usize,
    queries: usize,
}

impl candle_core::CustomOp3 for Append<'_> {
    fn name(&self) -> &'static str {
        self.rope.name()
    }

    fn cpu_fwd(
        &self,
        _: &candle_core::CpuStorage,
        _: &candle_core::Layout,
        _: &candle_core::CpuStorage,
        _: &candle_core::Layout,
        _: &candle_core::CpuStorage,
        _: &candle_core::Layout,
    ) -> Result<(candle_core::CpuStorage, candle_core::Shape)> {
        candle_core::bail!("rope-append: on the CPU this is made of other ops")
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            x: &candle_core::WebGpuStorage,
            x_l: &candle_core::Layout,
            cos: &candle_core::WebGpuStorage,
            cos_l: &candle_core::Layout,
            sin: &candle_core::WebGpuStorage,
            sin_l: &candle_core::Layout,
        ) -> Result<(candle_core::WebGpuStorage, candle_core::Shape)> {
            use candle_core::webgpu_backend::ops::fused;
            let (batch, _, seq, dim) = x_l.shape().dims4()?;
            let (storage, cache_l) = self.cache.storage_and_layout();
            let candle_core::Storage::WebGpu(cache) = &*storage else {
                candle_core::bail!(
                    "rope-append: the input is on a WebGPU device, the cache on {:?}",
                    self.cache.device()
                )
            };
            let into = fused::RopeCache {
                cache: (cache, cache_l),
                position: self.position,
                queries: self.queries,
            };
            let inputs = [(x, x_l), (cos, cos_l), (sin, sin_l)];
            let dst = fused::rope_append(inputs, self.rope.webgpu_kind(), self.rope.rotated, into)?;
            let shape = candle_core::Shape::from((batch, self.queries, seq, dim));
            Ok((dst, shape))
        }
    }
}
