//! Scaled dot-product attention.

mod blocks;
mod dims;
mod host;
mod kernels;
mod pages;
mod plain;
mod rows;

use super::{in_graph, zeros_of};
use blocks::blocks;
use candle_core::{bail, Result, Tensor};
use dims::Dims;
use pages::Paged;
pub use pages::SdpaPages;
use plain::plain;
use rows::fused;

const NAME: &str = "sdpa";

/// On the CPU, from this many queries on, matrix products over blocks of queries are faster than the fused loop.
const CPU_MATMUL_FROM: usize = 16;

/// The options of attention; by default a scale of 1 and nothing else.
///
/// Query `i` has the position `i + keys - queries`, so that the last query is at the last key, or `i + starts[batch]`. The position of a
/// key is its index.
#[derive(Debug, Clone, Copy)]
pub struct SdpaOptions<'a> {
    /// Factor of the scores, commonly `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A query at position `p` sees the keys up to `p` only.
    pub causal: bool,
    /// Scaled scores become `cap * tanh(score / cap)`. All numbers are caps, 1 too.
    pub softcap: Option<f32>,
    /// With `causal`, a query at position `p` sees the keys from `p - window + 1`: `window` of them with its own. Without, it sees the keys
    /// that are less than `window` away on both sides.
    pub window: Option<usize>,
    /// Added to the scaled and capped scores; broadcasts to (batch, heads, queries, keys), -infinity hiding a key. A float; best of f32
    /// or of the dtype of the queries, since others are converted first.
    pub bias: Option<&'a Tensor>,
    /// ALiBi, (heads) of f32: a head's slope times the distance of query and key is subtracted from the score, which for the keys before
    /// the query is `slopes[head] * (key - position)`.
    pub slopes: Option<&'a Tensor>,
    /// (heads) of f32: one more score for each head in the sum that the softmax divides by, without a value.
    pub sinks: Option<&'a Tensor>,
    /// (batch) of u32: the position of each row's first query.
    pub starts: Option<&'a Tensor>,
    /// (batch) of u32: how many keys of each row there are, the first ones; the others are hidden.
    pub lens: Option<&'a Tensor>,
    /// Keys and values are pages of pools.
    pub pages: Option<SdpaPages<'a>>,
}

impl Default for SdpaOptions<'_> {
    fn default() -> Self {
        Self {
            scale: 1.,
            causal: false,
            softcap: None,
            window: None,
            bias: None,
            slopes: None,
            sinks: None,
            starts: None,
            lens: None,
            pages: None,
        }
    }
}

/// [`SdpaOptions`] as the kernels have them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    /// Number of earlier keys that a query sees; `None` for all.
    pub(crate) left: Option<usize>,
    /// Number of later keys that a query sees; 0 is causal, `None` means all.
    pub(crate) right: Option<usize>,
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) slopes: Option<&'a Tensor>,
    pub(crate) sinks: Option<&'a Tensor>,
    pub(crate) starts: Option<&'a Tensor>,
    pub(crate) lens: Option<&'a Tensor>,
    pub(crate) paged: Option<Paged<'a>>,
}

impl<'a> Rules<'a> {
    fn new(options: &SdpaOptions<'a>, queries: usize, keys: usize) -> Result<Self> {
        if options.window == Some(0) {
            bail!("sdpa: the window is 0 keys; it must be at least 1")
        }
        if options.causal && options.starts.is_none() && (1..queries).contains(&keys) {
            bail!(
                "sdpa: causal attention of {queries} queries needs at least as many keys, but there are {keys}; or pass the positions of \
                 the first queries in `starts`"
            )
        }
        let left = options.window.map(|window| window - 1);
        Ok(Self {
            scale: options.scale,
            softcap: options.softcap,
            left,
            right: if options.causal { Some(0) } else { left },
            bias: options.bias,
            slopes: options.slopes,
            sinks: options.sinks,
            starts: options.starts,
            lens: options.lens,
            paged: None,
        })
    }

    /// Whether a query of some row may see no key at all.
    fn can_hide_all(&self, dims: &Dims) -> bool {
        let beside_the_keys = (self.left.is_some() || self.right.is_some())
            && (self.starts.is_some() || dims.queries > dims.keys);
        self.bias.is_some() || self.lens.is_some() || beside_the_keys
    }

    /// Whether `right` hides nothing: a single query at the last key.
    fn sees_to_end(&self, dims: &Dims) -> bool {
        self.starts.is_none() && dims.queries == 1
    }

    /// The inputs of the result.
    fn tensors<'b>(&self, q: &'b Tensor, k: &'b Tensor, v: &'b Tensor) -> Vec<&'b Tensor>
    where
        'a: 'b,
    {
        [q, k, v].into_iter().chain(self.floats()).collect()
    }

    /// All tensors that are not positions.
    fn floats(&self) -> impl Iterator<Item = &'a Tensor> {
        [self.bias, self.slopes, self.sinks].into_iter().flatten()
    }
}

