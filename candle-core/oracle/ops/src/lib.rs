//! Compares Candle's tensors with Candle's: each case is data ([`case::Case`]), and one interpreter runs it on both crates.
//!
//! [`interpret`] is compiled twice, once with this repository's `candle-core` and once with crates.io's 0.11.1, so that both sides receive
//! the same requests. [`generate::Gen`] generates cases from a seed and a size; [`check`] compares the two outcomes.

pub mod case;
pub mod check;
pub mod generate;
pub mod value;

pub mod ours;
pub mod upstream;
