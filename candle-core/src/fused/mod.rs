//! Ops of candle-nn for which a device has kernels that replace many launches by one or two.
//!
//! [`Fused`] lists them; each has an equivalent in candle-nn, composed of plain ops, which defines its result. The types here are the ops'
//! arguments, for every backend.

#[cfg(any(feature = "cuda", feature = "webgpu"))]
pub(crate) mod attention;
mod conv;
mod gate;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
pub(crate) mod layer;
mod linear;

pub use conv::Conv2d;
pub use gate::{Activation, Gate};
pub use linear::{LinearExtras, LinearWeight};

use crate::backend::BackendStorage;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
use crate::DType;
use crate::{Layout, Result, Shape, Storage};

/// A storage and the layout of the elements that an op reads.
pub type Operand<'a, S> = (&'a S, &'a Layout);

/// The role of a second tensor, of the input's shape, in a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BesideNorm {
    /// Added to the input; the sums precede the norms in the result.
    AddBefore,
    /// Added to the result.
    AddAfter,
    /// The result is multiplied by its silu.
    GateAfter,
}

/// A norm and its parameters.
#[derive(Debug)]
pub struct Norm<'a, S> {
    /// Its name, for errors.
    pub op: &'static str,
    /// Whether the mean is subtracted: layer norm, not RMS norm.
    pub centred: bool,
    /// Factors of the result: one element for each index of the last dimension.
    pub weight: Option<Operand<'a, S>>,
    /// Added to the product with the weight.
    pub bias: Option<Operand<'a, S>>,
    /// Added to the mean square.
    pub eps: f32,
    /// A second tensor of the input's shape, and its role.
    pub beside: Option<(BesideNorm, Operand<'a, S>)>,
}

/// The pairs of elements that a rotary embedding rotates together, and the order of the dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// `x[i]` with `x[i + rotary / 2]`, in `(batch, heads, seq, dim)`.
    HalfSplit,
    /// `x[2 * i]` with `x[2 * i + 1]`, in `(batch, heads, seq, dim)`.
    Interleaved,
    /// As `HalfSplit`, in `(batch, seq, heads, dim)`.
    Thd,
}

/// A rotation of heads, with norms before it.
#[derive(Debug)]
pub struct Rotation<'a, S> {
    /// The pairs of elements that are rotated together.
    pub kind: RopeKind,
    /// Number of elements of a head that are rotated, from the first on; even. If it is 0, cos and sin may be any tensors that can be
    /// bound.
    pub rotary: usize,
    /// Number of query heads, the first ones, which the first norm applies to.
    pub queries: usize,
    /// Number of key heads after those, which the second norm applies to. All other heads are copied.
    pub keys: usize,
    /// Weights, `(2, dim)`, and epsilon of the RMS norms of both, which are applied before the rotation.
    pub norms: Option<(Operand<'a, S>, f32)>,
}

/// The index in a cache at which a sequence continues.
#[derive(Debug)]
pub enum RopePosition<'a, S> {
    /// The same for all rows.
    Same(usize),
    /// One per row: `(batch)`, u32.
    PerRow(Operand<'a, S>),
    /// `(batch, seq)`, contiguous u32: of each new position, in one cache for all sequences, whose batch is 1.
    Each(Operand<'a, S>),
}

/// The destination of the keys and values of a rotation.
#[derive(Debug)]
pub struct RopeCache<'a, S> {
    /// Written in place: `(batch, heads - queries, capacity, dim)`, contiguous, of any float dtype.
    pub cache: Operand<'a, S>,
    /// The first indices along the capacity that are written.
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
    /// Keys more than this distance before a query's position are hidden.
    pub left: Option<usize>,
    /// Keys more than this distance after it are hidden: 0 is causal.
    pub right: Option<usize>,
    /// Added to the scores, -infinity hiding a key: `(batch, heads, queries, keys)` of any strides.
    pub bias: Option<Operand<'a, S>>,
    /// `(heads)`, contiguous f32: multiplied by the distance of query and key, and subtracted from the scores.
    pub slopes: Option<Operand<'a, S>>,
    /// `(heads)`, contiguous f32: a score without a value. If there are `slopes`, in the same storage.
    pub sinks: Option<Operand<'a, S>>,
    /// `(batch)`, contiguous u32: the positions of the first queries.
    pub starts: Option<Operand<'a, S>>,
    /// `(batch)`, contiguous u32: the number of keys.
    pub lens: Option<Operand<'a, S>>,
    /// With it, the batches of k and v are one, of stride 0: the first keys of a pool of `pages.count * pages.page` keys.
    pub pages: Option<SdpaPages<'a, S>>,
}

#[cfg(any(feature = "cuda", feature = "webgpu"))]
impl<S: BackendStorage> RopeCache<'_, S> {
    /// Checks that it fits the keys and values of `x`, `(batch, heads, seq, dim)`; returns the shape of the rotated queries, `(batch,
    /// queries, seq, dim)`.
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

/// `Copy` without a bound on the storage: the types hold only references.
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

/// u32 words of the sampling parameters of a row: the seed's low and high half, the position, whether to take the token with the greatest
/// logit, top-k (at least 1), then the bits of top-p, min-p and 1 / temperature, three f32.
pub const DRAW_WORDS: usize = 8;

