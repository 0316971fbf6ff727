//! crates.io's `candle-core` 0.11.1.

pub use ::upstream as candle;

#[allow(
    clippy::duplicate_mod,
    reason = "the same code over the other crate is what this is for"
)]
#[path = "interpret/mod.rs"]
pub mod interpret;
