//! Models of text, pictures and sound over `candle-core` and `candle-nn`, and what text is generated with, under the
//! public paths of Hugging Face's `candle-transformers` 0.11.1.
//!
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
//! // A real model: VarBuilder::from_mmaped_safetensors.
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
//!
//! # Usage
//!
//! All model modules of Candle's are here: language models, encoders of text such as [`models::bert`], classifiers of pictures such as
//! [`models::vit`], models that see and hear, diffusion and speech. They are written over shared [`blocks`], which use the fused kernels of
//! candle-nn. crates.io's `candle-transformers` runs unmodified over the other two crates as well, on WebGPU too.
//!
//! - [`auto`] finds the model that a `config.json` or a GGUF file describes. [`models`] has each by itself.
//! - Dense weights come from safetensors by a [`VarBuilder`](candle_nn::VarBuilder), quantised ones from GGUF and GGML files; a
//!   [`blocks::WeightSource`] can be anything.
//! - [`generation::LogitsProcessor`] draws the next token: greedy, top-k, top-p, with a temperature and a seed.
//! - [`parallel::ParallelDecoder`] divides the layers of a decoder over several devices.
//! - [`embed`] turns texts into vectors, by the encoder that a `config.json` describes.
//! - `cargo run --example bert_similarity` compares sentences.
//!
//! # Features
//!
//! All models are there by default. A program that names the groups it needs compiles fewer of them: with `default-features = false`
//! there are the language models that [`auto`] finds by a `config.json` or a GGUF file and the encoders of text that [`embed`] finds, and
//!
//! | feature | modules of [`models`] that it adds |
//! | --- | --- |
//! | `language` | the other language models and encoders of text: `t5`, `marian`, `mamba`, `rwkv_v5` … |
//! | `vision` | pictures: `clip`, `vit`, `segment_anything`, and language models that see, such as `qwen3_vl` |
//! | `whisper` | `whisper` and `silero_vad` |
//! | `sound` | codecs, speech from text, `voxtral` |
//! | `diffusion` | `stable_diffusion`, `wuerstchen`, `flux`, `mmdit`, `z_image` |
//!
//! `sound` and `diffusion` bring `vision` and `language` with them. `tokenizers` is candle-core's.
//!
//! `webgpu`, `mkl`, `accelerate`, `cuda`, `cudnn` and `metal` are passed on to candle-core, whose front page says what they do;
//! `flash-attn` is accepted and changes nothing.
//!
//! # Devices
//!
//! The models run on the CPU and on WebGPU, in f32, f16 and bf16, or with quantised weights.
//!
//! # Errors
//!
//! A configuration that does not fit, a tensor that is missing or has another shape, and metadata that is not understood are errors
//! that name the field, the tensor or the key.
//!
//! # Untrusted input
//!
//! Sizes in a configuration or a GGUF file are checked before memory is taken for them; the files themselves are read by candle-core,
//! which takes damaged ones as errors.
//!
//! # Where things are
//!
//! - [`models`]: a file per family: its configuration, its weight names and what it makes of the kit. [`blocks`]: the kit.
//! - [`quantized_nn`], [`quantized_var_builder`]: layers over quantised weights, and those weights by name.
//! - [`parallel`]: a decoder over several devices. [`embed`]: encoders of text, from tokens to a vector for each text.
//! - [`generation`]: from logits to the next token.
//! - [`object_detection`]: boxes around objects, and the choice of one for each. [`utils`]: masks, repeat penalty, repeated heads.
#![deny(missing_docs)]
// What the blocks have for models that are left out. With all features, code that nothing uses is found.
#![cfg_attr(not(all(feature = "diffusion", feature = "sound")), allow(dead_code))]

pub mod auto;
pub mod blocks;
mod compat;
pub mod embed;
pub mod fused_moe;
pub mod generation;
pub mod models;
pub mod object_detection;
pub mod parallel;
pub mod pipelines;
pub mod utils;

// Upstream's paths.
pub use compat::{quantized_nn, quantized_var_builder};
