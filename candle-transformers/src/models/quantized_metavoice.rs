//! [`metavoice`](super::metavoice)'s first stage with quantised weights, from GGUF files with the names of its checkpoint.

pub use crate::quantized_var_builder::VarBuilder;

/// The first stage: a decoder that writes text and sound, with the vector of a voice added to every position.
pub mod transformer {
    use crate::blocks::Quantized;
    use crate::models::metavoice::transformer::Speaker;

    /// The decoder. Activations are f32.
    pub type Model = Speaker<Quantized>;
}
