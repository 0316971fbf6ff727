//! Families that Candle has no types for: their configurations are read here, field by field, where the others are read by `models`.
//!
//! - [`decoder`]: the decoder of the fields that most files have, from which a family differs in what its entry says.
//! - `dense`: families with one MLP for all tokens.
//! - `experts`: families with experts.
//! - `gguf`: the same in GGUF files.
//! - `hybrid`: families whose layers are not all attention.

mod decoder;
mod dense;
mod experts;
mod gguf;
mod hybrid;
#[cfg(test)]
mod tests;

use super::config::Family;
use super::GgufReader;

/// The values of `model_type`.
pub(super) fn families() -> impl Iterator<Item = &'static Family> {
    let attention = dense::FAMILIES.iter().chain(experts::FAMILIES);
    attention.chain(hybrid::FAMILIES)
}

/// The values of `general.architecture`.
pub(super) fn architectures() -> impl Iterator<Item = &'static (&'static str, GgufReader)> {
    gguf::ARCHITECTURES.iter()
}
