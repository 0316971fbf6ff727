//! Transformer models over `candle-core` and `candle-nn`, with the public paths of Hugging Face's Candle 0.11.
//!
//! # Where things are
//! - [`models`]: one file per model family: its configuration, its weight names and what its paper adds.
//! - [`blocks`]: the parts that models share (attention, gated MLP, decoder layer, rotary tables, KV cache).
//! - [`quantized_nn`], [`quantized_var_builder`]: layers over quantised weights, and those weights by name.
//! - [`generation`]: from logits to the next token.
//! - [`utils`]: masks, repeat penalty, repeating KV heads.
//!
//! # Generating text
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::generation::{LogitsProcessor, Sampling};
//! use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: LlamaConfig = serde_json::from_str(
//!     r#"{"hidden_size": 16, "intermediate_size": 32, "vocab_size": 40, "num_hidden_layers": 2,
//!         "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
//!         "max_position_embeddings": 32, "tie_word_embeddings": true}"#,
//! )?;
//! let config = config.into_config(false);
//! let device = Device::Cpu;
//! // In earnest: VarBuilder::from_mmaped_safetensors.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = Llama::load(vb, &config)?;
//! let mut cache = Cache::new(true, DType::F32, &config, &device)?;
//! let mut sampler = LogitsProcessor::from_sampling(42, Sampling::ArgMax);
//!
//! let mut tokens = vec![1u32, 7, 3];
//! let mut index_pos = 0;
//! for _ in 0..4 {
//!     let input = Tensor::new(&tokens[index_pos..], &device)?.unsqueeze(0)?;
//!     let logits = model.forward(&input, index_pos, &mut cache)?.squeeze(0)?;
//!     index_pos = tokens.len();
//!     tokens.push(sampler.sample(&logits)?);
//! }
//! assert_eq!(tokens.len(), 7);
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]

pub mod blocks;
mod compat;
pub mod generation;
pub mod models;
pub mod utils;

// Upstream's paths.
pub use compat::{quantized_nn, quantized_var_builder};
