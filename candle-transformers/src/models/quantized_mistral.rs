//! Mistral with quantised weights, from GGUF files with the names of Hugging Face's checkpoints. The model is [`super::mistral`]'s.

use crate::blocks::{Lm, Quantized};

pub use super::mistral::Config;
pub use crate::quantized_var_builder::VarBuilder;

/// The language model. Activations are f32. Loads `model.*` and `lm_head`.
pub type Model = Lm<Config, Quantized>;
