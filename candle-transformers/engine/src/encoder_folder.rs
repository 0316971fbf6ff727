//! Hugging Face folders of encoders of text, as `embed` and `rerank` open them.

use crate::model::{expect_folder, read_tokenizer, CONFIG, TOKENIZER};
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// `config.json`: its path and its text.
pub(crate) fn config(folder: &Path) -> Result<(PathBuf, String)> {
    expect_folder(folder, "config.json, tokenizer.json and model.safetensors")?;
    let file = folder.join(CONFIG);
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok((file, text)),
        Err(err) => Err(Error::file(&file, err)),
    }
}

/// The text of a file of the folder; `None` where it is not there.
pub(crate) fn reader(
    folder: &Path,
) -> impl FnMut(&str) -> candle_core::Result<Option<String>> + '_ {
    |name| match std::fs::read_to_string(folder.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        Err(err) => Err(candle_core::Error::wrap(err)),
    }
}

/// `tokenizer.json`: its path and the tokenizer.
pub(crate) fn tokenizer(folder: &Path) -> Result<(PathBuf, Tokenizer)> {
    let file = folder.join(TOKENIZER);
    let bytes = std::fs::read(&file).map_err(|err| {
        Error::file(
            &file,
            format!("{err}; vocab.txt is not supported: save the tokenizer with transformers' `save_pretrained`"),
        )
    })?;
    let tokenizer = read_tokenizer(&file, &bytes)?;
    Ok((file, tokenizer))
}

/// The weights of safetensors files, in f32.
pub(crate) fn weights(
    files: &[PathBuf],
    device: &Device,
) -> candle_core::Result<VarBuilder<'static>> {
    // SAFETY: as for all mapped weights: nothing may truncate the files while the model loads; nothing reads them later.
    unsafe { VarBuilder::from_mmaped_safetensors(files, DType::F32, device) }
}
