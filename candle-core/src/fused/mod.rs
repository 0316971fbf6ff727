//! Ops of candle-nn that a device has kernels for which do in one or two launches what would take many.
//!
//! [`Fused`] lists them; each has a twin made of plain ops in candle-nn, which says what it computes. The types here are what the ops
//! take, for every backend.

#[cfg(any(feature = "cuda", feature = "webgpu"))]
pub(crate) mod attention;
mod gate;
mod linear;

pub use gate::{Activation, Gate};
pub use linear::{LinearExtras, LinearWeight};

use crate::backend::BackendStorage;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
use crate::DType;
use crate::{Layout, Result, Storage};

/// A storage and what of it an op reads.
pub type Operand<'a, S> = (&'a S, &'a Layout);

/// What a tensor of the input's shape does to a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BesideNorm {
    /// Added to the input; the sums are kept in front of the result.
    AddBefore,
    /// The input is multiplied with its silu.
    GateBefore,
    /// Added to the result.
    AddAfter,
    /// The result is multiplied with its silu.
    GateAfter,
}

/// Which norm, and what goes with it.
#[derive(Debug)]
pub struct Norm<'a, S> {
    /// Its name, for errors.
    pub op: &'static str,
    /// Whether the mean is taken off: layer norm, not RMS norm.
    pub centred: bool,
    /// What the result is multiplied with: an element for each place of the last dimension.
    pub weight: Option<Operand<'a, S>>,
    /// What is added then.
    pub bias: Option<Operand<'a, S>>,
    /// Added to the mean square.
    pub eps: f32,
    /// A tensor of the input's shape, and what it is for.
    pub beside: Option<(BesideNorm, Operand<'a, S>)>,
}

/// Which elements of a head are rotated together, and in which order the dimensions come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// `x[i]` with `x[i + rotary / 2]`, in `(batch, heads, seq, dim)`.
    HalfSplit,
    /// `x[2 * i]` with `x[2 * i + 1]`, in `(batch, heads, seq, dim)`.
    Interleaved,
    /// As `HalfSplit`, in `(batch, seq, heads, dim)`.
    Thd,
}

/// What happens to heads.
#[derive(Debug)]
pub struct Rotation<'a, S> {
    /// Which elements are rotated together.
    pub kind: RopeKind,
    /// The first elements of a head that are rotated, an even number. Where it is 0, cos and sin are anything that can be bound.
    pub rotary: usize,
    /// The first heads, with the first norm.
    pub queries: usize,
    /// The heads after those, with the second norm. All others are copied.
    pub keys: usize,
    /// Weights, `(2, dim)`, and epsilon of the RMS norms of both, which come before the rotation.
    pub norms: Option<(Operand<'a, S>, f32)>,
}

/// Where a sequence goes on in a cache.
#[derive(Debug)]
pub enum RopePosition<'a, S> {
    /// The same for all.
    Same(usize),
    /// `(batch)`, u32.
    PerRow(Operand<'a, S>),
    /// `(batch, seq)`, contiguous u32: of each new position, in one cache for all sequences, whose batch is 1.
    Each(Operand<'a, S>),
}

/// Where the keys and values of a rotation go.
#[derive(Debug)]
pub struct RopeCache<'a, S> {
    /// Written in place: `(batch, heads - queries, capacity, dim)`, contiguous, of any float dtype.
    pub cache: Operand<'a, S>,
    /// The first places along the capacity that are written.
    pub position: RopePosition<'a, S>,
}

/// Where keys and values are that all rows of a batch have in pages of one pool.
#[derive(Debug)]
pub struct SdpaPages<'a, S> {
    /// (batch, columns), contiguous u32: key `i` of a row is key `table[row][i / page] * page + i % page` of the pool.
    pub table: Operand<'a, S>,
    /// Keys of a page, a power of two.
    pub page: usize,
    /// Pages of the pool.
    pub count: usize,
}

/// How attention weighs keys. A query's position is `start + query`, of `starts` or `keys - queries`.
#[derive(Debug)]
pub struct SdpaParams<'a, S> {
    /// Factor of the scores, commonly `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// The keys further back than that from a query's position are hidden.
    pub left: Option<usize>,
    /// The keys further ahead than that are hidden: 0 is causal.
    pub right: Option<usize>,
    /// Added to the scores, -infinity hiding a key: (batch, heads, queries, keys) of any strides.
    pub bias: Option<Operand<'a, S>>,
    /// (heads), contiguous f32: times the distance of query and key, subtracted from the scores.
    pub slopes: Option<Operand<'a, S>>,
    /// (heads), contiguous f32: a score without a value. Where there are `slopes` too, in the same storage.
    pub sinks: Option<Operand<'a, S>>,
    /// (batch), contiguous u32: the positions of the first queries.
    pub starts: Option<Operand<'a, S>>,
    /// (batch), contiguous u32: how many keys there are.
    pub lens: Option<Operand<'a, S>>,
    /// With it, the batches of k and v are one, of stride 0: the first keys of a pool of `pages.count * pages.page` keys.
    pub pages: Option<SdpaPages<'a, S>>,
}

