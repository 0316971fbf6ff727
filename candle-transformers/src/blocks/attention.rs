//! Causal self-attention with grouped key/value heads, GQA: [arXiv 2305.13245](https://arxiv.org/abs/2305.13245).

use std::sync::Arc;

use candle_core::distributed::Communicator;
use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::ops::{act_mul, sdpa_with, GatedActivation, SdpaOptions};
use candle_nn::rotary_emb::{rope_heads_with, HeadNorms, Pairs, Rotation};
use candle_nn::Init;

use super::feed_forward::linear;
use super::weights::{Order, Weights};
use super::{GrowingKvCache, MergedLinear, Names, Norm, NormSpec, Projection, Residual, Step};

/// Attention before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads, each read by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Index of the model's rotation; `None` for no rotation.
    pub rotary: Option<usize>,
    /// Whether the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the projection from the heads has one.
    pub o_bias: bool,
    /// The layout of queries, keys and values in files: separate (`None`), or as one tensor.
    pub joined: Option<Order>,
    /// The norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Factor of the scores; `None` for `1 / sqrt(head_dim)`.
    pub scale: Option<f64>,
    /// Replaces a score by `cap * tanh(score / cap)`.
    pub softcap: Option<f64>,
    /// Number of positions that a position sees, itself included.
    pub window: Option<usize>,
    /// Queries, keys and values are clamped to `-clip ..= clip`.
    pub clip: Option<f64>,
    /// ALiBi, [arXiv 2108.12409](https://arxiv.org/abs/2108.12409): what scores lose with each position of distance, by head.
    pub slopes: Option<Vec<f32>>,
    /// Whether files have an attention sink per head: an additional logit in the softmax.
    pub sinks: bool,
    /// Whether files have a gate after each head's queries, `head_dim` more outputs: its sigmoid multiplies the head's result.
    pub gate: bool,
}

/// The norm of queries and keys; before the rotation unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QkNorm {
    /// A norm of each head, with one weight for all.
    Head(NormSpec),
    /// As [`Head`](Self::Head), an RMS norm, after the rotation (Hunyuan).
    HeadRotated(NormSpec),
    /// A norm of all heads as one vector.
    Whole(NormSpec),
    /// A norm of each head, with a weight for each: in tensors `norms.0`, `norms.1` and so on (StableLM 2 12B), or in one,
    /// `(heads, head_dim)`.
    EachHead(NormSpec),
}

impl AttentionSpec {
    /// Heads of a stream of size `hidden`, rotated, and nothing else.
    pub fn new(hidden: usize, heads: usize, kv_heads: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim: hidden / heads.max(1),
            rotary: Some(0),
            qkv_bias: false,
            o_bias: false,
            joined: None,
            qk_norm: None,
            scale: None,
            softcap: None,
            window: None,
            clip: None,
            slopes: None,
            sinks: false,
            gate: false,
        }
    }

    /// All projections have biases if `bias` says so.
    pub fn bias(self, bias: bool) -> Self {
        Self {
            qkv_bias: bias,
            o_bias: bias,
            ..self
        }
    }

    /// The size of all queries.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The size of all gates.
    pub fn gate_dim(&self) -> usize {
        if self.gate {
            self.q_dim()
        } else {
            0
        }
    }

    /// The size of all keys, and of all values.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Checks what the layers take for granted.
    pub(super) fn check(&self, rotaries: &[super::Rotary]) -> Result<()> {
        let (heads, kv_heads, head_dim) = (self.heads, self.kv_heads, self.head_dim);
        if heads == 0 || kv_heads == 0 || head_dim == 0 {
            bail!("attention: {heads} heads, {kv_heads} key heads of size {head_dim}; each must be at least 1")
        }
        if heads % kv_heads != 0 {
            bail!("attention: {heads} query heads cannot be grouped over {kv_heads} key heads")
        }
        if let Some(rotary) = self.rotary {
            let Some(rotary) = rotaries.get(rotary) else {
                bail!(
                    "attention: rotation {rotary} requested, but the model has {}",
                    rotaries.len()
                )
            };
            let rotated = 2 * rotary.frequencies.len();
            if rotated > head_dim {
                bail!("attention: {rotated} rotated elements exceed the head size of {head_dim}")
            }
        }
        if self.slopes.as_ref().is_some_and(|s| s.len() != heads) {
            bail!("attention: expected one ALiBi slope for each of {heads} heads")
        }
        let plain_norm = |norm| match norm {
            QkNorm::Head(norm) => !norm.is_rms(),
            QkNorm::HeadRotated(_) | QkNorm::Whole(_) | QkNorm::EachHead(_) => true,
        };
        if self.gate
            && (self.joined.is_some()
                || self.clip.is_some()
                || self.qk_norm.is_some_and(plain_norm))
        {
            bail!("attention: head gates need separate, unclipped query and key projections, with RMS head norms or none")
        }
        if matches!(self.qk_norm, Some(QkNorm::HeadRotated(norm)) if !norm.is_rms()) {
            bail!("attention: a norm of heads after the rotation must be an RMS norm")
        }
        if self.window == Some(0) {
            bail!("attention: the window is 0 positions; it must be at least 1")
        }
        Ok(())
    }
}

