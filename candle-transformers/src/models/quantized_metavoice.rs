//! [`metavoice`](super::metavoice)'s first stage with quantised weights, from GGUF files with the names of its checkpoint.

pub use crate::quantized_var_builder::VarBuilder;

/// The first stage: a decoder that writes text and sound, with the vector of a voice added to every position.
pub mod transformer {
    use candle_core::{DType, Result, Tensor};

    use super::VarBuilder;
    use crate::models::metavoice::transformer::{Config, Speaker};

    /// The decoder. Activations are f32.
    #[derive(Debug, Clone)]
    pub struct Model {
        speaker: Speaker,
    }

    impl Model {
        /// Loads `tok_embeddings`, `pos_embeddings`, `speaker_cond_pos`, `layers`, `norm` and `output`.
        ///
        /// # Errors
        /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
        pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
            let (device, mut vb) = (vb.device().clone(), vb);
            Ok(Self {
                speaker: Speaker::load(cfg, &mut vb, DType::F32, &device)?,
            })
        }

        /// Forgets the sequence.
        pub fn clear_kv_cache(&mut self) {
            self.speaker.clear_kv_cache();
        }

        /// As [`metavoice::transformer::Model::forward`](crate::models::metavoice::transformer::Model::forward), in f32.
        ///
        /// # Errors
        /// As that.
        pub fn forward(&mut self, xs: &Tensor, spk_emb: &Tensor, pos: usize) -> Result<Tensor> {
            self.speaker.forward(xs, spk_emb, pos)
        }
    }
}
