//! What upstream's Metal backend exports beside its device and storage.

/// An error of the Metal backend.
#[derive(thiserror::Error, Debug)]
pub enum MetalError {
    /// What went wrong.
    #[error("{0}")]
    Message(String),
}

impl From<String> for MetalError {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}