#[cfg(any(feature = "cuda", feature = "webgpu"))]
impl<S: BackendStorage> RopeCache<'_, S> {
    /// Refuses what does not fit the keys and values of `x`, `(batch, heads, seq, dim)`; gives `(batch, queries, seq, dim)`, the shape of
    /// the rotated queries.
    pub(crate) fn check(
        &self,
        (x, x_l): Operand<'_, S>,
        rotation: &Rotation<'_, S>,
    ) -> Result<[usize; 4]> {
        let (cache, cache_l) = self.cache;
        let (batch, heads, seq, dim) = x_l.shape().dims4()?;
        let (cache_batch, cache_heads, capacity, cache_dim) = cache_l.shape().dims4()?;
        let position_fits = match self.position {
            RopePosition::Same(position) => position <= capacity.saturating_sub(seq),
            RopePosition::PerRow((positions, layout)) => {
                layout.dims() == [batch] && positions.dtype() == DType::U32
            }
            RopePosition::Each((positions, layout)) => {
                layout.dims() == [batch, seq]
                    && layout.is_contiguous()
                    && positions.dtype() == DType::U32
            }
        };
        let batches = match self.position {
            RopePosition::Each(_) => 1,
            _ => batch,
        };
        let fits = (cache_batch, cache_heads + rotation.queries, cache_dim)
            == (batches, heads, dim)
            && (seq <= capacity || batches != batch)
            && position_fits
            && cache_l.is_contiguous()
            && rotation.kind != RopeKind::Thd;
        if !fits {
            crate::bail!(
                "rope: keys and values of {:?} {:?} without its first {} heads do not fit into a cache of {:?} {:?}",
                x.dtype(),
                x_l.shape(),
                rotation.queries,
                cache.dtype(),
                cache_l.shape(),
            )
        }
        Ok([batch, rotation.queries, seq, dim])
    }
}

/// They hold references alone, whatever the storage is.
macro_rules! copied {
    ($($name:ident),+) => {$(
        impl<S> Clone for $name<'_, S> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<S> Copy for $name<'_, S> {}
    )+};
}
copied!(
    LinearWeight,
    LinearExtras,
    Norm,
    Rotation,
    RopePosition,
    RopeCache,
    SdpaPages,
    SdpaParams
);

/// u32 numbers that say how a row's token is drawn: the seed's low and high half, the position, whether it is the token with the greatest
/// logit, top-k (at least 1), then the bits of top-p, min-p and 1 / temperature, three f32.
pub const DRAW_WORDS: usize = 8;

/// Refuses what does not fit [`Fused::draw`]; gives rows and vocabulary.
#[cfg(any(feature = "cuda", feature = "webgpu"))]
pub(crate) fn check_draw(
    logits: &Layout,
    logits_dtype: DType,
    draws: &Layout,
    draws_dtype: DType,
) -> Result<[usize; 2]> {
    let (rows, len) = logits.shape().dims2()?;
    let fits = (logits_dtype, draws_dtype) == (DType::F32, DType::U32)
        && draws.dims() == [rows, DRAW_WORDS]
        && logits.is_contiguous()
        && draws.is_contiguous()
        && rows > 0
        && (1..1 << 24).contains(&len);
    if !fits {
        crate::bail!(
            "draw: settings of {draws_dtype:?} {:?} do not fit logits of {logits_dtype:?} {:?}; expected contiguous f32 (rows, vocab) \
             with less than 2^24 tokens, and contiguous u32 (rows, {DRAW_WORDS})",
            draws.shape(),
            logits.shape(),
        )
    }
    Ok([rows, len])
}

/// A storage whose device has kernels for the fused ops. Inputs have any strides, results are contiguous.
pub trait Fused: BackendStorage {
    /// What its devices are called, for errors.
    const DEVICE: &'static str;

    /// The storage, if it is one of this backend.
    fn of(storage: &Storage) -> Option<&Self>;

