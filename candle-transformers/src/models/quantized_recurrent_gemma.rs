//! [`super::recurrent_gemma`] with quantised weights, from GGUF files with the names of the dense ones.

use super::recurrent_gemma::Config;
use crate::blocks::{Lm, Quantized};
pub use crate::quantized_var_builder::VarBuilder;

/// The language model and the sequence that it has seen. Activations are f32. Loads `embed_tokens`, `layers.*` and `final_norm`.
pub type Model = Lm<Config, Quantized>;
