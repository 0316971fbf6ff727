//! This repository's `candle-core`.

pub use ::ours as candle;
use candle as candle_core;

#[path = "../../../conformance/src/cases.rs"]
pub mod cases;
#[path = "interpret/mod.rs"]
pub mod interpret;
