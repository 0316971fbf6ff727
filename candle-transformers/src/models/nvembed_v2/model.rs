//! The whole model, from tokens to a text's vector.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::ops::{gated, sdpa_with, GatedActivation, SdpaOptions};
use candle_nn::{layer_norm, linear, linear_no_bias, LayerNorm, Linear, VarBuilder};

use super::embedding;
use crate::blocks::encoder::mean_of_seen;
use crate::models::mistral::Config;

/// The inner size of the feed-forward block, in vectors.
const INNER: usize = 4;
const NORM_EPS: f64 = 1e-5;

/// The block behind the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentConfig {
    /// Number of learned vectors.
    pub latents: usize,
    /// Heads that look at them.
    pub heads: usize,
    /// Head dimension.
    pub head_dim: usize,
}

/// NV-Embed v2's: 512, with 8 heads of 4096.
impl Default for LatentConfig {
    fn default() -> Self {
        Self {
            latents: 512,
            heads: 8,
            head_dim: 4096,
        }
    }
}

/// Each token looks at learned vectors, which are the same for all texts: what it sees of them is computed when they are loaded.
#[derive(Debug)]
struct LatentAttention {
    norm: LayerNorm,
    to_q: Linear,
    /// (1, heads, latents, head_dim).
    keys: Tensor,
    /// (1, heads, latents, head_dim).
    values: Tensor,
    to_out: Linear,
    ff_norm: LayerNorm,
    ff_in: Linear,
    ff_out: Linear,
}

impl LatentAttention {
    fn load(config: &LatentConfig, dim: usize, vb: VarBuilder) -> Result<Self> {
        let LatentConfig {
            latents,
            heads,
            head_dim,
        } = *config;
        if latents == 0 || heads == 0 || head_dim == 0 {
            bail!("nvembed_v2: {latents} latents, {heads} heads of size {head_dim}; each must be at least 1")
        }
        let inner = heads * head_dim;
        let rows = vb.get((latents, dim), "latents")?.unsqueeze(0)?;
        let (attention, ff) = (
            vb.pp("cross_attend_blocks.0"),
            vb.pp("cross_attend_blocks.1"),
        );
        let rows = layer_norm(dim, NORM_EPS, attention.pp("norm_context"))?.forward(&rows)?;
        let seen = linear_no_bias(dim, 2 * inner, attention.pp("fn.to_kv"))?.forward(&rows)?;
        let by_head = seen
            .reshape((1, latents, 2 * heads, head_dim))?
            .transpose(1, 2)?
            .contiguous()?;
        Ok(Self {
            norm: layer_norm(dim, NORM_EPS, attention.pp("norm"))?,
            to_q: linear_no_bias(dim, inner, attention.pp("fn.to_q"))?,
            keys: by_head.narrow(1, 0, heads)?,
            values: by_head.narrow(1, heads, heads)?,
            to_out: linear_no_bias(inner, dim, attention.pp("fn.to_out"))?,
            ff_norm: layer_norm(dim, NORM_EPS, ff.pp("norm"))?,
            ff_in: passed_last(linear(dim, 2 * INNER * dim, ff.pp("fn.net.0"))?)?,
            ff_out: linear(INNER * dim, dim, ff.pp("fn.net.2"))?,
        })
    }

    /// (batch, seq, dim) to the same.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let (_, heads, latents, head_dim) = self.keys.dims4()?;
        let q = self.to_q.forward(&self.norm.forward(xs)?)?;
        let q = q.reshape((b, t, heads, head_dim))?.transpose(1, 2)?;
        let all = |rows: &Tensor| rows.expand((b, heads, latents, head_dim));
        let options = SdpaOptions {
            scale: 1. / (head_dim as f32).sqrt(),
            ..SdpaOptions::default()
        };
        let seen = sdpa_with(&q, &all(&self.keys)?, &all(&self.values)?, &options)?;
        let seen = seen.transpose(1, 2)?.reshape((b, t, heads * head_dim))?;
        let xs = (self.to_out.forward(&seen)? + xs)?;
        let inner = self.ff_in.forward(&self.ff_norm.forward(&xs)?)?;
        self.ff_out
            .forward(&gated(&inner, GatedActivation::Gelu)?)?
            + xs
    }
}

/// A layer whose outputs are what is passed and then its gate, with the gate first, as [`gated`] takes them.
fn passed_last(layer: Linear) -> Result<Linear> {
    let swapped = |rows: &Tensor| {
        let half = rows.dim(0)? / 2;
        Tensor::cat(&[rows.narrow(0, half, half)?, rows.narrow(0, 0, half)?], 0)
    };
    let bias = layer.bias().map(swapped).transpose()?;
    Ok(Linear::new(swapped(layer.weight())?, bias))
}

/// The model.
#[derive(Debug)]
pub struct Model {
    embedding_model: embedding::Model,
    latent: LatentAttention,
    /// Its device.
    pub device: Device,
    /// The dtype of its weights.
    pub dtype: DType,
}

impl Model {
    /// [NV-Embed-v2](https://huggingface.co/nvidia/NV-Embed-v2), 7.9 billion parameters: `embedding_model` and `latent_attention_model`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let config = Config::config_7b_v0_1(false);
        Self::with_config(&config, &LatentConfig::default(), vb)
    }

    /// As [`new`](Self::new), of other sizes. Not in upstream's interface.
    ///
    /// # Errors
    /// If a configuration contradicts itself, or a weight is missing or has another shape than they say.
    pub fn with_config(config: &Config, latent: &LatentConfig, vb: VarBuilder) -> Result<Self> {
        let weights = vb.pp("latent_attention_model");
        Ok(Self {
            embedding_model: embedding::Model::new(config, vb.pp("embedding_model"))?,
            latent: LatentAttention::load(latent, config.hidden_size, weights)?,
            device: vb.device().clone(),
            dtype: vb.dtype(),
        })
    }

    /// The vectors of texts, (batch, hidden_size), not normalised, from token ids (batch, seq). `attn_mask` is 1 where a token is seen,
    /// `pool_mask` where it counts in the mean, and 0 elsewhere; both are (batch, seq), of any dtype.
    ///
    /// # Errors
    /// If the shapes differ, there are no tokens or more than the model takes.
    pub fn forward(
        &mut self,
        input_ids: &Tensor,
        attn_mask: &Tensor,
        pool_mask: &Tensor,
    ) -> Result<Tensor> {
        let xs = self.forward_tokens(input_ids, attn_mask)?;
        mean_of_seen("nvembed_v2", &xs, pool_mask)
    }

    /// The vectors of the tokens, (batch, seq, hidden_size); [`forward`](Self::forward) returns their mean. Not in upstream's interface.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_tokens(&self, input_ids: &Tensor, attn_mask: &Tensor) -> Result<Tensor> {
        let xs = self.embedding_model.hidden(input_ids, attn_mask)?;
        self.latent.forward(&xs)
    }
}
