//! T5, an encoder and a decoder of text: [arXiv 1910.10683](https://arxiv.org/abs/1910.10683). Weight names are those of Hugging Face's
//! checkpoints; Flan-T5, mT5, UL2, CoEdIT and MADLAD-400 are such models, and the encoders of FLUX, Stable Diffusion 3 and MusicGen.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::t5::{Config, T5ForConditionalGeneration};
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { vocab_size: 40, d_model: 16, d_kv: 8, d_ff: 32, num_layers: 1, num_heads: 2, ..Config::default() };
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = T5ForConditionalGeneration::load(VarBuilder::zeros(DType::F32, &device), &config)?;
//! let encoded = model.encode(&Tensor::new(&[[13u32, 7, 9, 1]], &device)?)?;
//! // The decoder keeps what it has seen: each token is given once.
//! let mut token = config.decoder_start_token_id.unwrap_or(config.pad_token_id) as u32;
//! for _ in 0..3 {
//!     let logits = model.decode(&Tensor::new(&[[token]], &device)?, &encoded)?;
//!     token = logits.squeeze(0)?.argmax(0)?.to_scalar()?;
//! }
//! model.clear_kv_cache();
//! # Ok(())
//! # }
//! ```
//!
//! In f16 the sums of the layers' outputs are kept in f32, and feed-forward blocks are computed with numbers that are smaller by a power of
//! two: the checkpoints were trained in bf16, and have outputs that f16 cannot hold.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{init, VarBuilder};

mod config;
mod distance;
pub(super) mod stack;

pub use config::{deserialize_feed_forward_proj_activation, ActivationWithOptionalGating, Config};

use crate::blocks::{at_once, Weights};

/// A linear layer that is applied in the dtype of its argument.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Tensor,
}

/// Loads `weight`, (`d2`, `d1`).
///
/// # Errors
/// If it is missing or has another shape.
pub fn linear_no_bias(d1: usize, d2: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get_with_hints((d2, d1), "weight", init::DEFAULT_KAIMING_NORMAL)?;
    Ok(Linear { weight })
}

/// From (.., d1) to (.., d2).
impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let weight = self.weight.to_dtype(xs.dtype())?;
        candle_nn::Linear::new(weight, None).forward(xs)
    }
}

/// The encoder alone: from token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct T5EncoderModel {
    encoder: stack::Encoder,
}

impl T5EncoderModel {
    /// Loads `shared.weight`, the table of tokens, and what is below `encoder`. The table may also be `decoder.embed_tokens.weight` or
    /// `encoder.embed_tokens.weight`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        let (dtype, device, mut vb) = (vb.dtype(), vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, dtype, &device);
        Ok(Self {
            encoder: at_once(stack::Encoder::load(cfg, &mut weights))?,
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

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        &self.encoder.device
    }

    /// Changes nothing: an encoder keeps no tokens.
    pub fn clear_kv_cache(&mut self) {}
}

/// From a text to another: an encoder, and a decoder with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct T5ForConditionalGeneration {
    model: stack::Generator,
}

impl T5ForConditionalGeneration {
    /// Loads what [`T5EncoderModel::load`] does, what is below `decoder`, and unless `cfg.tie_word_embeddings` is set, `lm_head.weight`.
    ///
    /// # Errors
    /// If the configuration contradicts itself or has no decoder, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        let (dtype, device, mut vb) = (vb.dtype(), vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, dtype, &device);
        Ok(Self {
            model: at_once(stack::Generator::load(cfg, &mut weights))?,
        })
    }

    /// The vectors of the tokens that are read, (batch, seq): (batch, seq, d_model).
    ///
    /// # Errors
    /// If there are no tokens, or an id is outside the table (where the device can tell).
    pub fn encode(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        self.model.encoder.forward(input_ids, None, None)
    }

    /// As [`encode`](Self::encode), with a mask as [`T5EncoderModel::forward_masked`] has it.
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

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        &self.model.encoder.device
    }

    /// Forgets the text that was decoded, so that another can begin.
    pub fn clear_kv_cache(&mut self) {
        self.model.reset();
    }
}
