//! [`super::mpt`] with quantised weights, from GGUF files with the names of the dense ones.

pub use super::mpt::Config;
use crate::blocks::{NextLm, Quantized};
pub use crate::quantized_var_builder::VarBuilder;

/// The language model and the sequence that it has seen. Activations are f32. Loads `wte`, `blocks.*` and `norm_f`.
pub type Model = NextLm<Config, Quantized>;
