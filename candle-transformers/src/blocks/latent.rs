//! Multi-head latent attention, MLA: [arXiv 2405.04434](https://arxiv.org/abs/2405.04434). Keys and values of all heads are made from one
//! short vector for each position, and only that is kept, with the rotated part that all heads share.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::rotary_emb::{rope, rope_i};

use super::feed_forward::linear;
use super::weights::Weights;
use super::{GrowingKvCache, Names, Norm, NormSpec, Projection, Residual, RotaryPairs, Step};

/// Calls of at most this many positions attend to the short vectors themselves; with more, it is cheaper to make keys and values of them.
const FEW: usize = 4;

/// Latent attention before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentSpec {
    /// Heads.
    pub heads: usize,
    /// Rank of the queries' projection; `None` for a single projection from the stream.
    pub q_rank: Option<usize>,
    /// Size of the short vector of keys and values.
    pub kv_rank: usize,
    /// Elements of a query and a key that are not rotated.
    pub plain_dim: usize,
    /// Elements that are, which heads share in the keys.
    pub rotated_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
    /// Whether the projections to the short vectors and from the heads have biases.
    pub bias: bool,
    /// The norm of the short vectors.
    pub norm: NormSpec,
    /// Index of the model's rotation.
    pub rotary: usize,
    /// Factor of the scores.
    pub scale: f64,
}

impl LatentSpec {
    /// Checks what the layers take for granted.
    pub(super) fn check(&self, rotaries: &[super::Rotary]) -> Result<()> {
        let sizes = [
            self.heads,
            self.kv_rank,
            self.plain_dim,
            self.rotated_dim,
            self.v_dim,
        ];
        if sizes.contains(&0) || self.q_rank == Some(0) {
            bail!("latent attention: heads, ranks and sizes {sizes:?} must be at least 1")
        }
        let rotated = rotaries.get(self.rotary).map(|r| 2 * r.frequencies.len());
        if rotated != Some(self.rotated_dim) {
            bail!(
                "latent attention: {} rotated elements per head, but the model's rotation has {rotated:?}",
                self.rotated_dim
            )
        }
        Ok(())
    }
}

/// From the stream to queries.
#[derive(Debug, Clone)]
enum Queries {
    Whole(Projection),
    Short(Projection, Norm, Projection),
}

/// Latent attention with an optional cache.
#[derive(Debug, Clone)]
pub struct Latent {
    queries: Queries,
    kv_a: Projection,
    kv_norm: Norm,
    /// From a short vector to the keys and values of all heads: `(heads, plain_dim + v_dim, kv_rank)`.
    kv_b: Tensor,
    o_proj: Projection,
    spec: LatentSpec,
}

