//! Text, vision and audio models built on `candle-core` and `candle-nn`, with text generation, under the public paths of Hugging
//! Face's `candle-transformers` 0.11.1.
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
//! The crate has all model modules of Candle: language models, text encoders such as [`models::bert`], image classifiers such as
//! [`models::vit`], vision- and audio-language models, diffusion and speech. They are built from shared [`blocks`], which use the fused
//! kernels of candle-nn. crates.io's `candle-transformers` also runs unmodified on the other two crates, including WebGPU.
//!
//! - [`auto`] selects the model that a `config.json` or a GGUF file describes. [`models`] has the individual models.
//! - Dense weights come from safetensors through a [`VarBuilder`](candle_nn::VarBuilder), quantised ones from GGUF and GGML files; a
//!   [`blocks::WeightSource`] can be any other source.
//! - [`generation::LogitsProcessor`] samples the next token: greedy, top-k, top-p, with a temperature and a seed.
//! - [`parallel::ParallelDecoder`] divides the layers of a decoder over several devices.
//! - [`embed`] computes text embeddings with the encoder that a `config.json` describes, [`rerank`] scores of documents for a query.
//! - `cargo run --example bert_similarity` compares sentences.
//!
//! # Features
//!
//! All models are compiled, with and without default features. With the feature `subset` and without default features, a program compiles
//! fewer: the language models that [`auto`] finds by a `config.json` or a GGUF file, the encoders of text that [`embed`] finds, and the
//! groups that it names:
//!
//! | feature | modules of [`models`] that it adds |
//! | --- | --- |
//! | `language` | the other language models and encoders of text: `t5`, `marian`, `mamba`, `rwkv_v5` … |
//! | `vision` | images: `clip`, `vit`, `segment_anything`, and language models that see, such as `qwen3_vl` |
//! | `whisper` | `whisper` and `silero_vad` |
//! | `sound` | codecs, speech from text, `voxtral` |
//! | `diffusion` | `stable_diffusion`, `wuerstchen`, `flux`, `mmdit`, `z_image` |
//!
//! `sound` and `diffusion` include `vision` and `language`. `tokenizers` is candle-core's.
//!
//! `webgpu`, `mkl`, `accelerate`, `cuda`, `cudnn` and `metal` forward to candle-core, whose front page describes them; `flash-attn` is
//! accepted and has no effect.
//!
//! # Devices
//!
//! The models run on the CPU, WebGPU and CUDA, in f32, f16 and bf16, or with quantised weights.
//!
//! # Errors
//!
//! Invalid configurations, missing tensors, wrong shapes and invalid metadata are errors that name the field, the tensor or the key.
//!
//! # Untrusted input
//!
//! Sizes in a configuration or a GGUF file are checked before allocation. candle-core reads the files and returns an error for damaged
//! ones.
//!
//! # Modules
//!
//! - [`models`]: a file per family, with its configuration, weight names and specification, and [the meaning of the configurations'
//!   fields](models#configuration-fields). [`blocks`]: the shared layers.
//! - [`quantized_nn`], [`quantized_var_builder`]: layers with quantised weights, and those weights by name.
//! - [`parallel`]: a decoder over several devices. [`embed`]: text encoders, from tokens to an embedding per text. [`rerank`]:
//!   from a query and a document to their score.
//! - [`lora`]: adapters of peft over a decoder. [`pictures`]: images in the prompts of language models.
//! - [`generation`]: from logits to the next token.
//! - [`object_detection`]: bounding boxes and non-maximum suppression. [`utils`]: masks, repeat penalty, repeated heads. [`wav`]: sound as
//!   a file.
#![deny(missing_docs)]
// Parts of the blocks for models that are disabled. With all features, unused code is reported.
#![cfg_attr(
    all(feature = "subset", not(all(feature = "diffusion", feature = "sound"))),
    allow(dead_code, unused_imports)
)]

pub mod auto;
pub mod blocks;
mod compat;
pub mod embed;
pub mod fused_moe;
pub mod generation;
pub mod lora;
pub mod models;
pub mod object_detection;
pub mod parallel;
pub mod pictures;
pub mod pipelines;
pub mod rerank;
pub mod utils;
pub mod wav;

// Upstream's paths.
pub use compat::{quantized_nn, quantized_var_builder};
