//! This repository's `candle-core`.

pub use ::ours as candle;

#[path = "interpret/mod.rs"]
pub mod interpret;
