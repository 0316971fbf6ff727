//! Models that think before they answer: the marks that a model puts around its thoughts, and the text split at them.
//!
//! - `format.rs`: the marks, by the chat template, and the model's state after a prompt. [`Thinking`] is both.
//! - `splitter.rs`: pieces of text to [`Part`]s, thoughts and answer.
//! - `pace.rs`: the same by tokens, for the code that chooses the next one: a limit to thoughts, and a grammar for the answer alone.

mod format;
mod pace;
mod splitter;

pub use format::{no_thoughts, Thinking, Variables};
pub(crate) use pace::{Pace, Phase};
pub use splitter::{split, Part, Splitter};
