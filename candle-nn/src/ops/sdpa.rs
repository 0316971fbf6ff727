//! Scaled dot-product attention.

use super::{check_dtypes, compute_dtype, in_graph, last_dim_contiguous, softmax::softmax_into};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use candle_core::{
    CpuStorage, CustomOp3, DType, Device, Error, Layout, Result, Shape, Tensor, WithDType,
};
use num_traits::Zero;

const NAME: &str = "sdpa";

/// On the CPU, from this many queries on, matrix products over blocks of queries are faster than the fused loop.
const CPU_MATMUL_FROM: usize = 16;

/// Queries per block. It bounds the memory of the scores: heads * block * keys.
const CPU_BLOCK: usize = 256;

/// `softmax(q k^T * scale + mask) v` for each head, in one kernel.
///
/// - `q` is (batch, heads, queries, head_dim), `k` (batch, kv_heads, keys, head_dim), `v` (batch, kv_heads, keys, v_dim);
///   the result is (batch, heads, queries, v_dim). Any layouts.
/// - `heads` is a multiple of `kv_heads`: query heads share keys and values in groups of neighbours.
/// - `mask` is added to the scaled scores; it broadcasts to (batch, heads, queries, keys), -infinity hiding a key.
/// - `do_causal` lets query `i` see the keys up to `i + keys - queries`: the last query sees them all.
/// - `softcapping` other than 1 replaces a scaled score `s` by `softcapping * tanh(s / softcapping)`.
///
/// The fused kernel has no mask tensor and `v_dim == head_dim`; other calls take the plain form, [`sdpa_slow`].
///
/// # Errors
/// The shapes do not match, the dtypes differ or are not floats, there are no keys, `do_causal` with fewer keys than
/// queries, or `softcapping` is not positive.
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let dims = Dims::check(q, k, v, mask, do_causal, softcapping)?;
    if dims.is_empty() {
        return Tensor::zeros(dims.output(), q.dtype(), q.device());
    }
    if mask.is_some() || dims.v_dim != dims.head_dim || in_graph(&[q, k, v]) {
        return sdpa_slow(q, k, v, mask, do_causal, scale, softcapping);
    }
    let op = Sdpa {
        scale,
        causal: do_causal,
        softcap: softcapping,
    };
    if q.device().is_cpu() && dims.queries >= CPU_MATMUL_FROM {
        return sdpa_blocks(q, k, v, &dims, &op);
    }
    last_dim_contiguous(q)?.apply_op3_no_bwd(
        &last_dim_contiguous(k)?,
        &last_dim_contiguous(v)?,
        &op,
    )
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
    let dims = Dims::check(q, k, v, mask, do_causal, softcapping)?;
    let softcap = (softcapping != 1.0).then_some(softcapping);
    plain(q, k, v, mask, do_causal, scale, softcap, dims)
}

/// [`sdpa_slow`] over all keys that `mask` shows, with a `softcap` that may be 1.
pub(crate) fn sdpa_with(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    scale: f32,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let dims = Dims::check(q, k, v, mask, false, softcap.unwrap_or(1.0))?;
    plain(q, k, v, mask, false, scale, softcap, dims)
}

