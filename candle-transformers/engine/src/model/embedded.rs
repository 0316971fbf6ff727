//! The default model, which is part of the binary: see `model/README.md`.

use super::{JsonFiles, ModelFiles, Weights};
use crate::Result;
use std::path::Path;

const CONFIG: &[u8] = include_bytes!("../../model/config.json");
const GENERATION_CONFIG: &[u8] = include_bytes!("../../model/generation_config.json");
const TOKENIZER: &[u8] = include_bytes!("../../model/tokenizer.json");
const WEIGHTS: &[u8] = include_bytes!("../../model/model.safetensors");

/// Reads the embedded model. Its checks are those of a folder; a failure means a broken build.
pub(super) fn open() -> Result<ModelFiles> {
    let weights = Weights::from_bytes(Path::new("embedded/model.safetensors"), WEIGHTS)?;
    let json = JsonFiles {
        config: (Path::new("embedded/config.json"), CONFIG),
        generation_config: Some((
            Path::new("embedded/generation_config.json"),
            GENERATION_CONFIG,
        )),
        tokenizer: (Path::new("embedded/tokenizer.json"), TOKENIZER),
        tokenizer_config: None,
        chat_template: None,
    };
    ModelFiles::from_parts("embedded".to_string(), json, weights, true)
}
