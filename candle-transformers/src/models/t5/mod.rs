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

use candle_core::{Module, Result, Tensor};
use candle_nn::{init, VarBuilder};

mod config;
mod distance;
pub(super) mod model;
mod stack;

pub use config::{deserialize_feed_forward_proj_activation, ActivationWithOptionalGating, Config};

use crate::blocks::Dense;

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
pub type T5EncoderModel = model::EncoderModel<Dense>;

/// From a text to another: an encoder, and a decoder with a layer over the tokens.
pub type T5ForConditionalGeneration = model::TextModel<Dense>;
