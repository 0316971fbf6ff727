//! Candle's tensors judged by Candle: each case is data ([`case::Case`]), and one interpreter runs it on both crates.
//!
//! [`interpret`] is compiled twice, once over this repository's `candle-core` and once over crates.io's 0.11.1, so that neither
//! side can be asked something else than the other. [`generate::Gen`] makes cases from a seed and a size; [`check`] holds
//! the two outcomes against each other.

pub mod case;
pub mod check;
pub mod generate;
pub mod value;

pub mod ours;
pub mod upstream;
