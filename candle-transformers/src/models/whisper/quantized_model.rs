//! Whisper over quantised weights, from GGUF files with Hugging Face's tensor names.

use candle_core::Result;

use super::parts::load;
pub use super::parts::{AudioEncoder, TextDecoder};
use super::Config;
use crate::blocks::Quantized;
pub use crate::quantized_var_builder::VarBuilder;

/// The encoder and the decoder of one checkpoint. Linear layers and the table of tokens stay quantised; activations are f32.
#[derive(Debug, Clone)]
pub struct Whisper {
    /// The encoder of the sound.
    pub encoder: AudioEncoder,
    /// The decoder of the text.
    pub decoder: TextDecoder,
    /// Its sizes.
    pub config: Config,
}

impl Whisper {
    /// Loads a checkpoint whose tensors are named `model.encoder.…` and `model.decoder.…`.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or heads do not divide `d_model`.
    pub fn load(vb: &VarBuilder, config: Config) -> Result<Self> {
        let (encoder, decoder) = load::<Quantized>(vb, &config)?;
        Ok(Self {
            encoder,
            decoder,
            config,
        })
    }

    /// Forgets the text and the sound that the decoder holds.
    pub fn reset_kv_cache(&mut self) {
        self.encoder.reset_kv_cache();
        self.decoder.reset_kv_cache();
    }
}
