//! What may follow: a constraint on a text, such as a grammar.

use crate::Result;

/// Says which tokens may follow.
pub trait Mask: Send {
    /// Makes the logits of all other tokens `-inf`.
    ///
    /// # Errors
    /// No token may follow, or the constraint is too complex.
    fn apply(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Takes a token of the text; the one that ends it is none of them.
    ///
    /// # Errors
    /// It may not follow.
    fn push(&mut self, token: u32) -> Result<()>;
}
