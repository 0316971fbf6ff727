//! Constraints on a text, such as a grammar.

use crate::Result;

/// A constraint on the tokens of a text.
pub trait Mask: Send {
    /// The tokens that may follow, a bit each: bit `id % 32` of word `id / 32`. Tokens beyond the last word may not.
    ///
    /// # Errors
    /// No token may follow, or the constraint is too complex.
    fn allowed(&mut self) -> Result<Vec<u32>>;

    /// Takes a token of the text; the one that ends it is none of them.
    ///
    /// # Errors
    /// It may not follow.
    fn push(&mut self, token: u32) -> Result<()>;
}
