//! Mistral with quantised weights, from GGUF files with the names of Hugging Face's checkpoints. The model is [`super::mistral`]'s.

use candle_core::{Result, Tensor};

use crate::blocks::CausalLm;

pub use super::mistral::Config;
pub use crate::quantized_var_builder::VarBuilder;

/// The language model. Activations are f32.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
}

impl Model {
    /// Loads `model.*` and `lm_head`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_quantized_vb(cfg.spec()?, vb).map(|lm| Self { lm })
    }

    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in f32, for ids `(b, t)` at the positions from
    /// `seqlen_offset` on; at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        self.lm.forward(input_ids, seqlen_offset)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
