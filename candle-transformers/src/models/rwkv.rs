//! RWKV 5 and 6: [arXiv 2404.05892](https://arxiv.org/abs/2404.05892). Both mix a token with the one before it, and read from a state that
//! decays by channel; in version 6 the token says how much of either. Weights are dense or quantised.

use std::marker::PhantomData;

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::sigmoid;
use candle_nn::{Init, LayerNorm};

use super::rwkv_v5::{Config, State, StatePerLayer};
use crate::blocks::recurrence::{last, shifted, wide, Linear, CHUNK};
use crate::blocks::{at_once, LinearSpec, Norm, NormSpec, Projection, TokenEmbedding};
use crate::blocks::{WeightKind, Weights};

/// The model's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V5,
    V6,
}

/// The language model of RWKV `VERSION`, over dense or quantised weights.
#[derive(Debug, Clone)]
pub struct Rwkv<const VERSION: usize, W> {
    embeddings: TokenEmbedding,
    layers: Vec<Layer>,
    ln_out: Norm,
    head: Projection,
    of: PhantomData<fn() -> W>,
}

#[derive(Debug, Clone)]
struct Layer {
    pre_ln: Option<Norm>,
    ln1: Norm,
    ln2: Norm,
    attention: TimeMix,
    feed_forward: ChannelMix,
}

/// The mixer that reads and writes the state.
#[derive(Debug, Clone)]
struct TimeMix {
    receptance: Projection,
    key: Projection,
    value: Projection,
    gate: Projection,
    output: Projection,
    mix: Mix,
    /// The share of a position's value that it reads itself, `(heads, 1, size)`.
    own: Tensor,
    /// The norm of each head, without weights.
    norm: LayerNorm,
    norm_weight: Tensor,
    norm_bias: Tensor,
    heads: usize,
}

/// The mixture of a token with the one before it.
#[derive(Debug, Clone)]
enum Mix {
    V5 {
        /// For receptance, key, value and gate.
        parts: [Tensor; 4],
        /// `(heads, 1, size)`.
        decay: Tensor,
    },
    V6 {
        first: Tensor,
        /// For receptance, key, value, gate and decay.
        parts: [Tensor; 5],
        mix: [Tensor; 2],
        decay: Tensor,
        decay_by_token: [Tensor; 2],
    },
}

/// The feed-forward block.
#[derive(Debug, Clone)]
struct ChannelMix {
    mix_key: Tensor,
    mix_receptance: Tensor,
    key: Projection,
    receptance: Projection,
    value: Projection,
    version: Version,
}

impl<const VERSION: usize, W: WeightKind> Rwkv<VERSION, W> {
    /// Loads `rwkv.*` and `head`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        let version = const {
            match VERSION {
                5 => Version::V5,
                6 => Version::V6,
                _ => panic!("the version is 5 or 6"),
            }
        };
        W::load(vb, |weights| at_once(Self::load(version, cfg, weights)))
    }

    async fn load(version: Version, cfg: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        let hidden = cfg.hidden_size;
        let embeddings = weights.embedding("rwkv.embeddings", cfg.vocab_size, hidden);
        let embeddings = embeddings.await?;
        let mut layers = Vec::new();
        for i in 0..cfg.num_hidden_layers {
            layers.push(Layer::load(version, cfg, weights, i).await?);
        }
        let ln_out = weights.norm("rwkv.ln_out", hidden, NormSpec::layer(1e-5));
        let ln_out = ln_out.await?;
        Ok(Self {
            embeddings,
            layers,
            ln_out,
            head: linear(weights, "head", hidden, cfg.vocab_size).await?,
            of: PhantomData,
        })
    }

    /// The logits, `(b, t, vocab)`, of what follows each of the token ids `xs`, `(b, t)`, which continue what `state` holds.
    ///
    /// # Errors
    /// If there are no ids, or the state was created by a different model or batch.
    pub fn forward(&self, xs: &Tensor, state: &mut State) -> Result<Tensor> {
        let (_, t) = xs.dims2()?;
        if t == 0 {
            bail!("rwkv: no tokens; at least one is required")
        }
        if state.per_layer.len() != self.layers.len() {
            bail!(
                "rwkv: the state has {} layers, but the model has {}",
                state.per_layer.len(),
                self.layers.len()
            )
        }
        let mut xs = self.embeddings.forward(xs)?;
        for (layer, state) in self.layers.iter().zip(&mut state.per_layer) {
            xs = layer.forward(&xs, state)?;
        }
        state.pos += t;
        self.head.forward(&self.ln_out.forward(&xs)?)
    }
}

