//! crates.io's `candle-core` 0.11.1.

pub use ::upstream as candle;
use candle as candle_core;

#[allow(
    clippy::duplicate_mod,
    reason = "the same code over the other crate is what this is for"
)]
#[path = "../../../conformance/src/cases.rs"]
pub mod cases;
#[allow(clippy::duplicate_mod, reason = "as above")]
#[path = "interpret/mod.rs"]
pub mod interpret;
