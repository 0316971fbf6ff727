//! The files of a BERT, and its tokens: what examples and the browser's module `embeddings` share.

use candle_core::{bail, Error, Result};
use candle_transformers::models::bert::Config;
use tokenizers::{Tokenizer, TruncationParams};

/// Reads and checks `config.json`. An error if it is not the configuration of a BERT.
pub fn read_config(json: &[u8]) -> Result<Config> {
    #[derive(serde::Deserialize)]
    struct Kind {
        model_type: Option<String>,
    }
    let wrong = |err| Error::Msg(format!("config.json: {err}"));
    let Kind { model_type } = serde_json::from_slice(json).map_err(wrong)?;
    match model_type.as_deref() {
        None | Some("bert") => serde_json::from_slice(json).map_err(wrong),
        Some(other) => bail!(
            "config.json: field `model_type`: the model is a {other}, expected a bert, such as \
             sentence-transformers/all-MiniLM-L6-v2"
        ),
    }
}

/// Reads `tokenizer.json`; texts are truncated to the model's length.
pub fn read_tokenizer(json: &[u8], config: &Config) -> Result<Tokenizer> {
    let wrong = |err| Error::Msg(format!("tokenizer.json: {err}"));
    let mut tokenizer = Tokenizer::from_bytes(json).map_err(wrong)?;
    let mut truncation = tokenizer
        .get_truncation()
        .cloned()
        .unwrap_or(TruncationParams {
            max_length: usize::MAX,
            ..TruncationParams::default()
        });
    truncation.max_length = truncation.max_length.min(config.max_position_embeddings);
    tokenizer.with_padding(None);
    let truncated = tokenizer.with_truncation(Some(truncation));
    truncated.map_err(wrong)?;
    Ok(tokenizer)
}

/// The tokens of the text with this index.
pub fn token_ids(tokenizer: &Tokenizer, index: usize, text: &str) -> Result<Vec<u32>> {
    let encoded = tokenizer.encode(text, true);
    let encoded = encoded.map_err(|err| Error::Msg(format!("text {}: {err}", index + 1)))?;
    if encoded.get_ids().is_empty() {
        bail!("text {} has no tokens: write something", index + 1)
    }
    Ok(encoded.get_ids().to_vec())
}