impl Layer {
    async fn load(
        version: Version,
        cfg: &Config,
        weights: &mut Weights<'_>,
        index: usize,
    ) -> Result<Self> {
        let prefix = format!("rwkv.blocks.{index}");
        let (hidden, norm) = (cfg.hidden_size, NormSpec::layer(cfg.layer_norm_epsilon));
        let pre_ln = match index {
            0 => Some(
                weights
                    .norm(&format!("{prefix}.pre_ln"), hidden, norm)
                    .await?,
            ),
            _ => None,
        };
        Ok(Self {
            pre_ln,
            ln1: weights.norm(&format!("{prefix}.ln1"), hidden, norm).await?,
            ln2: weights.norm(&format!("{prefix}.ln2"), hidden, norm).await?,
            attention: TimeMix::load(version, cfg, weights, &prefix).await?,
            feed_forward: ChannelMix::load(version, cfg, weights, &prefix).await?,
        })
    }

    fn forward(&self, xs: &Tensor, state: &mut StatePerLayer) -> Result<Tensor> {
        let xs = match &self.pre_ln {
            Some(norm) => norm.forward(xs)?,
            None => xs.clone(),
        };
        let mixed = self.attention.forward(&self.ln1.forward(&xs)?, state)?;
        let (xs, normed) = self.ln2.forward_add(&mixed, &xs)?;
        xs + self.feed_forward.forward(&normed, state)?
    }
}

impl TimeMix {
    async fn load(
        version: Version,
        cfg: &Config,
        weights: &mut Weights<'_>,
        layer: &str,
    ) -> Result<Self> {
        let (hidden, inner, size) = (cfg.hidden_size, cfg.attention_hidden_size, cfg.head_size);
        if size == 0 || !hidden.is_multiple_of(size) || inner != hidden {
            bail!(
                "rwkv: hidden size {hidden} and inner size {inner} cannot be split into heads of {size}"
            )
        }
        let heads = hidden / size;
        let prefix = format!("{layer}.attention");
        let name = |part: &str| format!("{prefix}.{part}");
        let mut parts = Vec::new();
        for part in ["receptance", "key", "value", "gate", "decay"] {
            let part = match part {
                "decay" if version == Version::V5 => continue,
                "decay" => "time_mix_w".to_string(),
                _ => format!("time_mix_{part}"),
            };
            parts.push(dense(weights, &name(&part), &[1, 1, hidden]).await?);
        }
        let mix = match (version, <[Tensor; 4]>::try_from(parts)) {
            (_, Ok(parts)) => Mix::V5 {
                parts,
                decay: dense(weights, &name("time_decay"), &[heads, size])
                    .await?
                    .unsqueeze(1)?,
            },
            (_, Err(parts)) => {
                let Ok(parts) = <[Tensor; 5]>::try_from(parts) else {
                    bail!("rwkv: expected 5 mixes")
                };
                let (by_token, five) = (2 * heads, 5 * heads);
                Mix::V6 {
                    first: dense(weights, &name("time_mix_x"), &[1, 1, hidden]).await?,
                    parts,
                    mix: [
                        dense(weights, &name("time_mix_w1"), &[hidden, five]).await?,
                        dense(weights, &name("time_mix_w2"), &[5, heads, hidden]).await?,
                    ],
                    decay: dense(weights, &name("time_decay"), &[1, 1, hidden]).await?,
                    decay_by_token: [
                        dense(weights, &name("time_decay_w1"), &[hidden, by_token]).await?,
                        dense(weights, &name("time_decay_w2"), &[by_token, hidden]).await?,
                    ],
                }
            }
        };
        let own = dense(weights, &name("time_faaaa"), &[heads, size]).await?;
        let wide = wide(weights.dtype());
        Ok(Self {
            receptance: linear(weights, &name("receptance"), hidden, inner).await?,
            key: linear(weights, &name("key"), hidden, inner).await?,
            value: linear(weights, &name("value"), hidden, inner).await?,
            gate: linear(weights, &name("gate"), hidden, inner).await?,
            output: linear(weights, &name("output"), inner, hidden).await?,
            mix,
            own: own.unsqueeze(1)?.to_dtype(wide)?,
            norm: LayerNorm::new_no_bias(Tensor::ones(size, wide, weights.device())?, 1e-5),
            norm_weight: dense(weights, &name("ln_x.weight"), &[hidden]).await?,
            norm_bias: dense(weights, &name("ln_x.bias"), &[hidden]).await?,
            heads,
        })
    }

    fn forward(&self, xs: &Tensor, state: &mut StatePerLayer) -> Result<Tensor> {
        let (b, t, hidden) = xs.dims3()?;
        let before = shifted(xs, &state.extract_key_value.to_dtype(xs.dtype())?)?;
        let ([r, k, v, g], decay) = self.mix.forward(xs, &before)?;
        state.extract_key_value = last(xs)?.to_dtype(DType::F32)?;

        let wide = wide(xs.dtype());
        let by_head = |xs: Tensor| {
            let xs = xs.reshape((b, t, self.heads, hidden / self.heads))?;
            xs.transpose(1, 2)?.contiguous()?.to_dtype(wide)
        };
        let q = by_head(self.receptance.forward(&r)?)?;
        let k = by_head(self.key.forward(&k)?)?;
        let v = by_head(self.value.forward(&v)?)?;
        let decay = match &self.mix {
            Mix::V5 { .. } => decay.unsqueeze(0)?.broadcast_as(q.shape())?,
            Mix::V6 { .. } => by_head(decay)?,
        };
        let decay = decay.to_dtype(wide)?.exp()?.neg()?;
        let linear = Linear {
            q: &q,
            k: &k,
            v: &v,
            decay: &decay,
            own: Some(&self.own),
        };
        let mut kept = state.linear_attention.to_dtype(wide)?;
        let ys = linear.run(&mut kept, CHUNK)?;
        state.linear_attention = kept.to_dtype(DType::F32)?;

        let ys = self.norm.forward(&ys.transpose(1, 2)?.contiguous()?)?;
        let ys = ys.reshape((b, t, hidden))?.to_dtype(xs.dtype())?;
        let ys = ys.broadcast_mul(&self.norm_weight)?;
        let ys = ys.broadcast_add(&self.norm_bias)?;
        let gate = self.gate.forward(&g)?.silu()?;
        self.output.forward(&(ys * gate)?)
    }
}

