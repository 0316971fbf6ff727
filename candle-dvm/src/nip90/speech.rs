//! The parameters of kind 5000, speech to text. Those of other names are ignored.

use super::params::{name, yes_or_no};
use super::ReadError;

/// The parameters of a transcription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeechParams {
    /// The model's name.
    pub model: Option<String>,
    /// The code of the spoken language, such as `de`; without one it is detected.
    pub language: Option<String>,
    /// Whether to translate to English.
    pub translate: bool,
    /// Whether each line of a plain text begins with its times.
    pub timestamps: bool,
    /// Whether the answer is JSON, with times.
    pub json: bool,
}

/// Reads parameters; of several of one name the last counts.
///
/// # Errors
/// The first value that does not fit, by its name.
pub(super) fn read(params: &[(String, String)]) -> Result<SpeechParams, ReadError> {
    let mut read = SpeechParams::default();
    for (key, value) in params {
        let value = value.trim();
        if value.is_empty() {
            continue;
        }
        match name(key).as_str() {
            "model" => read.model = Some(value.to_string()),
            "language" => read.language = Some(value.to_ascii_lowercase()),
            "translate" => read.translate = yes_or_no(key, value)?,
            "timestamps" => read.timestamps = yes_or_no(key, value)?,
            _ => {}
        }
    }
    Ok(read)
}
