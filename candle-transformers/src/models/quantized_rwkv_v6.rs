//! [`super::rwkv_v6`] with quantised weights, from GGUF files with the names of the dense ones.

use candle_core::{DType, Result, Tensor};

use super::rwkv::{from_source, Rwkv, Version};
pub use super::rwkv_v5::{Config, State, Tokenizer};
use crate::quantized_var_builder::VarBuilder;

/// The language model. Activations are f32.
#[derive(Debug, Clone)]
pub struct Model {
    rwkv: Rwkv,
}

impl Model {
    /// Loads `rwkv.*` and `head`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, mut vb: VarBuilder) -> Result<Self> {
        let device = vb.device().clone();
        from_source(Version::V6, cfg, &mut vb, DType::F32, &device).map(|rwkv| Self { rwkv })
    }

    /// The logits, `(b, t, vocab)`, of what follows each of the token ids `xs`, `(b, t)`, which continue what `state` holds.
    ///
    /// # Errors
    /// If there are no ids, or the state was created by a different model or batch.
    pub fn forward(&self, xs: &Tensor, state: &mut State) -> Result<Tensor> {
        self.rwkv.forward(xs, state)
    }
}
