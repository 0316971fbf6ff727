//! The crate `tokenizers`, for wasm32; empty elsewhere.
//!
//! `candle-core` has tokenizers by default, but on wasm32 only by choice. A feature of Cargo's turns a dependency on for all targets,
//! and one crate cannot be a dependency under two names: so on wasm32 it comes in through this one.

#[cfg(target_arch = "wasm32")]
pub use tokenizers::*;
