//! The transformer with quantised weights, from GGUF files that have the names of Black Forest Labs' checkpoints. The layers are those of
//! [`super::model`]; activations are f32.
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_transformers::models::flux::{model::Config, quantized_model::Flux};
//! use candle_transformers::quantized_var_builder::VarBuilder;
//! # fn main() -> candle_core::Result<()> {
//! let vb = VarBuilder::from_gguf("flux1-schnell.gguf", &Device::Cpu)?;
//! let model = Flux::new(&Config::schnell(), vb)?;
//! # Ok(())
//! # }
//! ```

use super::model::Transformer;
pub use super::model::{
    DoubleStreamBlock, LastLayer, MlpEmbedder, QkNorm, SelfAttention, SingleStreamBlock,
};
use crate::blocks::Quantized;

/// The model over quantised weights. `img`, `txt` and `y` are f32; places and times may have any dtype.
pub type Flux = Transformer<Quantized>;