    /// `exp(x) / sum(exp(x))` over the last dimension, stable for large inputs.
    ///
    /// # Errors
    /// The dtype is no float that the device computes with, or there is no last dimension.
    fn softmax_last_dim(x: Operand<'_, Self>) -> Result<Self>;

    /// A token of each row of `logits`, `(rows, vocab)` in contiguous f32, by the settings in its row of `draws`, `(rows, DRAW_WORDS)` in
    /// contiguous u32: `(2, rows)` in u32, the tokens, then how many logits of each row are unusable. candle-nn's `sampling::draw` says
    /// which token, and makes the settings.
    ///
    /// # Errors
    /// Sizes or dtypes do not fit each other, or a vocabulary has 2²⁴ tokens or more.
    fn draw(logits: Operand<'_, Self>, draws: Operand<'_, Self>) -> Result<Self>;

    /// `norm` of the rows of `x`, in its shape; with [`BesideNorm::AddBefore`] the sums, then their norms.
    ///
    /// # Errors
    /// As above, or the tensor beside has another shape.
    fn norm(x: Operand<'_, Self>, norm: Norm<'_, Self>) -> Result<Self>;

    /// `gate` of its argument and of what passes it, elementwise over two tensors of one shape.
    ///
    /// # Errors
    /// The dtype is no float that the device computes with.
    fn gated(x: Operand<'_, Self>, up: Operand<'_, Self>, gate: Gate) -> Result<Self>;

    /// `1 / (1 + exp(-x))`, rounded once.
    ///
    /// # Errors
    /// The dtype is no float that the device computes with.
    fn sigmoid(x: Operand<'_, Self>) -> Result<Self>;

    /// `x weightᵀ` for `x (.., k)` and `weight (n, k)`, with `extras`: `(.., n)`, or `(.., n / 2)` if it is gated.
    ///
    /// # Errors
    /// Sizes or dtypes do not fit each other, or the dtype is no float that the device computes with.
    fn linear(
        x: Operand<'_, Self>,
        weight: LinearWeight<'_, Self>,
        extras: LinearExtras<'_, Self>,
    ) -> Result<Self>;

    /// Applies `rotation` to `[x, cos, sin]`, `x` being 4D; the result has its shape.
    ///
    /// # Errors
    /// Sizes do not fit each other, or the dtype is no float that the device computes with.
    fn rope(inputs: [Operand<'_, Self>; 3], rotation: Rotation<'_, Self>) -> Result<Self>;

    /// Whether [`Fused::rope_append`] takes these: `x`, cos, sin and the cache.
    fn rope_append_fits(storages: [&Self; 4]) -> bool;

    /// As [`Fused::rope`] on `[x, cos, sin]`, of which only the queries are the result, `(batch, queries, seq, dim)`; the others, keys
    /// and values, go straight into a cache, which is written in place.
    ///
    /// # Errors
    /// As for [`Fused::rope`], or the cache does not fit. A position on the device that is past the cache is reported when results are
    /// read.
    fn rope_append(
        inputs: [Operand<'_, Self>; 3],
        rotation: Rotation<'_, Self>,
        into: RopeCache<'_, Self>,
    ) -> Result<Self>;

    /// Whether [`Fused::sdpa`] has kernels for these `[q, k, v]`.
    ///
    /// # Errors
    /// Sizes or dtypes do not fit each other.
    fn has_sdpa(inputs: [Operand<'_, Self>; 3], params: SdpaParams<'_, Self>) -> Result<bool>;

    /// `softmax(q kᵀ * scale) v` for `q (batch, heads, queries, dim)`, `k (batch, kv_heads, keys, dim)` and `v (batch, kv_heads, keys,
    /// v_dim)`, with the rules of `params`. The result is `(batch, heads, queries, v_dim)` in the dtype of `q`; rows that see no key
    /// are 0.
    ///
    /// # Errors
    /// Those of [`Fused::has_sdpa`], or it says no.
    fn sdpa(inputs: [Operand<'_, Self>; 3], params: SdpaParams<'_, Self>) -> Result<Self>;
}

/// Nothing of it runs: this build has no value of the type.
#[cfg(not(feature = "cuda"))]
impl Fused for crate::CudaStorage {
    const DEVICE: &'static str = "CUDA";

    fn of(storage: &Storage) -> Option<&Self> {
        match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        }
    }

    fn softmax_last_dim((x, _): Operand<'_, Self>) -> Result<Self> {
        x.never()
    }

    fn draw((x, _): Operand<'_, Self>, _: Operand<'_, Self>) -> Result<Self> {
        x.never()
    }

    fn norm((x, _): Operand<'_, Self>, _: Norm<'_, Self>) -> Result<Self> {
        x.never()
    }

    fn gated((x, _): Operand<'_, Self>, _: Operand<'_, Self>, _: Gate) -> Result<Self> {
        x.never()
    }

    fn sigmoid((x, _): Operand<'_, Self>) -> Result<Self> {
        x.never()
    }

    fn linear(
        (x, _): Operand<'_, Self>,
        _: LinearWeight<'_, Self>,
        _: LinearExtras<'_, Self>,
    ) -> Result<Self> {
        x.never()
    }

    fn rope([(x, _), ..]: [Operand<'_, Self>; 3], _: Rotation<'_, Self>) -> Result<Self> {
        x.never()
    }

    fn rope_append_fits([x, ..]: [&Self; 4]) -> bool {
        x.never()
    }

    fn rope_append(
        [(x, _), ..]: [Operand<'_, Self>; 3],
        _: Rotation<'_, Self>,
        _: RopeCache<'_, Self>,
    ) -> Result<Self> {
        x.never()
    }

    fn has_sdpa([(x, _), ..]: [Operand<'_, Self>; 3], _: SdpaParams<'_, Self>) -> Result<bool> {
        x.never()
    }

    fn sdpa([(x, _), ..]: [Operand<'_, Self>; 3], _: SdpaParams<'_, Self>) -> Result<Self> {
        x.never()
    }
}
