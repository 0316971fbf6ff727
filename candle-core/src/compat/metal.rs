//! Exports of upstream's Metal backend other than its device and storage.

/// An error of the Metal backend.
#[derive(thiserror::Error, Debug)]
pub enum MetalError {
    /// The message.
    #[error("{0}")]
    Message(String),
}

impl From<String> for MetalError {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}
