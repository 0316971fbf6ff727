//! What a model is made of: configuration, tokenizer, weights; from a folder or from this binary.
//!
//! [`ModelFiles::open`] reads and checks everything that can be checked without a device, down to the name and shape of
//! each tensor, so that a bad file is reported before a GPU is woken.

mod config;
mod embedded;
mod folder;
mod tokenizer;
mod weights;

pub use tokenizer::TextTokenizer;
pub use weights::Weights;

use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_transformers::models::llama::Config;
use std::path::{Path, PathBuf};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The small Llama that is part of this binary.
    Embedded,
    /// A Hugging Face folder: `config.json`, `tokenizer.json`, `model.safetensors` or
    /// `model.safetensors.index.json` with its shards, and `generation_config.json` if there is one.
    Folder(PathBuf),
}

/// A model that has been read and checked, and is on no device yet.
pub struct ModelFiles {
    /// What to call the model in messages.
    pub name: String,
    /// The configuration.
    pub config: Config,
    /// The tokenizer.
    pub tokenizer: TextTokenizer,
    /// The tokens that end a text, from `config.json` and `generation_config.json`.
    pub stop_tokens: Vec<u32>,
    /// The weights, still in the file.
    pub weights: Weights,
    embedded: bool,
}

/// The three JSON files, as bytes, with the names they go by in messages.
struct JsonFiles<'a> {
    config: (&'a Path, &'a [u8]),
    generation_config: Option<(&'a Path, &'a [u8])>,
    tokenizer: (&'a Path, &'a [u8]),
}

impl ModelFiles {
    /// Reads and checks the model.
    ///
    /// # Errors
    /// The first file, field or tensor that is missing or does not fit.
    pub fn open(source: &ModelSource) -> Result<Self> {
        match source {
            ModelSource::Embedded => embedded::open(),
            ModelSource::Folder(path) => folder::open(path),
        }
    }

    /// The element type to use unless one is asked for: f32 for the embedded model, whose reference outputs are in
    /// f32, and for any model on the CPU; otherwise what the weights are stored as.
    pub fn default_dtype(&self, device: &Device) -> DType {
        if self.embedded || device.is_cpu() {
            DType::F32
        } else {
            self.weights.dtype()
        }
    }

    /// The prompt's tokens with the begin token.
    ///
    /// # Errors
    /// A prompt without tokens, or longer than the model's positions.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        prompt_tokens(&self.tokenizer, self.config.max_position_embeddings, prompt)
    }

    fn from_parts(name: String, json: JsonFiles, weights: Weights, embedded: bool) -> Result<Self> {
        let (config_file, config_bytes) = json.config;
        let config = config::parse(config_file, config_bytes)?;
        let mut stop_tokens = config::end_tokens(&config);
        let mut begin_token = config.bos_token_id;
        if let Some((file, bytes)) = json.generation_config {
            let generation = config::parse_generation(file, bytes)?;
            stop_tokens.extend(generation.end_tokens);
            begin_token = begin_token.or(generation.begin_token);
        }
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let (tokenizer_file, tokenizer_bytes) = json.tokenizer;
        let tokenizer = TextTokenizer::parse(
            tokenizer_file,
            tokenizer_bytes,
            begin_token,
            config.vocab_size,
        )?;
        weights.check(&config, config_file)?;
        Ok(Self {
            name,
            config,
            tokenizer,
            stop_tokens,
            weights,
            embedded,
        })
    }
}

/// Tokenises a prompt and holds it against the model's positions.
pub(crate) fn prompt_tokens(
    tokenizer: &TextTokenizer,
    limit: usize,
    prompt: &str,
) -> Result<Vec<u32>> {
    let tokens = tokenizer.encode_prompt(prompt)?;
    if tokens.len() > limit {
        return Err(Error::PromptTooLong {
            tokens: tokens.len(),
            limit,
        });
    }
    Ok(tokens)
}
