//! T5's models, over dense or quantised weights.

use std::marker::PhantomData;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

use super::stack::{Encoder, Generator};
use super::Config;
use crate::blocks::{at_once, Dense, WeightKind};

/// The encoder alone, over dense or quantised weights: from token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct EncoderModel<W> {
    encoder: Encoder,
    of: PhantomData<fn() -> W>,
}

impl<W: WeightKind> EncoderModel<W> {
    pub(in crate::models) fn of(vb: W::Builder<'_>, cfg: &Config) -> Result<Self> {
        Ok(Self {
            encoder: W::load(vb, |weights| at_once(Encoder::load(cfg, weights)))?,
            of: PhantomData,
        })
    }

    /// The vectors of the tokens `input_ids`, (batch, seq): (batch, seq, d_model). All tokens are seen, padding too.
    ///
    /// # Errors
    /// If there are no tokens, or an id is outside the table (where the device can tell).
    pub fn forward(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        self.encoder.forward(input_ids, None, None)
    }

    /// As [`forward`](Self::forward), computed in `dtype`, to which a layer's weights are converted when it is reached.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_dt(&mut self, input_ids: &Tensor, dtype: Option<DType>) -> Result<Tensor> {
        self.encoder.forward(input_ids, None, dtype)
    }

    /// As [`forward`](Self::forward), with a mask: `attention_mask` is (batch, seq), 1 where a token may be attended to and 0 where it is
    /// hidden. The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and if the shapes do not match.
    pub fn forward_masked(
        &mut self,
        input_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.encoder.forward(input_ids, attention_mask, None)
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.encoder.device
    }

    /// Changes nothing: an encoder keeps no tokens.
    pub fn clear_kv_cache(&mut self) {}
}

impl EncoderModel<Dense> {
    /// Loads `shared.weight`, the table of tokens, and what is below `encoder`. The table may also be `decoder.embed_tokens.weight` or
    /// `encoder.embed_tokens.weight`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        Self::of(vb, cfg)
    }
}

/// From a text to another, over dense or quantised weights: an encoder, and a decoder with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct TextModel<W> {
    model: Generator,
    of: PhantomData<fn() -> W>,
}

impl<W: WeightKind> TextModel<W> {
    pub(in crate::models) fn of(vb: W::Builder<'_>, cfg: &Config) -> Result<Self> {
        Ok(Self {
            model: W::load(vb, |weights| at_once(Generator::load(cfg, weights)))?,
            of: PhantomData,
        })
    }

    /// The vectors of the tokens that are read, (batch, seq): (batch, seq, d_model).
    ///
    /// # Errors
    /// If there are no tokens, or an id is outside the table (where the device can tell).
    pub fn encode(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        self.model.encoder.forward(input_ids, None, None)
    }

    /// As [`encode`](Self::encode), with a mask as [`EncoderModel::forward_masked`] has it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), and if the shapes do not match.
    pub fn encode_masked(
        &mut self,
        input_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.model.encoder.forward(input_ids, attention_mask, None)
    }

    /// The logits of the token after `decoder_input_ids`, (batch, t): (batch, vocab_size). `encoder_output` is what
    /// [`encode`](Self::encode) returned.
    ///
    /// If the configuration has `use_cache`, the tokens follow those of the calls since the last
    /// [`clear_kv_cache`](Self::clear_kv_cache); otherwise all of the text is given in each call. The keys and values of
    /// `encoder_output` are computed once, as long as it is the same tensor.
    ///
    /// # Errors
    /// If there are no tokens, the shapes do not match each other or the calls before, or an id is outside the table (where the device
    /// can tell).
    pub fn decode(
        &mut self,
        decoder_input_ids: &Tensor,
        encoder_output: &Tensor,
    ) -> Result<Tensor> {
        self.model.decode(decoder_input_ids, encoder_output, None)
    }

    /// As [`decode`](Self::decode), with the mask that [`encode_masked`](Self::encode_masked) was given.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_masked(
        &mut self,
        decoder_input_ids: &Tensor,
        encoder_output: &Tensor,
        encoder_attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.model
            .decode(decoder_input_ids, encoder_output, encoder_attention_mask)
    }

    /// [`encode`](Self::encode) and [`decode`](Self::decode).
    ///
    /// # Errors
    /// As these.
    pub fn forward(&mut self, input_ids: &Tensor, decoder_input_ids: &Tensor) -> Result<Tensor> {
        let encoder_output = self.encode(input_ids)?;
        self.decode(decoder_input_ids, &encoder_output)
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.model.encoder.device
    }

    /// Forgets the text that was decoded, so that another can begin.
    pub fn clear_kv_cache(&mut self) {
        self.model.reset();
    }
}

impl TextModel<Dense> {
    /// Loads what [`EncoderModel::load`] does, what is below `decoder`, and unless `cfg.tie_word_embeddings` is set, `lm_head.weight`.
    ///
    /// # Errors
    /// If the configuration contradicts itself or has no decoder, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        Self::of(vb, cfg)
    }
}