#[allow(clippy::too_many_arguments)]
fn plain(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcap: Option<f32>,
    dims: Dims,
) -> Result<Tensor> {
    if dims.is_empty() {
        return Tensor::zeros(dims.output(), q.dtype(), q.device());
    }
    let dtype = compute_dtype(q.dtype());
    let (q, k, v) = (q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?);
    // The heads of a group share their keys, so their queries are rows of one product, and keys are not repeated.
    let Dims {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        ..
    } = dims;
    let rows = heads / kv_heads * queries;
    let q = q.reshape((batch, kv_heads, rows, dims.head_dim))?;
    let scores = (q.matmul(&k.transpose(2, 3)?)? * f64::from(scale))?;
    let mut scores = scores.reshape((batch, heads, queries, keys))?;
    if let Some(cap) = softcap {
        let cap = f64::from(cap);
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(mask) = mask {
        scores = scores.broadcast_add(&mask.to_dtype(dtype)?)?;
    }
    if do_causal && queries > 1 {
        let mask = causal_mask(queries, keys, dtype, scores.device())?;
        scores = scores.broadcast_add(&mask)?;
    }
    super::softmax_last_dim(&scores)?
        .reshape((batch, kv_heads, rows, keys))?
        .matmul(&v)?
        .reshape(dims.output())?
        .to_dtype(dims.dtype)
}

/// Attention block by block of queries, each over only the keys it needs.
fn sdpa_blocks(q: &Tensor, k: &Tensor, v: &Tensor, dims: &Dims, op: &Sdpa) -> Result<Tensor> {
    let dtype = compute_dtype(dims.dtype);
    let (k, v) = (k.to_dtype(dtype)?, v.to_dtype(dtype)?);
    let mut blocks = Vec::with_capacity(dims.queries.div_ceil(CPU_BLOCK));
    for start in (0..dims.queries).step_by(CPU_BLOCK) {
        let len = CPU_BLOCK.min(dims.queries - start);
        let keys = if op.causal {
            dims.keys - dims.queries + start + len
        } else {
            dims.keys
        };
        let q = q.narrow(2, start, len)?.to_dtype(dtype)?;
        let (k, v) = (k.narrow(2, 0, keys)?, v.narrow(2, 0, keys)?);
        let block = sdpa_slow(&q, &k, &v, None, op.causal, op.scale, op.softcap)?;
        blocks.push(block.to_dtype(dims.dtype)?);
    }
    match blocks.as_slice() {
        [block] => Ok(block.clone()),
        blocks => Tensor::cat(blocks, 2),
    }
}

/// 0 where query `i` may see key `j`, -infinity elsewhere; of shape (queries, keys).
fn causal_mask(queries: usize, keys: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let hidden = (0..queries).flat_map(|i| {
        let visible = i + 1 + keys - queries;
        (0..keys).map(move |j| if j < visible { 0f32 } else { f32::NEG_INFINITY })
    });
    Tensor::from_vec(hidden.collect(), (queries, keys), device)?.to_dtype(dtype)
}

/// The sizes of one call, checked against each other.
struct Dims {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    v_dim: usize,
    dtype: DType,
}

impl Dims {
    fn check(
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        do_causal: bool,
        softcapping: f32,
    ) -> Result<Self> {
        check_dtypes(NAME, &[q, k, v])?;
        let (batch, heads, queries, head_dim) = q.dims4()?;
        let (k_batch, kv_heads, keys, k_dim) = k.dims4()?;
        let (v_batch, v_heads, v_keys, v_dim) = v.dims4()?;
        if (k_batch, k_dim) != (batch, head_dim) {
            return Err(mismatch(q, k));
        }
        if (v_batch, v_heads, v_keys) != (k_batch, kv_heads, keys) {
            return Err(mismatch(k, v));
        }
        if kv_heads == 0 && heads > 0 || kv_heads > 0 && heads % kv_heads != 0 {
            candle_core::bail!(
                "sdpa: {heads} query heads cannot be grouped over {kv_heads} key heads"
            )
        }
        let dims = Self {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            v_dim,
            dtype: q.dtype(),
        };
        if dims.is_empty() {
            return Ok(dims);
        }
        if keys == 0 {
            candle_core::bail!("sdpa: no keys to attend to, k is {:?}", k.shape())
        }
        if do_causal && keys < queries {
            candle_core::bail!(
                "sdpa: causal attention of {queries} queries needs at least as many keys, there are {keys}"
            )
        }
        if softcapping <= 0.0 || !softcapping.is_finite() {
            candle_core::bail!(
                "sdpa: softcapping is {softcapping}, it has to be positive, 1 being none"
            )
        }
        if let Some(mask) = mask {
            let scores = Shape::from((batch, heads, queries, keys));
            if mask.shape().broadcast_shape_binary_op(&scores, NAME)? != scores {
                return Err(Error::ShapeMismatchBinaryOp {
                    lhs: scores,
                    rhs: mask.shape().clone(),
                    op: "sdpa-mask",
                }
                .bt());
            }
        }
        Ok(dims)
    }

    fn output(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.heads, self.queries, self.v_dim)
    }

    fn is_empty(&self) -> bool {
        self.batch * self.heads * self.queries * self.v_dim == 0
    }
}

