//! [`super::mixformer`] with quantised weights, from GGUF files with the names of the dense ones.

use candle_core::{Result, Tensor};

pub use super::mixformer::Config;
use super::mixformer::{logits, with_image, NAMED, SEQUENTIAL};
use crate::blocks::CausalLm;
pub use crate::quantized_var_builder::VarBuilder;

/// The language model and the sequence that it has seen. Activations are f32.
#[derive(Debug, Clone)]
pub struct MixFormerSequentialForCausalLM {
    lm: CausalLm,
}

impl MixFormerSequentialForCausalLM {
    /// Loads `transformer.*` and `lm_head.*`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new_v2(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_quantized_vb(cfg.spec(NAMED)?, vb).map(|lm| Self { lm })
    }

    /// Loads `layers.*`.
    ///
    /// # Errors
    /// As [`new_v2`](Self::new_v2).
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_quantized_vb(cfg.spec(SEQUENTIAL)?, vb).map(|lm| Self { lm })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids, `(b, t)`, which continue the sequence.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, xs: &Tensor) -> Result<Tensor> {
        logits(self.lm.forward_next(xs)?.last_logits()?)
    }

    /// As [`forward`](Self::forward), of a new sequence: the token ids `bos_token`, `(b, n)`, the embeddings of an image, `(b, m, n_embd)`, and
    /// the token ids `xs`, `(b, t)`.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or there are more positions than fit.
    pub fn forward_with_img(
        &mut self,
        bos_token: &Tensor,
        xs: &Tensor,
        img_embeds: &Tensor,
    ) -> Result<Tensor> {
        with_image(&mut self.lm, bos_token, xs, img_embeds)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
