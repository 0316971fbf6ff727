//! StableLM with quantised weights, from GGUF files with the names of Hugging Face's checkpoints. The model is [`super::stable_lm`]'s.

use crate::blocks::{Lm, Quantized};

pub use super::stable_lm::Config;
pub use crate::quantized_var_builder::VarBuilder;

/// The language model. Activations are f32. Loads `model.*` and `lm_head`.
pub type Model = Lm<Config, Quantized>;
