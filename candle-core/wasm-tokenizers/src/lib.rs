//! The crate `tokenizers`, for wasm32; empty elsewhere.
//!
//! `candle-core` enables tokenizers by default, but on wasm32 only on request. A Cargo feature enables a dependency for all targets, and a
//! crate cannot be a dependency under two names. On wasm32 it is therefore a dependency of this crate.

#[cfg(target_arch = "wasm32")]
pub use tokenizers::*;
