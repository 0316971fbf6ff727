//! [`super::mixformer`] with quantised weights, from GGUF files with the names of the dense ones.

pub use super::mixformer::Config;
use super::mixformer::MixFormer;
use crate::blocks::Quantized;
pub use crate::quantized_var_builder::VarBuilder;

/// The language model and the sequence that it has seen. Activations are f32.
pub type MixFormerSequentialForCausalLM = MixFormer<Quantized>;
