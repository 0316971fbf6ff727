//! [`super::mpt`] with quantised weights, from GGUF files with the names of the dense ones.

use candle_core::{Result, Tensor};

pub use super::mpt::Config;
use crate::blocks::CausalLm;
pub use crate::quantized_var_builder::VarBuilder;

/// The language model and the sequence that it has seen. Activations are f32.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
}

impl Model {
    /// Loads `wte`, `blocks.*` and `norm_f`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_quantized_vb(cfg.spec()?, vb).map(|lm| Self { lm })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids, `(b, t)`, which continue the sequence.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, xs: &Tensor) -> Result<Tensor> {
        self.lm.forward_next(xs)?.last_logits()?.squeeze(1)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