fn mismatch(lhs: &Tensor, rhs: &Tensor) -> Error {
    Error::ShapeMismatchBinaryOp {
        lhs: lhs.shape().clone(),
        rhs: rhs.shape().clone(),
        op: NAME,
    }
    .bt()
}

struct Sdpa {
    scale: f32,
    causal: bool,
    softcap: f32,
}

impl CustomOp3 for Sdpa {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let dst = with_float!(NAME, q, T => {
            let q = StridedRows::new(q.as_slice::<T>()?, q_l);
            let k = StridedRows::new(k.as_slice::<T>()?, k_l);
            let v = StridedRows::new(v.as_slice::<T>()?, v_l);
            Ok(T::to_cpu_storage_owned(self.rows(&q, q_l.dims(), &k, k_l.dims(), &v)))
        })?;
        Ok((dst, q_l.shape().clone()))
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            q: &candle_core::WebGpuStorage,
            q_l: &Layout,
            k: &candle_core::WebGpuStorage,
            k_l: &Layout,
            v: &candle_core::WebGpuStorage,
            v_l: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            use candle_core::webgpu_backend::ops::fused;
            let params = fused::SdpaParams {
                scale: self.scale,
                causal: self.causal,
                softcap: self.softcap,
            };
            let dst = fused::sdpa(q, q_l, k, k_l, v, v_l, params)?;
            Ok((dst, q_l.shape().clone()))
        }
    }
}

impl Sdpa {
    /// One query at a time: all of its scores, their softmax, the weighted sum of the values.
    fn rows<T: Float>(
        &self,
        q: &StridedRows<'_, T>,
        q_dims: &[usize],
        k: &StridedRows<'_, T>,
        k_dims: &[usize],
        v: &StridedRows<'_, T>,
    ) -> Vec<T> {
        let (heads, queries, dim) = (q_dims[1], q_dims[2], q_dims[3]);
        let (kv_heads, keys) = (k_dims[1], k_dims[2]);
        let count = q_dims[0] * heads * queries;
        let scale = T::Acc::from_f64(f64::from(self.scale));
        let cap = T::Acc::from_f64(f64::from(self.softcap));
        let scratch = || Scratch {
            query: fused_cpu::scratch(dim),
            row: fused_cpu::scratch(dim),
            scores: fused_cpu::scratch(keys),
            weights: fused_cpu::scratch(keys),
            sum: fused_cpu::scratch(dim),
        };
        fused_cpu::map_rows(count, dim, 2 * keys * dim, scratch, |s, index, dst| {
            let (batch, head, query) = (
                index / (heads * queries),
                index / queries % heads,
                index % queries,
            );
            let first_key = (batch * kv_heads + head / (heads / kv_heads)) * keys;
            let visible = if self.causal {
                query + 1 + keys - queries
            } else {
                keys
            };
            let query = q.get(index, &mut s.query);
            for (j, score) in s.scores[..visible].iter_mut().enumerate() {
                *score = Acc::dot(query, k.get(first_key + j, &mut s.row)) * scale;
                if self.softcap != 1.0 {
                    *score = num_traits::Float::tanh(*score / cap) * cap;
                }
            }
            softmax_into(&s.scores[..visible], &mut s.weights[..visible]);
            s.sum.fill(T::Acc::zero());
            for (j, &weight) in s.weights[..visible].iter().enumerate() {
                for (sum, &x) in s.sum.iter_mut().zip(v.get(first_key + j, &mut s.row)) {
                    *sum += weight * x;
                }
            }
            for (dst, &sum) in dst.iter_mut().zip(&s.sum) {
                *dst = T::narrow(sum);
            }
        })
    }
}

/// The buffers of a thread in [`Sdpa::rows`].
struct Scratch<A> {
    query: Vec<A>,
    row: Vec<A>,
    scores: Vec<A>,
    weights: Vec<A>,
    sum: Vec<A>,
}