/// Causal self-attention with an optional KV cache.
#[derive(Debug, Clone)]
pub struct Attention {
    qkv: MergedLinear<3>,
    o_proj: Projection,
    /// The norms of queries and keys, by head.
    head_norms: Option<HeadNorms>,
    /// The norms of queries and keys, if no kernel has both the norm and the rotation.
    plain_norms: Option<[Norm; 2]>,
    /// Factors of queries and keys after the norm, `(heads, head_dim)`, if each head has a weight.
    head_weights: Option<[Tensor; 2]>,
    slopes: Option<Tensor>,
    sinks: Option<Tensor>,
    spec: AttentionSpec,
    /// The ranks that have the other heads.
    group: Option<Arc<dyn Communicator>>,
}

impl Attention {
    /// Loads the block of a layer from weights named `prefix` and a suffix; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &AttentionSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        let (q_dim, kv_dim, head_dim) = (spec.q_dim(), spec.kv_dim(), spec.head_dim);
        let bias = spec.qkv_bias;
        let qkv = match spec.joined {
            None => {
                let part = |name, out_dim| linear(prefix, name, hidden, out_dim, bias);
                let parts = [
                    part(names.q, spec.gate_dim() + q_dim),
                    part(names.k, kv_dim),
                    part(names.v, kv_dim),
                ];
                if spec.gate {
                    weights.merged_with_gates(parts, spec.heads).await?
                } else {
                    weights.merged(parts).await?
                }
            }
            Some(order) => {
                let all = linear(prefix, names.qkv, hidden, q_dim + 2 * kv_dim, bias);
                weights.joined(&all, [q_dim, kv_dim, kv_dim], order).await?
            }
        };
        let [q_name, k_name] = [names.q_norm, names.k_norm].map(|name| format!("{prefix}.{name}"));
        let (mut head_norms, mut plain_norms) = (None, None);
        let mut head_weights = None;
        match spec.qk_norm {
            None => {}
            Some(QkNorm::Head(norm) | QkNorm::HeadRotated(norm)) => {
                let q = weights.norm(&q_name, head_dim, norm).await?;
                let k = weights.norm(&k_name, head_dim, norm).await?;
                match (&q, &k) {
                    (Norm::Rms(q), Norm::Rms(k)) => {
                        head_norms = Some(HeadNorms::new(q.weight(), k.weight(), norm.eps)?);
                    }
                    // With a mean there is no kernel that also rotates.
                    _ => plain_norms = Some([q, k]),
                }
            }
            Some(QkNorm::Whole(norm)) => {
                let q = weights.norm(&q_name, q_dim, norm).await?;
                plain_norms = Some([q, weights.norm(&k_name, kv_dim, norm).await?]);
            }
            Some(QkNorm::EachHead(norm)) => {
                let ones = Tensor::ones(head_dim, weights.dtype(), weights.device())?;
                let plain = norm.with(ones, None)?;
                let mut stacked = Vec::new();
                for (name, heads) in [(&q_name, spec.heads), (&k_name, spec.kv_heads)] {
                    // In GGUF files all heads are one tensor.
                    let all = format!("{name}.weight");
                    if weights.has(&all) && !weights.makes_tensors() {
                        let shape = [heads, head_dim];
                        stacked.push(weights.dense(&all, &shape, Init::Const(1.)).await?);
                        continue;
                    }
                    let mut rows = Vec::with_capacity(heads);
                    for head in 0..heads {
                        let name = format!("{name}.norms.{head}.weight");
                        rows.push(weights.dense(&name, &[head_dim], Init::Const(1.)).await?);
                    }
                    stacked.push(Tensor::stack(&rows, 0)?);
                }
                head_weights = <[Tensor; 2]>::try_from(stacked).ok();
                plain_norms = Some([plain.clone(), plain]);
            }
        }
        let o_proj = linear(prefix, names.o, q_dim, hidden, spec.o_bias);
        let slopes = match &spec.slopes {
            Some(slopes) => Some(Tensor::new(slopes.as_slice(), weights.device())?),
            None => None,
        };
        let sinks = if spec.sinks {
            let name = format!("{prefix}.{}", names.sinks);
            let sinks = weights.dense(&name, &[spec.heads], Init::Const(0.)).await?;
            Some(sinks.to_dtype(DType::F32)?)
        } else {
            None
        };
        Ok(Self {
            qkv,
            o_proj: weights.linear(&o_proj).await?,
            head_norms,
            plain_norms,
            head_weights,
            slopes,
            sinks,
            spec: spec.clone(),
            group: weights.group().cloned(),
        })
    }

    /// The projection from the heads, which comes after [`inner`](Self::inner).
    pub fn output(&self) -> &Projection {
        &self.o_proj
    }

    /// The heads' outputs, `(b, t, heads * head_dim)`, for the norm of the stream, `(b, t, hidden_size)`, or without one the stream. Each
    /// position attends to those before it and to what `kv` holds, which the new positions are added to.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn inner(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
        step: &Step,
        kv: Option<&mut GrowingKvCache>,
    ) -> Result<(Residual, Tensor)> {
        let (xs, projected) = match self.qkv.merged() {
            Some(qkv) => xs.project(norm, qkv)?,
            None => {
                let (xs, normed) = xs.normed(norm)?;
                (xs, self.qkv.forward_joined(&normed)?)
            }
        };
        let gate = match self.spec.gate_dim() {
            0 => None,
            dim => Some(projected.narrow(D::Minus1, 0, dim)?),
        };
        let (mut q, kv) = self.heads(projected, step, kv)?;
        if let Some(factors) = &step.growth {
            q = q.broadcast_mul(factors)?;
        }
        let kv_heads = self.spec.kv_heads;
        let k = kv.narrow(1, 0, kv_heads)?;
        let v = kv.narrow(1, kv_heads, kv_heads)?;
        let (b, heads, t, head_dim) = q.dims4()?;
        let scale = self.spec.scale;
        let options = SdpaOptions {
            scale: scale.unwrap_or_else(|| 1. / (head_dim as f64).sqrt()) as f32,
            // A single query sees every key, unless there is a window.
            causal: step.mask.is_none()
                && (t > 1 || self.spec.window.is_some() || step.rows.is_some()),
            starts: step.rows.map(|rows| &rows.starts),
            softcap: self.spec.softcap.map(|cap| cap as f32),
            window: self
                .spec
                .window
                .filter(|_| step.windows || step.mask.is_none()),
            bias: step.mask,
            slopes: self.slopes.as_ref(),
            sinks: self.sinks.as_ref(),
            pages: step.rows.and_then(|rows| rows.key_pages(t)),
            ..SdpaOptions::default()
        };
        let ys = sdpa_with(&q, &k, &v, &options)?;
        let ys = ys.transpose(1, 2)?.reshape((b, t, heads * head_dim))?;
        let ys = match gate {
            Some(gate) => act_mul(&gate, &ys, GatedActivation::Sigmoid)?,
            None => ys,
        };
        Ok((xs, ys))
    }

    /// The queries, rotated, and all keys and values, those of `kv` and the new: `(b, heads, t, head_dim)` and
    /// `(b, 2 * kv_heads, positions, head_dim)`.
    fn heads(
        &self,
        projected: Tensor,
        step: &Step,
        kv: Option<&mut GrowingKvCache>,
    ) -> Result<(Tensor, Tensor)> {
        let AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.spec;
        let (b, t, _) = projected.dims3()?;
        let projected = self.clipped_and_normed(projected)?;
        // Splitting the heads of the packed projections keeps everything after it a view, and lets one kernel norm and rotate
        // queries and keys and write keys and values to the cache.
        let gates = self.spec.gate_dim() / head_dim;
        let by_head = projected
            .reshape((b, t, gates + heads + 2 * kv_heads, head_dim))?
            .transpose(1, 2)?
            .narrow(1, gates, heads + 2 * kv_heads)?;
        let rows = self.spec.rotary.map(|i| &step.rotations[i]);
        let mut rotation = Rotation {
            angles: rows.map(|rows| (&rows.cos, &rows.sin)),
            pairs: rows.map_or(Pairs::Halves, |rows| rows.pairs.into()),
            norms: self.head_norms.as_ref(),
        };
        let mut by_head = by_head;
        if let Some(QkNorm::HeadRotated(_)) = self.spec.qk_norm {
            let norms = rotation.norms.take();
            by_head = rope_heads_with(&by_head, &rotation, heads, kv_heads)?;
            let angles = None;
            rotation = Rotation {
                angles,
                norms,
                ..rotation
            };
        }
        match kv {
            Some(kv) => kv.append_rotated(&by_head, kv_heads, &rotation, step.rows),
            None => {
                let qkv = rope_heads_with(&by_head, &rotation, heads, kv_heads)?;
                let kv = qkv.narrow(1, heads, 2 * kv_heads)?;
                Ok((qkv.narrow(1, 0, heads)?, kv))
            }
        }
    }

    /// Clips and normalises the projections before they are split into heads, where the spec asks for it.
    fn clipped_and_normed(&self, mut projected: Tensor) -> Result<Tensor> {
        if let Some(clip) = self.spec.clip {
            projected = projected.clamp(-clip, clip)?;
        }
        let Some([q_norm, k_norm]) = &self.plain_norms else {
            return Ok(projected);
        };
        let (q_dim, kv_dim) = (self.spec.q_dim(), self.spec.kv_dim());
        let part = |start, len| projected.narrow(D::Minus1, start, len)?.contiguous();
        let group = self.group.as_ref().filter(|group| group.world_size() > 1);
        if let (Some(group), Some(QkNorm::Whole(_))) = (group, self.spec.qk_norm) {
            let (q, k) = (part(0, q_dim)?, part(q_dim, kv_dim)?);
            let [q, k] = over_ranks([q_norm, k_norm], [q, k], &**group)?;
            return Tensor::cat(&[q, k, part(q_dim + kv_dim, kv_dim)?], D::Minus1);
        }
        let weights = self.head_weights.as_ref();
        let [q_weight, k_weight] = [0, 1].map(|i| weights.map(|weights| &weights[i]));
        let normed = |norm: &Norm, weight: Option<&Tensor>, xs: Tensor| match self.spec.qk_norm {
            Some(QkNorm::Head(_) | QkNorm::EachHead(_)) => {
                let (b, t, dim) = xs.dims3()?;
                let heads = xs.reshape((b, t, (), self.spec.head_dim))?;
                let mut heads = norm.forward(&heads)?;
                if let Some(weight) = weight {
                    heads = heads.broadcast_mul(weight)?;
                }
                heads.reshape((b, t, dim))
            }
            _ => norm.forward(&xs),
        };
        Tensor::cat(
            &[
                normed(q_norm, q_weight, part(0, q_dim)?)?,
                normed(k_norm, k_weight, part(q_dim, kv_dim)?)?,
                part(q_dim + kv_dim, kv_dim)?,
            ],
            D::Minus1,
        )
    }
}