/// `softmax(q k^T * scale + mask) v` for each head: [`sdpa_with`] with the arguments of Candle.
///
/// - `mask` is added to the scaled scores; it broadcasts to (batch, heads, queries, keys), -infinity hiding a key.
/// - `do_causal` lets query `i` see the keys up to `i + keys - queries`: the last query sees them all.
/// - `softcapping` other than 1 replaces a scaled score `s` by `softcapping * tanh(s / softcapping)`.
///
/// # Errors
/// Those of [`sdpa_with`], and `softcapping` is not positive.
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    sdpa_with(q, k, v, &upstream(mask, do_causal, scale, softcapping))
}

/// The plain form of [`sdpa`]: products, mask and softmax as tensor ops, in f32 for 16-bit inputs.
///
/// # Errors
/// Those of [`sdpa`].
pub fn sdpa_slow(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    sdpa_with_slow(q, k, v, &upstream(mask, do_causal, scale, softcapping))
}

/// The arguments of [`sdpa`], whose `softcapping` of 1 is none.
fn upstream(mask: Option<&Tensor>, causal: bool, scale: f32, softcapping: f32) -> SdpaOptions<'_> {
    SdpaOptions {
        scale,
        causal,
        softcap: (softcapping != 1.).then_some(softcapping),
        bias: mask,
        ..SdpaOptions::default()
    }
}

/// Attention, `softmax(q k^T * scale) v` for each head, with what [`SdpaOptions`] adds.
///
/// - `q` is (batch, heads, queries, head_dim), `k` (batch, kv_heads, keys, head_dim), `v` (batch, kv_heads, keys, v_dim);
///   the result is (batch, heads, queries, v_dim) in the dtype of `q`. Any layouts. With [`SdpaOptions::pages`] `k` and `v` are pools.
/// - `heads` is a multiple of `kv_heads`: query heads share keys and values in groups of neighbours.
/// - `k` and `v` have the dtype of `q`; f16 or bf16 is also accepted for `q` in f32, and f16 for `q` in bf16.
/// - A query to which every key is hidden gets 0, in all dtypes.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::ops::{sdpa_with, SdpaOptions};
/// # fn main() -> candle_core::Result<()> {
/// // Two rows of three queries; the second row is one token and padding.
/// let q = Tensor::ones((2, 4, 3, 8), DType::F32, &Device::Cpu)?;
/// let kv = Tensor::ones((2, 2, 3, 8), DType::F32, &Device::Cpu)?;
/// let lens = Tensor::new(&[3u32, 1], &Device::Cpu)?;
/// let options = SdpaOptions { scale: 0.35, lens: Some(&lens), ..Default::default() };
/// assert_eq!(sdpa_with(&q, &kv, &kv, &options)?.dims(), &[2, 4, 3, 8]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not match, the dtypes differ or are not floats, there are no keys, `causal` without `starts` and with fewer keys than
/// queries, a softcap that is not positive, a window of 0, or options of another shape, dtype or device than documented. A page beyond
/// the pools is an error on the CPU; on other devices the last page takes its place.
pub fn sdpa_with(q: &Tensor, k: &Tensor, v: &Tensor, options: &SdpaOptions<'_>) -> Result<Tensor> {
    let (batch, _, queries, _) = q.dims4()?;
    if let Some(pages) = options.pages {
        let paged = Paged::new(pages, [k, v], batch)?;
        return pages::attend(q, paged, &Rules::new(options, queries, pages.keys)?);
    }
    let (_, _, keys, _) = k.dims4()?;
    attend(q, k, v, &Rules::new(options, queries, keys)?)
}

/// The plain form of [`sdpa_with`]: products, biases and softmax as tensor ops, in f32 for 16-bit inputs.
///
/// # Errors
/// Those of [`sdpa_with`].
pub fn sdpa_with_slow(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &SdpaOptions<'_>,
) -> Result<Tensor> {
    let (batch, _, queries, _) = q.dims4()?;
    if let Some(pages) = options.pages {
        let [k, v] = Paged::new(pages, [k, v], batch)?.gathered()?;
        let pages = None;
        return sdpa_with_slow(q, &k, &v, &SdpaOptions { pages, ..*options });
    }
    let (_, _, keys, _) = k.dims4()?;
    let rules = Rules::new(options, queries, keys)?;
    let dims = Dims::check(q, k, v, &rules)?;
    if dims.is_empty() {
        return zeros_of(dims.output(), q, &rules.tensors(q, k, v));
    }
    plain(q, k, v, &rules, &dims)
}

/// [`sdpa_with`] in the kernels' terms.
pub(crate) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, rules: &Rules<'_>) -> Result<Tensor> {
    let dims = Dims::check(q, k, v, rules)?;
    let tensors = rules.tensors(q, k, v);
    if dims.is_empty() {
        return zeros_of(dims.output(), q, &tensors);
    }
    if in_graph(&tensors) {
        return plain(q, k, v, rules, &dims);
    }
    if q.device().is_cpu() && dims.queries >= CPU_MATMUL_FROM {
        return blocks(q, k, v, rules, &dims);
    }
    fused(q, k, v, rules, &dims)
}
