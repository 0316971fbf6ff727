//! Whisper, speech to text by an encoder of sound and a decoder of text: [arXiv 2212.04356](https://arxiv.org/abs/2212.04356). Weight names
//! are those of the checkpoints on Hugging Face: `tiny` to `large-v3`, `large-v3-turbo` and Distil-Whisper.
//!
//! - [`model::Whisper`] and [`quantized_model::Whisper`] are the network over dense and over quantised weights;
//! - [`audio`] makes its input, a log-mel spectrogram, out of samples;
//! - [`transcribe`] makes text out of a recording of any length, with times, language and the rules that keep the decoder from repeating
//!   itself.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::whisper::{model::Whisper, Config, DTYPE};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Config = serde_json::from_str(
//!     r#"{"num_mel_bins": 8, "max_source_positions": 10, "d_model": 16, "encoder_attention_heads": 2, "encoder_layers": 1,
//!         "vocab_size": 40, "max_target_positions": 12, "decoder_attention_heads": 2, "decoder_layers": 1}"#,
//! )?;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = Whisper::load(&VarBuilder::zeros(DTYPE, &Device::Cpu), config)?;
//! let mel = Tensor::zeros((1, 8, 20), DTYPE, &Device::Cpu)?;
//! let sound = model.encoder.forward(&mel, true)?;
//! let tokens = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
//! let hidden = model.decoder.forward(&tokens, &sound, true)?;
//! assert_eq!(model.decoder.final_linear(&hidden)?.dims(), &[1, 3, 40]);
//! # Ok(())
//! # }
//! ```

pub mod audio;
pub mod model;
mod parts;
pub mod quantized_model;
pub mod transcribe;

use candle_core::DType;
use serde::Deserialize;

/// Sizes, as `config.json` has them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Bands of the spectrogram: 80, or 128 since `large-v3`.
    pub num_mel_bins: usize,
    /// The most positions of the encoder, of two frames each: 1500.
    pub max_source_positions: usize,
    /// Size of the vectors between the layers.
    pub d_model: usize,
    /// Heads of the encoder's attention.
    pub encoder_attention_heads: usize,
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The most tokens of the decoder: 448.
    pub max_target_positions: usize,
    /// Heads of the decoder's attention.
    pub decoder_attention_heads: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Tokens that are never chosen.
    #[serde(default)]
    pub suppress_tokens: Vec<u32>,
}

/// The dtype that programs load checkpoints in. Others work too.
pub const DTYPE: DType = DType::F32;

/// Samples in a second.
pub const SAMPLE_RATE: usize = 16000;
/// Samples in a window of the spectrogram.
pub const N_FFT: usize = 400;
/// Samples from one frame of the spectrogram to the next.
pub const HOP_LENGTH: usize = 160;
/// Seconds that the encoder takes at once.
pub const CHUNK_LENGTH: usize = 30;
/// Samples that the encoder takes at once.
pub const N_SAMPLES: usize = CHUNK_LENGTH * SAMPLE_RATE;
/// Frames of the spectrogram that the encoder takes at once.
pub const N_FRAMES: usize = N_SAMPLES / HOP_LENGTH;

/// A window has no speech if [`NO_SPEECH_TOKENS`] are more probable than this, and the text less than [`LOGPROB_THRESHOLD`].
pub const NO_SPEECH_THRESHOLD: f64 = 0.6;
/// A text of a lower mean log-probability is tried again at a higher temperature.
pub const LOGPROB_THRESHOLD: f64 = -1.0;
/// The temperatures that are tried in this order.
pub const TEMPERATURES: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// A text that compresses better than this repeats itself, and is tried again at a higher temperature.
pub const COMPRESSION_RATIO_THRESHOLD: f64 = 2.4;

/// Begins a text; the language follows.
pub const SOT_TOKEN: &str = "<|startoftranscript|>";
/// Asks for the text in the language that is spoken.
pub const TRANSCRIBE_TOKEN: &str = "<|transcribe|>";
/// Asks for the text in English.
pub const TRANSLATE_TOKEN: &str = "<|translate|>";
/// Asks for a text without times.
pub const NO_TIMESTAMPS_TOKEN: &str = "<|notimestamps|>";
/// Ends a text.
pub const EOT_TOKEN: &str = "<|endoftext|>";
/// The tokens for windows without speech: of newer vocabularies and of older ones.
pub const NO_SPEECH_TOKENS: [&str; 2] = ["<|nocaptions|>", "<|nospeech|>"];