/// Checks the arguments of [`Fused::draw`]; returns rows and vocabulary.
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
    /// The name of its devices, for errors.
    const DEVICE: &'static str;

    /// The storage, if it is one of this backend.
    fn of(storage: &Storage) -> Option<&Self>;

    /// `exp(x) / sum(exp(x))` over the last dimension, stable for large inputs.
    ///
    /// # Errors
    /// If the dtype is not a float that the device computes with, or the input is a scalar.
    fn softmax_last_dim(x: Operand<'_, Self>) -> Result<Self>;

    /// Samples a token for each row of `logits`, `(rows, vocab)` in contiguous f32, with the parameters in its row of `draws`, `(rows,
    /// DRAW_WORDS)` in contiguous u32. Returns `(2, rows)` in u32: the tokens, then the number of unusable logits of each row. candle-nn's
    /// `sampling::draw` defines the token and writes the parameters.
    ///
    /// # Errors
    /// If sizes or dtypes do not match, or a vocabulary has 2²⁴ tokens or more.
    fn draw(logits: Operand<'_, Self>, draws: Operand<'_, Self>) -> Result<Self>;

    /// `norm` of the rows of `x`, in its shape; with [`BesideNorm::AddBefore`] the sums, then their norms.
    ///
    /// # Errors
    /// As for [`Fused::softmax_last_dim`], or if the second tensor has another shape.
    fn norm(x: Operand<'_, Self>, norm: Norm<'_, Self>) -> Result<Self>;

    /// `gate` of gate and up projection, elementwise over two tensors of the same shape.
    ///
    /// # Errors
    /// If the dtype is not a float that the device computes with.
    fn gated(x: Operand<'_, Self>, up: Operand<'_, Self>, gate: Gate) -> Result<Self>;

    /// `1 / (1 + exp(-x))`, rounded once.
    ///
    /// # Errors
    /// If the dtype is not a float that the device computes with.
    fn sigmoid(x: Operand<'_, Self>) -> Result<Self>;

    /// `x weightᵀ` for `x (.., k)` and `weight (n, k)`, with `extras`: `(.., n)`, or `(.., n / 2)` with a gate.
    ///
    /// # Errors
    /// If sizes or dtypes do not match, or the dtype is not a float that the device computes with.
    fn linear(
        x: Operand<'_, Self>,
        weight: LinearWeight<'_, Self>,
        extras: LinearExtras<'_, Self>,
    ) -> Result<Self>;

    /// A convolution of `x (batch, c_in, height, width)` with a kernel `(c_out, c_in / groups, k_h, k_w)` and what follows it in its layer;
    /// returns the result's shape too.
    ///
    /// # Errors
    /// If sizes or dtypes do not match, or the dtype is not a float that the device computes with.
    fn conv2d(
        x: Operand<'_, Self>,
        kernel: Operand<'_, Self>,
        conv: Conv2d<'_, Self>,
    ) -> Result<(Self, Shape)>;

    /// Applies `rotation` to `[x, cos, sin]`, `x` being 4D; the result has its shape.
    ///
    /// # Errors
    /// If sizes do not match, or the dtype is not a float that the device computes with.
    fn rope(inputs: [Operand<'_, Self>; 3], rotation: Rotation<'_, Self>) -> Result<Self>;

    /// Whether [`Fused::rope_append`] supports these storages: `x`, cos, sin and the cache.
    fn rope_append_fits(storages: [&Self; 4]) -> bool;

    /// Like [`Fused::rope`] on `[x, cos, sin]`, but returns only the queries, `(batch, queries, seq, dim)`; keys and values are written to
    /// a cache, in place.
    ///
    /// # Errors
    /// As for [`Fused::rope`], or if the cache does not fit. A position on the device that exceeds the cache is reported when results are
    /// read back.
    fn rope_append(
        inputs: [Operand<'_, Self>; 3],
        rotation: Rotation<'_, Self>,
        into: RopeCache<'_, Self>,
    ) -> Result<Self>;

    /// Whether [`Fused::sdpa`] has kernels for these `[q, k, v]`.
    ///
    /// # Errors
    /// If sizes or dtypes do not match.
    fn has_sdpa(inputs: [Operand<'_, Self>; 3], params: SdpaParams<'_, Self>) -> Result<bool>;

    /// `softmax(q kᵀ * scale) v` for `q (batch, heads, queries, dim)`, `k (batch, kv_heads, keys, dim)` and `v (batch, kv_heads, keys,
    /// v_dim)`, with the rules of `params`. The result is `(batch, heads, queries, v_dim)` in the dtype of `q`; rows without a visible key
    /// are 0.
    ///
    /// # Errors
    /// As for [`Fused::has_sdpa`], or if it returns `false`.
    fn sdpa(inputs: [Operand<'_, Self>; 3], params: SdpaParams<'_, Self>) -> Result<Self>;
}

/// Never called: this build has no value of the type.
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

    fn conv2d(
        (x, _): Operand<'_, Self>,
        _: Operand<'_, Self>,
        _: Conv2d<'_, Self>,
    ) -> Result<(Self, Shape)> {
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
