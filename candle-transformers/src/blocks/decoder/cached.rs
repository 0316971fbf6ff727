//! Models whose sequences the caller holds: a configuration says what they are, and Candle's names are aliases of these.

use std::marker::PhantomData;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

use super::{Decoder, DecoderConfig, DecoderState};

/// State of a sequence between its steps: keys and values per layer, next to the rotary tables. A clone is independent. `C` is the
/// model's configuration.
#[derive(Debug, Clone)]
pub struct SequenceCache<C> {
    /// Whether anything is kept. Without, every call has to be given the whole sequence.
    pub use_kv_cache: bool,
    state: DecoderState,
    of: PhantomData<fn() -> C>,
}

impl<C: DecoderConfig> SequenceCache<C> {
    /// An empty cache. `dtype` and `device` are those of the model's weights. Memory for keys and values is taken as the sequence grows.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn new(use_kv_cache: bool, dtype: DType, config: &C, device: &Device) -> Result<Self> {
        Ok(Self {
            use_kv_cache,
            state: DecoderState::new(&config.decoder_spec()?, dtype, device),
            of: PhantomData,
        })
    }
}

impl<C> SequenceCache<C> {
    /// Forgets the sequence, so that another can start at position 0; cheaper than a new cache, since the rotary tables stay.
    pub fn reset(&mut self) {
        self.state.reset();
    }

    /// As [`reset`](Self::reset), by the name that Candle's LFM2 has for it.
    pub fn clear(&mut self) {
        self.reset();
    }

    fn state(&mut self) -> &mut DecoderState {
        self.state.use_cache = self.use_kv_cache;
        &mut self.state
    }
}

/// A language model whose sequences the caller holds, as [`SequenceCache`]s. `C` is its configuration.
#[derive(Debug, Clone)]
pub struct CachedLm<C> {
    decoder: Decoder,
    of: PhantomData<fn() -> C>,
}

impl<C: DecoderConfig> CachedLm<C> {
    /// The model of `cfg` with the weights of `vb`, in its dtype and on its device.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, cfg: &C) -> Result<Self> {
        Ok(Self {
            decoder: Decoder::from_vb(cfg.decoder_spec()?, vb)?,
            of: PhantomData,
        })
    }

    /// As [`load`](Self::load), by the name that Candle's LFM2 has for it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn new(cfg: &C, vb: VarBuilder) -> Result<Self> {
        Self::load(vb, cfg)
    }
}

impl<C> CachedLm<C> {
    /// The embeddings of token ids `x`: `(b, t)` to `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If the ids are not of an integer dtype, or one is outside the vocabulary (where the device can tell).
    pub fn embed(&self, x: &Tensor) -> Result<Tensor> {
        self.decoder.embed(x)
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `x`, `(b, t)` in u32.
    ///
    /// The ids are at the positions `index_pos .. index_pos + t`. With a KV cache they continue what `cache` holds; without, they have to be
    /// the whole sequence, and `index_pos` 0.
    ///
    /// # Errors
    /// If `x` holds no ids, or more than fit below the model's positions: before any work is queued. If `cache` was made for another model,
    /// dtype or device.
    pub fn forward(
        &self,
        x: &Tensor,
        index_pos: usize,
        cache: &mut SequenceCache<C>,
    ) -> Result<Tensor> {
        self.decoder.next_logits(x, index_pos, cache.state())
    }

    /// As [`forward`](Self::forward), from embeddings `(b, t, hidden_size)` instead of token ids.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_input_embed(
        &self,
        input_embed: &Tensor,
        index_pos: usize,
        cache: &mut SequenceCache<C>,
    ) -> Result<Tensor> {
        let hidden = self
            .decoder
            .forward_embeds(input_embed, index_pos, cache.state(), None)?;
        hidden.last_logits()?.squeeze(1)?.to_dtype(DType::F32)
    }

    /// The dtype of weights and activations.
    pub fn dtype(&self) -> DType {
        self.decoder.dtype()
    }
}
