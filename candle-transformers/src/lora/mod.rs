//! LoRA: adapters of [peft](https://github.com/huggingface/peft) over the linear layers and the tables of a decoder. Not in upstream's
//! interface.
//!
//! An adapter adds `scale * B A` to a weight `W`, with `A` of `(rank, inputs)` and `B` of `(outputs, rank)`. A dense weight gets the sum when
//! it is read. A weight of a GGUF file stays as it is, and `scale * B (A x)` is added to what it gives.
//!
//! [`Adapter`] is what a folder has, [`Plan`] what adapters change in a model, and [`Plan::over`] the model's weights with the changes.
//!
//! ```no_run
//! use candle_core::{DType, Device};
//! use candle_nn::VarBuilder;
//! use candle_transformers::{auto, blocks::Decoder, lora};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let spec = auto::config_spec(&std::fs::read_to_string("model/config.json")?)?;
//! // SAFETY: nothing changes the file while it is mapped.
//! let mut weights = unsafe {
//!     VarBuilder::from_mmaped_safetensors(&["model/model.safetensors"], DType::F32, &device)?
//! };
//! let adapter = lora::Adapter::open("adapter".as_ref())?;
//! let plan = lora::Plan::new(&spec, &mut weights, &[adapter])?;
//! let decoder = Decoder::load(spec, &mut plan.over(&mut weights), DType::F32, &device)?;
//! # Ok(())
//! # }
//! ```
//!
//! - `adapter`: the files, and each tensor's part in them. `config`: `adapter_config.json`.
//! - `names`: from peft's names to those of a model's files. `plan`: what is changed. `source`: the changed weights.

mod adapter;
mod config;
mod names;
mod plan;
mod source;

pub use adapter::Adapter;
pub use plan::Plan;
pub use source::Adapted;
