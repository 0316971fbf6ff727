//! RWKV 6, Finch: [arXiv 2404.05892](https://arxiv.org/abs/2404.05892). As [`super::rwkv_v5`], but the token says how much of the state is kept.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::rwkv::{from_source, Rwkv, Version};
pub use super::rwkv_v5::{Config, State, Tokenizer};

/// The language model.
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
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        from_source(Version::V6, cfg, &mut vb, dtype, &device).map(|rwkv| Self { rwkv })
    }

    /// The logits, `(b, t, vocab)`, of what follows each of the token ids `xs`, `(b, t)`, which continue what `state` holds.
    ///
    /// # Errors
    /// If there are no ids, or the state was created by a different model or batch.
    pub fn forward(&self, xs: &Tensor, state: &mut State) -> Result<Tensor> {
        self.rwkv.forward(xs, state)
    }
}
