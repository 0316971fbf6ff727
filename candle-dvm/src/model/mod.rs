//! What a model is made of: configuration, tokenizer, weights; from a folder, a GGUF file or this binary.
//!
//! [`ModelFiles::open`] reads and checks everything that can be checked without a device, down to the name and shape of
//! each tensor, so that a bad file is reported before a GPU is opened.

mod chat_template;
mod config;
#[cfg(not(target_arch = "wasm32"))]
mod embedded;
mod folder;
mod gguf;
mod network;
mod parts;
mod tokenizer;
mod weights;

pub use chat_template::{ChatTemplate, Message, Role};
pub use parts::{load_parts, Bytes, ModelParts, PartFile, PartSource};
pub use tokenizer::TextTokenizer;
pub use weights::Weights;

use crate::format::WeightFormat;
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_transformers::blocks::Decoder;
use network::{Files, Network};
use std::path::{Path, PathBuf};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The small Llama that is part of this binary; a page in a browser loads it as it loads others.
    #[cfg(not(target_arch = "wasm32"))]
    Embedded,
    /// A Hugging Face folder: `config.json`, `tokenizer.json`, `model.safetensors` or
    /// `model.safetensors.index.json` with its shards, and `generation_config.json` if there is one.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
}

impl ModelSource {
    /// The model at a path: a file is taken for GGUF, anything else for a folder.
    pub fn at(path: PathBuf) -> Self {
        match path.is_file() {
            true => Self::Gguf(path),
            false => Self::Folder(path),
        }
    }
}

/// A model that has been read and checked, and is on no device yet.
pub struct ModelFiles {
    /// What to call the model in messages.
    pub name: String,
    /// The tokenizer.
    pub tokenizer: TextTokenizer,
    /// The tokens that end a text.
    pub stop_tokens: Vec<u32>,
    /// How a conversation becomes a prompt, if the model comes with it.
    pub chat_template: Option<ChatTemplate>,
    network: Network,
    embedded: bool,
}

/// The small files, as bytes, with the names they go by in messages.
struct JsonFiles<'a> {
    config: (&'a Path, &'a [u8]),
    generation_config: Option<(&'a Path, &'a [u8])>,
    tokenizer: (&'a Path, &'a [u8]),
    tokenizer_config: Option<(&'a Path, &'a [u8])>,
    chat_template: Option<(&'a Path, &'a [u8])>,
}

impl ModelFiles {
    /// Reads and checks the model.
    ///
    /// # Errors
    /// The first file, field or tensor that is missing or does not fit.
    pub fn open(source: &ModelSource) -> Result<Self> {
        match source {
            #[cfg(not(target_arch = "wasm32"))]
            ModelSource::Embedded => embedded::open(),
            ModelSource::Folder(path) => folder::open(path),
            ModelSource::Gguf(path) => gguf::open(path),
        }
    }

    /// The element type of activations unless one is asked for: f32 for the embedded model, whose reference outputs are in
    /// f32, and for any model on the CPU; otherwise [`WeightFormat::activations`].
    pub fn default_dtype(&self, device: &Device) -> DType {
        if self.embedded || device.is_cpu() {
            DType::F32
        } else {
            self.network.activations()
        }
    }

    /// What the weights are stored as; where they differ, most of them by size.
    pub fn format(&self) -> WeightFormat {
        self.network.format()
    }

    /// The stored size of the weights.
    pub fn total_bytes(&self) -> u64 {
        self.network.total_bytes()
    }

    /// The longest sequence that the model can work on.
    pub fn max_positions(&self) -> usize {
        self.network.max_positions()
    }

    /// The model on `device` with activations of `dtype`. Floats become `dtype`, blocks stay
    /// blocks. `progress` is told of each tensor's bytes as they arrive.
    pub(crate) fn place(
        &self,
        dtype: DType,
        device: &Device,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Decoder> {
        self.network.place(dtype, device, progress)
    }

    /// The prompt's tokens with the begin token.
    ///
    /// # Errors
    /// A prompt without tokens, or longer than the model's positions.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        prompt_tokens(&self.tokenizer, self.max_positions(), prompt)
    }

    fn from_parts(name: String, json: JsonFiles, weights: Weights, embedded: bool) -> Result<Self> {
        let (config_file, config_bytes) = json.config;
        let config = config::parse(config_file, config_bytes)?;
        let mut stop_tokens = config.end_tokens;
        let mut begin_token = config.begin_token;
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
            config.spec.vocab,
        )?;
        let tensors = weights.check(&config.spec, config_file)?;
        Ok(Self {
            name,
            tokenizer,
            stop_tokens,
            chat_template: ChatTemplate::of_folder(json.tokenizer_config, json.chat_template)?,
            network: Network {
                spec: config.spec,
                tensors,
                files: Files::Safetensors(weights),
            },
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