/// RMS norms of vectors whose elements are spread over ranks, `(b, t, n)` of each: one sum over the ranks for both. Elements that several
/// ranks have count as often in the sum as in the number of elements.
fn over_ranks(
    norms: [&Norm; 2],
    parts: [Tensor; 2],
    group: &dyn Communicator,
) -> Result<[Tensor; 2]> {
    let square = |part: &Tensor| part.to_dtype(DType::F32)?.sqr()?.sum_keepdim(D::Minus1);
    let [q, k] = &parts;
    let sums = group.all_reduce(&Tensor::cat(&[square(q)?, square(k)?], D::Minus1)?)?;
    let normed = |i: usize| {
        let (Norm::Rms(norm), part) = (norms[i], &parts[i]) else {
            bail!("a norm over all heads cannot be split across ranks")
        };
        let count = part.dim(D::Minus1)? * group.world_size();
        let mean = (sums.narrow(D::Minus1, i, 1)? / count as f64)?;
        let root = (mean + norm.eps())?.sqrt()?;
        let scaled = part.to_dtype(DType::F32)?.broadcast_div(&root)?;
        let weight = norm.weight().to_dtype(DType::F32)?;
        scaled.broadcast_mul(&weight)?.to_dtype(part.dtype())
    };
    Ok([normed(0)?, normed(1)?])
}
