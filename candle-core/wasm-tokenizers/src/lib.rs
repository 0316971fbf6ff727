//! The crate `tokenizers` for wasm32; empty on other targets.
//!
//! `candle-core` enables tokenizers by default, but on wasm32 only on request. A Cargo feature enables a dependency for all targets, and a
//! crate cannot be a dependency under two names, so on wasm32 this crate is the dependency.

#[cfg(target_arch = "wasm32")]
pub use tokenizers::*;
