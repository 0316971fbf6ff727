//! [`super::rwkv_v6`] with quantised weights, from GGUF files with the names of the dense ones.

use super::rwkv::Rwkv;
pub use super::rwkv_v5::{Config, State, Tokenizer};
use crate::blocks::Quantized;

/// The language model. Activations are f32.
pub type Model = Rwkv<6, Quantized>;
