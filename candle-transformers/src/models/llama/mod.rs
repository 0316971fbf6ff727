//! Llama: [arXiv 2302.13971](https://arxiv.org/abs/2302.13971), with the grouped heads of
//! [arXiv 2305.13245](https://arxiv.org/abs/2305.13245), the rotary positions of
//! [arXiv 2104.09864](https://arxiv.org/abs/2104.09864) and Llama 3's scaling of them. Weight names are those of
//! Hugging Face's checkpoints.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

use crate::blocks::{Decoder, DecoderState};

mod config;
mod config_json;

pub use config::{Config, Llama3RopeConfig, Llama3RopeType, LlamaEosToks, DEFAULT_MAX_SEQ_LEN};
pub use config_json::LlamaConfig;

/// The per-sequence state between steps: keys and values per layer, and the rotary tables.
///
/// A clone is independent: appending to one does not change the other.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Whether keys and values are cached. Otherwise every call of [`Llama::forward`] needs the whole sequence.
    pub use_kv_cache: bool,
    state: DecoderState,
}

impl Cache {
    /// An empty cache. `dtype` and `device` are those of the model's weights. Memory for keys and values is taken as
    /// the sequence grows.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(use_kv_cache: bool, dtype: DType, config: &Config, device: &Device) -> Result<Self> {
        Ok(Self {
            use_kv_cache,
            state: DecoderState::new(&config.spec()?, dtype, device),
        })
    }

    /// Forgets the sequence, so that another can start at position 0; cheaper than a new cache, since the rotary
    /// tables stay.
    pub fn reset(&mut self) {
        self.state.reset();
    }

    fn state(&mut self) -> &mut DecoderState {
        self.state.use_cache = self.use_kv_cache;
        &mut self.state
    }
}

/// The Llama language model.
#[derive(Debug, Clone)]
pub struct Llama {
    decoder: Decoder,
}

impl Llama {
    /// Loads the weights: `model.embed_tokens`, `model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj,
    /// post_attention_layernorm, mlp.{gate,up,down}_proj}`, `model.norm`, and `lm_head` unless it is tied to the
    /// embedding.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(mut vb: VarBuilder, cfg: &Config) -> Result<Self> {
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        Decoder::load(cfg.spec()?, &mut vb, dtype, &device).map(|decoder| Self { decoder })
    }

    /// The embeddings of token ids `x`: `(b, t)` to `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If the ids are not of an integer dtype, or one is outside the vocabulary (where the device can tell).
    pub fn embed(&self, x: &Tensor) -> Result<Tensor> {
        self.decoder.embed(x)
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `x`, `(b, t)` in u32.
    ///
    /// The ids are at the positions `index_pos .. index_pos + t`. With a KV cache they continue what `cache` holds;
    /// without, they have to be the whole sequence, and `index_pos` 0.
    ///
    /// # Errors
    /// If `x` holds no ids, or more than fit below the model's `max_position_embeddings`: before any work is queued.
    /// If `cache` was made for another model, dtype or device.
    pub fn forward(&self, x: &Tensor, index_pos: usize, cache: &mut Cache) -> Result<Tensor> {
        let hidden = self.decoder.forward(x, index_pos, cache.state())?;
        hidden.last_logits()?.squeeze(1)?.to_dtype(DType::F32)
    }

    /// As [`Llama::forward`], from embeddings `(b, t, hidden_size)` instead of token ids.
    ///
    /// # Errors
    /// As [`Llama::forward`].
    pub fn forward_input_embed(
        &self,
        input_embed: &Tensor,
        index_pos: usize,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let hidden = self
            .decoder
            .forward_embeds(input_embed, index_pos, cache.state(), None)?;
        hidden.last_logits()?.squeeze(1)?.to_dtype(DType::F32)
    }
}
