//! Voxtral, a language model that hears: [arXiv 2507.13264](https://arxiv.org/abs/2507.13264). Weight names are those of
//! [mistralai/Voxtral-Mini-3B-2507](https://huggingface.co/mistralai/Voxtral-Mini-3B-2507) and its larger relative.
//!
//! Whisper's encoder makes vectors of a spectrogram. Four neighbours become one token, which replaces an audio token in the text of a
//! Llama. [`extract_features`] makes the spectrogram, in chunks of 30 seconds.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::voxtral::*;
//! # fn main() -> candle_core::Result<()> {
//! # let text_config = VoxtralLlamaConfig {
//! #     hidden_size: 16, intermediate_size: 32, vocab_size: 64, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
//! #     head_dim: Some(8), max_position_embeddings: 64, ..VoxtralLlamaConfig::voxtral_3b()
//! # };
//! # let audio_config = VoxtralEncoderConfig {
//! #     hidden_size: 8, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_mel_bins: 4, max_source_positions: 8,
//! #     ..VoxtralEncoderConfig::default()
//! # };
//! # let config = VoxtralConfig { audio_config, text_config, ..VoxtralConfig::default() };
//! let device = Device::Cpu;
//! // A real model: `VoxtralConfig::default()`, and VarBuilder::from_mmaped_safetensors.
//! let model = VoxtralForConditionalGeneration::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let mut cache = VoxtralCache::new(true, DType::F32, model.text_config(), &device)?;
//! // 16 frames are 8 vectors and 2 tokens.
//! let sound = Tensor::zeros((1, 4, 16), DType::F32, &device)?;
//! let audio = model.audio_token_id() as u32;
//! let ids = Tensor::new(&[[1u32, audio, audio, 5]], &device)?;
//! let logits = model.forward(&ids, Some(&sound), &mut cache, 0)?;
//! assert_eq!(logits.dims(), &[1, 64]);
//! # Ok(())
//! # }
//! ```

pub mod audio;
mod encoder;
pub mod model;
pub mod voxtral_llama;

pub use audio::extract_features;
pub use model::{
    VoxtralCache, VoxtralConfig, VoxtralEncoder, VoxtralEncoderConfig,
    VoxtralForConditionalGeneration, VoxtralGenerationConfig, VoxtralMultiModalProjector,
};
pub use voxtral_llama::{VoxtralLlama, VoxtralLlamaCache, VoxtralLlamaConfig};

/// Samples in a window of the spectrogram.
pub const N_FFT: usize = 400;
/// Samples from one frame of the spectrogram to the next.
pub const HOP_LENGTH: usize = 160;
/// Bands of the spectrogram.
pub const N_MELS: usize = 128;

const FAMILY: &str = "voxtral";
