//! Weights in the block formats of GGML, and the files that hold them.
//!
//! A quantised tensor keeps its elements in blocks of 32 or 256 that share scales ([`GgmlDType`]). Products with it bring the
//! other side to 8 bits and multiply integers.

mod blocks;
mod dtype;
pub mod k_quants;
mod traits;

pub use dtype::GgmlDType;
pub use traits::{GgmlType, QuantizedType};