impl Mix {
    /// The inputs of receptance, key, value and gate, `(b, t, hidden)` each, and the logarithm of minus that of the decay.
    fn forward(&self, xs: &Tensor, before: &Tensor) -> Result<([Tensor; 4], Tensor)> {
        match self {
            Self::V5 { parts, decay } => {
                let delta = (xs - before)?;
                let part = |mix: &Tensor| before + delta.broadcast_mul(mix)?;
                let [r, k, v, g] = parts;
                Ok(([part(r)?, part(k)?, part(v)?, part(g)?], decay.clone()))
            }
            Self::V6 {
                first,
                parts,
                mix: [down, up],
                decay,
                decay_by_token: [decay_down, decay_up],
            } => {
                let (b, t, hidden) = xs.dims3()?;
                let delta = (before - xs)?;
                let mixed = (xs + delta.broadcast_mul(first)?)?;
                let five = mixed.flatten(0, 1)?.matmul(down)?.tanh()?;
                let five = five.reshape((b * t, 5, ()))?.transpose(0, 1)?;
                let five = five.contiguous()?.matmul(up)?;
                // In files: decay, key, value, receptance, gate.
                let part = |mix: &Tensor, i: usize| {
                    let by_token = five.narrow(0, i, 1)?.reshape((b, t, hidden))?;
                    xs + (&delta * by_token.broadcast_add(mix)?)?
                };
                let [r, k, v, g, w] = parts;
                let w = part(w, 0)?.flatten(0, 1)?.matmul(decay_down)?.tanh()?;
                let w = w.matmul(decay_up)?.reshape((b, t, hidden))?;
                let mixed = [part(r, 3)?, part(k, 1)?, part(v, 2)?, part(g, 4)?];
                Ok((mixed, w.broadcast_add(decay)?))
            }
        }
    }
}

impl ChannelMix {
    async fn load(
        version: Version,
        cfg: &Config,
        weights: &mut Weights<'_>,
        layer: &str,
    ) -> Result<Self> {
        let hidden = cfg.hidden_size;
        let default = (hidden as f64 * 3.5) as usize / 32 * 32;
        let inner = cfg.intermediate_size.unwrap_or(default);
        let name = |part: &str| format!("{layer}.feed_forward.{part}");
        let (mix_key, mix_receptance) = (name("time_mix_key"), name("time_mix_receptance"));
        Ok(Self {
            mix_key: dense(weights, &mix_key, &[1, 1, hidden]).await?,
            mix_receptance: dense(weights, &mix_receptance, &[1, 1, hidden]).await?,
            key: linear(weights, &name("key"), hidden, inner).await?,
            receptance: linear(weights, &name("receptance"), hidden, hidden).await?,
            value: linear(weights, &name("value"), inner, hidden).await?,
            version,
        })
    }

    fn forward(&self, xs: &Tensor, state: &mut StatePerLayer) -> Result<Tensor> {
        let before = shifted(xs, &state.feed_forward.to_dtype(xs.dtype())?)?;
        state.feed_forward = last(xs)?.to_dtype(DType::F32)?;
        // The share is that of the token in version 5, and of the one before it in version 6.
        let (from, to) = match self.version {
            Version::V5 => (&before, xs),
            Version::V6 => (xs, &before),
        };
        let delta = (to - from)?;
        let mixed = |mix: &Tensor| from + delta.broadcast_mul(mix)?;
        let key = self.key.forward(&mixed(&self.mix_key)?)?.relu()?.sqr()?;
        let receptance = self.receptance.forward(&mixed(&self.mix_receptance)?)?;
        sigmoid(&receptance)? * self.value.forward(&key)?
    }
}

async fn linear(
    weights: &mut Weights<'_>,
    name: &str,
    in_dim: usize,
    out_dim: usize,
) -> Result<Projection> {
    let spec = LinearSpec {
        name: name.to_string(),
        in_dim,
        out_dim,
        bias: false,
    };
    weights.linear(&spec).await
}

async fn dense(weights: &mut Weights<'_>, name: &str, shape: &[usize]) -> Result<Tensor> {
    weights.dense(name, shape, Init::Const(0.)).await
}
