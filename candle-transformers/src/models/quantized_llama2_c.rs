//! [`super::llama2_c`] with quantised weights, from GGUF files with the names of Hugging Face's checkpoints.

use candle_core::{DType, Result, Tensor};

use super::llama2_c::{logits, Cache, Config};
use crate::blocks::Decoder;

pub use crate::quantized_var_builder::VarBuilder;

/// The language model. Activations are f32.
#[derive(Debug, Clone)]
pub struct QLlama {
    decoder: Decoder,
    /// The configuration of the model.
    pub config: Config,
}

impl QLlama {
    /// Loads `model.*` and `lm_head`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn load(mut vb: VarBuilder, cfg: Config) -> Result<Self> {
        let device = vb.device().clone();
        Ok(Self {
            decoder: Decoder::load(cfg.spec()?, &mut vb, DType::F32, &device)?,
            config: cfg,
        })
    }

    /// As [`Llama::forward`](super::llama2_c::Llama::forward).
    ///
    /// # Errors
    /// As there.
    pub fn forward(&self, x: &Tensor, index_pos: usize, cache: &mut Cache) -> Result<Tensor> {
        logits(&self.decoder, x, index_pos, cache)
    }
}