impl Latent {
    /// Loads the block of a layer from weights named `prefix` and a suffix; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &LatentSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        let (heads, rank) = (spec.heads, spec.kv_rank);
        let q_dim = heads * (spec.plain_dim + spec.rotated_dim);
        let queries = match spec.q_rank {
            None => {
                let q = linear(prefix, names.q, hidden, q_dim, false);
                Queries::Whole(weights.linear(&q).await?)
            }
            Some(rank) => {
                let a = linear(prefix, names.q_a, hidden, rank, spec.bias);
                let b = linear(prefix, names.q_b, rank, q_dim, false);
                let norm = format!("{prefix}.{}", names.q_a_norm);
                let a = weights.linear(&a).await?;
                let norm = weights.norm(&norm, rank, spec.norm).await?;
                Queries::Short(a, norm, weights.linear(&b).await?)
            }
        };
        let kv_a = linear(
            prefix,
            names.kv_a,
            hidden,
            rank + spec.rotated_dim,
            spec.bias,
        );
        let kv_a = weights.linear(&kv_a).await?;
        let norm = format!("{prefix}.{}", names.kv_a_norm);
        let kv_norm = weights.norm(&norm, rank, spec.norm).await?;
        let kv_b = keys_and_values(spec, weights, names, prefix).await?;
        let o_proj = linear(prefix, names.o, heads * spec.v_dim, hidden, spec.bias);
        Ok(Self {
            queries,
            kv_a,
            kv_norm,
            kv_b,
            o_proj: weights.linear(&o_proj).await?,
            spec: spec.clone(),
        })
    }

    /// The projection from the heads, which comes after [`inner`](Self::inner).
    pub fn output(&self) -> &Projection {
        &self.o_proj
    }

    /// The heads' outputs, `(b, t, heads * v_dim)`, for the norm of the stream, `(b, t, hidden_size)`, or without one the stream. Each
    /// position attends to those before it and to what `cache` holds, `(b, 1, positions, kv_rank + rotated_dim)`.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn inner(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
        step: &Step,
        cache: Option<&mut GrowingKvCache>,
    ) -> Result<(Residual, Tensor)> {
        let (xs, normed) = xs.normed(norm)?;
        let (b, t, _) = normed.dims3()?;
        let LatentSpec {
            heads,
            kv_rank,
            plain_dim,
            rotated_dim,
            v_dim,
            ..
        } = self.spec;
        let q = match &self.queries {
            Queries::Whole(q) => q.forward(&normed)?,
            Queries::Short(a, norm, b) => b.forward(&norm.forward(&a.forward(&normed)?)?)?,
        };
        let q = q
            .reshape((b, t, heads, plain_dim + rotated_dim))?
            .transpose(1, 2)?;
        let rows = &step.rotations[self.spec.rotary];
        let rotated = |part: Tensor| match rows.pairs {
            RotaryPairs::Halves => rope(&part, &rows.cos, &rows.sin),
            RotaryPairs::Neighbours => rope_i(&part, &rows.cos, &rows.sin),
        };
        let q_rotated = rotated(q.narrow(D::Minus1, plain_dim, rotated_dim)?)?;
        let q_plain = q.narrow(D::Minus1, 0, plain_dim)?;

        let short = self.kv_a.forward(&normed)?;
        let latent = short.narrow(D::Minus1, 0, kv_rank)?.contiguous()?;
        let latent = self.kv_norm.forward(&latent)?.unsqueeze(1)?;
        let shared = short
            .narrow(D::Minus1, kv_rank, rotated_dim)?
            .unsqueeze(1)?;
        let mut all = Tensor::cat(&[latent, rotated(shared)?], D::Minus1)?;
        if let Some(cache) = cache {
            all = match step.rows {
                Some(rows) => cache.append_rows(&all, rows)?,
                None => cache.append(&all)?,
            };
        }
        let latent = all.narrow(D::Minus1, 0, kv_rank)?;
        let options = SdpaOptions {
            scale: self.spec.scale as f32,
            causal: step.mask.is_none() && (t > 1 || step.rows.is_some()),
            starts: step.rows.map(|rows| &rows.starts),
            bias: step.mask,
            ..SdpaOptions::default()
        };
        let ys = if t <= FEW {
            // What would be multiplied with each key is multiplied with the queries, and what with each value, with their sum.
            let keys = self.kv_b.narrow(1, 0, plain_dim)?;
            let values = self.kv_b.narrow(1, plain_dim, v_dim)?;
            let q = Tensor::cat(&[by_head(&q_plain, &keys)?, q_rotated], D::Minus1)?;
            let ys = sdpa_with(&q, &all, &latent, &options)?;
            by_head(&ys, &values.transpose(1, 2)?)?
        } else {
            let positions = latent.dim(2)?;
            let kv_b = self.kv_b.flatten_to(1)?;
            let kv = latent
                .reshape((b * positions, kv_rank))?
                .matmul(&kv_b.t()?)?;
            let kv = kv
                .reshape((b, positions, heads, plain_dim + v_dim))?
                .transpose(1, 2)?;
            let shared = all.narrow(D::Minus1, kv_rank, rotated_dim)?;
            let shared = shared.broadcast_as((b, heads, positions, rotated_dim))?;
            let k = Tensor::cat(&[kv.narrow(D::Minus1, 0, plain_dim)?, shared], D::Minus1)?;
            let v = kv.narrow(D::Minus1, plain_dim, v_dim)?;
            let q = Tensor::cat(&[q_plain, q_rotated], D::Minus1)?;
            sdpa_with(&q, &k, &v, &options)?
        };
        let ys = ys.transpose(1, 2)?.reshape((b, t, heads * v_dim))?;
        Ok((xs, ys))
    }
}

/// The layer from a short vector to the keys and values of all heads, `(heads, plain_dim + v_dim, kv_rank)`.
async fn keys_and_values(
    spec: &LatentSpec,
    weights: &mut Weights<'_>,
    names: &Names,
    prefix: &str,
) -> Result<Tensor> {
    let (heads, rank, each) = (spec.heads, spec.kv_rank, spec.plain_dim + spec.v_dim);
    let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
    let name = format!("{prefix}.{}.weight", names.kv_b);
    let [k_name, v_name] = names.kv_b_split;
    if !k_name.is_empty() && !weights.has(&name) {
        let (k_name, v_name) = (format!("{prefix}.{k_name}"), format!("{prefix}.{v_name}"));
        let k = [heads, rank, spec.plain_dim];
        let k = weights.dense(&k_name, &k, init).await?;
        let v = [heads, spec.v_dim, rank];
        let v = weights.dense(&v_name, &v, init).await?;
        return if weights.is_check() {
            Ok(k)
        } else {
            Tensor::cat(&[k.transpose(1, 2)?, v], 1)
        };
    }
    let kv_b = weights.dense(&name, &[heads * each, rank], init).await?;
    if weights.is_check() {
        Ok(kv_b)
    } else {
        kv_b.reshape((heads, each, rank))
    }
}

/// `(b, heads, t, n)` times a matrix for each head, `(heads, n, m)`: `(b, heads, t, m)`.
fn by_head(xs: &Tensor, matrices: &Tensor) -> Result<Tensor> {
    let (b, heads, t, n) = xs.dims4()?;
    let rows = xs.transpose(0, 1)?.reshape((heads, b * t, n))?;
    let ys = rows.matmul(matrices)?;
    ys.reshape((heads, b, t, ()))?.transpose(0, 1)
}
