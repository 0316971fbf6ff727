//! [`super::recurrent_gemma`] with quantised weights, from GGUF files with the names of the dense ones.

use candle_core::{Result, Tensor};

use super::recurrent_gemma::Config;
use crate::blocks::CausalLm;
pub use crate::quantized_var_builder::VarBuilder;

/// The language model and the sequence that it has seen. Activations are f32.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
}

impl Model {
    /// Loads `embed_tokens`, `layers.*` and `final_norm`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_quantized_vb(cfg.spec()?, vb).map(|lm| Self { lm })
    }

    /// The logits, `(b, 1, vocab)` in f32, of what follows the last of the token ids `xs`, `(b, t)`, which are at the positions from `pos` on;
    /// at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, xs: &Tensor, pos: usize) -> Result<Tensor> {
        self.lm.forward(xs, pos)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
