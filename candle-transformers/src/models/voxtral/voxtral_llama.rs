//! The decoder: a Llama whose head size is set apart from the size of the stream.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::family::LlamaLike;
use crate::blocks::{Decoder, DecoderSpec, DecoderState, Head, Hidden};

/// Not used: the limit is [`VoxtralLlamaConfig::max_position_embeddings`].
pub const DEFAULT_MAX_SEQ_LEN: usize = 4096;

/// The numbers of the decoder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct VoxtralLlamaConfig {
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Head dimension; default: `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// No effect: attention is fused on every device.
    pub use_flash_attn: bool,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
}

impl VoxtralLlamaConfig {
    /// That of [mistralai/Voxtral-Mini-3B-2507](https://huggingface.co/mistralai/Voxtral-Mini-3B-2507).
    pub fn voxtral_3b() -> Self {
        Self {
            hidden_size: 3072,
            intermediate_size: 8192,
            vocab_size: 131_072,
            num_hidden_layers: 30,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: Some(128),
            use_flash_attn: true,
            rms_norm_eps: 1e-5,
            rope_theta: 1e8,
            max_position_embeddings: 131_072,
            tie_word_embeddings: false,
        }
    }

    /// That of [mistralai/Voxtral-Small-24B-2507](https://huggingface.co/mistralai/Voxtral-Small-24B-2507).
    pub fn voxtral_24b() -> Self {
        Self {
            hidden_size: 5120,
            intermediate_size: 32_768,
            num_hidden_layers: 40,
            ..Self::voxtral_3b()
        }
    }

    /// The decoder that it describes.
    fn spec(&self) -> Result<DecoderSpec> {
        LlamaLike {
            family: FAMILY,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta.into(),
            norm_eps: self.rms_norm_eps,
            activation: Activation::Silu,
            head: Head::tied(self.tie_word_embeddings),
        }
        .spec(|_, _, _| {})
    }
}

/// The per-sequence state between steps: keys and values per layer. A clone is independent.
#[derive(Debug, Clone)]
pub struct VoxtralLlamaCache {
    /// Whether keys and values are cached. Otherwise every call needs the whole sequence, at position 0.
    pub use_kv_cache: bool,
    state: DecoderState,
    dtype: DType,
}

impl VoxtralLlamaCache {
    /// An empty cache. Memory for keys and values is taken as the sequence grows. A model of another dtype than `dtype` makes it its own.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(
        use_kv_cache: bool,
        dtype: DType,
        config: &VoxtralLlamaConfig,
        device: &Device,
    ) -> Result<Self> {
        Ok(Self {
            use_kv_cache,
            state: DecoderState::new(&config.spec()?, dtype, device),
            dtype,
        })
    }

    /// Forgets the sequence.
    pub(super) fn reset(&mut self) {
        self.state.reset();
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct VoxtralLlama {
    decoder: Decoder,
}

impl VoxtralLlama {
    /// Loads `model.*`, and `lm_head` unless it is tied.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn load(vb: VarBuilder, cfg: &VoxtralLlamaConfig) -> Result<Self> {
        Decoder::from_vb(cfg.spec()?, vb).map(|decoder| Self { decoder })
    }

    /// From ids, (b, t) or of any other shape, to embeddings, (b, t, hidden_size).
    ///
    /// # Errors
    /// If the ids are not integers, or one is outside the vocabulary (where the device can tell).
    pub fn embed(&self, x: &Tensor) -> Result<Tensor> {
        self.decoder.embed(x)
    }

    /// As [`forward`](Self::forward), from embeddings (b, t, hidden_size) instead of ids.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_input_embed(
        &self,
        input_embed: &Tensor,
        index_pos: usize,
        cache: &mut VoxtralLlamaCache,
    ) -> Result<Tensor> {
        let state = self.state(index_pos, cache);
        let hidden = self
            .decoder
            .forward_embeds(input_embed, index_pos, state, None)?;
        logits(hidden)
    }

    /// The logits, (b, vocab) in f32, of what follows the last of the token ids `x`, (b, t), at the positions from `index_pos` on. At 0 a
    /// new sequence begins; elsewhere they continue the one of `cache`.
    ///
    /// # Errors
    /// If there are no ids, or more than fit below `max_position_embeddings`; if `cache` was made for another model or device.
    pub fn forward(
        &self,
        x: &Tensor,
        index_pos: usize,
        cache: &mut VoxtralLlamaCache,
    ) -> Result<Tensor> {
        let state = self.state(index_pos, cache);
        logits(self.decoder.forward(x, index_pos, state)?)
    }

    /// The dtype of embeddings.
    pub(super) fn dtype(&self) -> DType {
        self.decoder.dtype()
    }

    fn state<'a>(
        &self,
        index_pos: usize,
        cache: &'a mut VoxtralLlamaCache,
    ) -> &'a mut DecoderState {
        if index_pos == 0 {
            cache.state.reset();
            if cache.dtype != self.decoder.dtype() {
                cache.state = self.decoder.new_state();
                cache.dtype = self.decoder.dtype();
            }
        }
        cache.state.use_cache = cache.use_kv_cache;
        &mut cache.state
    }
}

fn logits(hidden: Hidden<'_>) -> Result<Tensor> {
    hidden.last_logits()?.squeeze(1)?.to_dtype(DType::F32)
}
