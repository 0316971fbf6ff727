//! Texts as vectors: a folder of Hugging Face with an encoder of text, and what sentence-transformers wrote into it.
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_engine::embed::EncoderFiles;
//! # fn main() -> candle_engine::Result<()> {
//! let files = EncoderFiles::open("all-MiniLM-L6-v2".as_ref(), None)?;
//! let texts = ["A man is eating.", "A man has lunch."];
//! let tokens = texts.map(|text| files.tokens(text, "", text));
//! let tokens = tokens.into_iter().collect::<candle_engine::Result<Vec<_>>>()?;
//! let options = files.options();
//! let vectors = files.load(&Device::Cpu)?.embed(&tokens, &options);
//! println!("{}", vectors.expect("they run"));
//! # Ok(())
//! # }
//! ```

use crate::error::{brief, one_line, Doing};
use crate::model::open_weights;
use crate::{encoder_folder, Error, Result};
use candle_core::quantized::gguf_file::MmapedContent;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{DType, Device};
use candle_transformers::embed::{
    gguf_weights, EncoderConfig, Options, Pooling, Recipe, TextEncoder,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::{Tokenizer, TruncationParams};

/// The list of modules that sentence-transformers stores with a model.
const MODULES: &str = "modules.json";

/// An encoder of text that has been read and checked, and is on no device yet.
pub struct EncoderFiles {
    /// The name of the model in messages.
    pub name: String,
    config: EncoderConfig,
    recipe: Recipe,
    tokenizer: Tokenizer,
    weights: Weights,
}

/// The source of the weights.
enum Weights {
    Folder {
        folder: PathBuf,
        files: Vec<PathBuf>,
    },
    Gguf(Arc<MmapedContent>),
}

/// The tokens of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextTokens {
    /// Their ids, with the special ones that the model wants around a text.
    pub ids: Vec<u32>,
    /// Whether the text was longer than the model takes and was truncated to its beginning, as in sentence-transformers.
    pub cut: bool,
}

impl AsRef<[u32]> for TextTokens {
    fn as_ref(&self) -> &[u32] {
        &self.ids
    }
}

impl EncoderFiles {
    /// Reads `config.json`, `tokenizer.json`, the headers of the weights, and if they are there the files of sentence-transformers
    /// ([`Recipe::read`]). `pooling` counts more than those. A file is taken for GGUF (BERT and NomicBERT), whose vectors are divided by
    /// their length as llama.cpp does.
    ///
    /// # Errors
    /// The first file or field that is missing or does not fit; a model that is a decoder, or of a family that is not known.
    pub fn open(folder: &Path, pooling: Option<Pooling>) -> Result<Self> {
        if folder.is_file() {
            return Self::open_gguf(folder, pooling);
        }
        let (file, config) = encoder_folder::config(folder)?;
        let config = EncoderConfig::parse(&config).map_err(|err| {
            let other = crate::model::kind::command_for(&config);
            Error::file(&file, other.unwrap_or_else(|| brief(&err)))
        })?;
        if config.causal && pooling.is_none() && !folder.join(MODULES).is_file() {
            let problem = format!(
                "{} is a text generation model and has no {MODULES} that says how to pool; use an embedding model, or choose a pooling \
                 mode with --pooling",
                config.model_type
            );
            return Err(Error::file(folder, problem));
        }
        let recipe = Recipe::read(&mut encoder_folder::reader(folder), pooling)
            .map_err(|err| Error::file(folder, brief(&err)))?;
        let (file, tokenizer) = encoder_folder::tokenizer(folder)?;
        let most = recipe
            .max_tokens
            .unwrap_or(usize::MAX)
            .min(config.max_tokens);
        let tokenizer = cutting(tokenizer, most).map_err(|problem| Error::file(&file, problem))?;
        let weights = open_weights(folder)?;
        Ok(Self {
            name: folder.display().to_string(),
            config,
            recipe,
            tokenizer,
            weights: Weights::Folder {
                folder: folder.to_path_buf(),
                files: weights.files().map(Path::to_path_buf).collect(),
            },
        })
    }

    /// Reads the metadata of a GGUF file, or of all files of a model in several.
    fn open_gguf(file: &Path, pooling: Option<Pooling>) -> Result<Self> {
        let content = crate::model::map_gguf(file)?;
        let failed = |err: candle_core::Error| Error::file(file, brief(&err));
        let (config, mut recipe) = EncoderConfig::of_gguf(&content).map_err(|err| {
            let name = content
                .metadata
                .get("general.architecture")
                .and_then(|name| name.to_string().ok());
            match name
                .filter(|name| candle_transformers::auto::architectures().contains(&name.as_str()))
            {
                Some(name) => Error::file(
                    file,
                    format!("{name:?} is a text generation model; expected an embedding model"),
                ),
                None => failed(err),
            }
        })?;
        if let Some(pooling) = pooling {
            recipe.pooling = pooling;
        }
        let tokenizer = Tokenizer::from_gguf(&content).map_err(failed)?;
        let tokenizer =
            cutting(tokenizer, config.max_tokens).map_err(|problem| Error::file(file, problem))?;
        Ok(Self {
            name: file.display().to_string(),
            config,
            recipe,
            tokenizer,
            weights: Weights::Gguf(Arc::new(content)),
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// The settings from the files of sentence-transformers, or the defaults if there are none.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The options with which the model's vectors are meant to be computed.
    pub fn options(&self) -> Options {
        Options {
            pooling: self.recipe.pooling,
            normalize: self.recipe.normalize,
            ..Options::default()
        }
    }

    /// The tokens of a text after a prefix such as `search_query: `; `origin` names the text in messages. A text that is too long is
    /// truncated, and a warning is logged.
    ///
    /// # Errors
    /// A text that is empty, or one that the tokenizer refuses; a prefix for a model that leaves prefixes out of the mean.
    pub fn tokens(&self, origin: &str, prefix: &str, text: &str) -> Result<TextTokens> {
        let wrong = |problem: String| Error::Text {
            origin: origin.to_string(),
            problem,
        };
        if text.trim().is_empty() {
            return Err(wrong(
                "the text is empty; give at least one character".to_string(),
            ));
        }
        let averaged = self.recipe.pooling == Pooling::Mean;
        if !prefix.is_empty() && averaged && !self.recipe.include_prefix {
            return Err(wrong(format!(
                "the mean would include the prefix {prefix:?}, which {} forbids (include_prompt: false)",
                self.name
            )));
        }
        // As sentence-transformers does.
        let whole = format!("{prefix}{text}");
        let whole = if self.recipe.lowercase {
            whole.trim().to_lowercase()
        } else {
            whole.trim().to_string()
        };
        let encoding = self.tokenizer.encode(whole, true);
        let encoding = encoding.map_err(|err| wrong(one_line(&err.to_string())))?;
        let cut = !encoding.get_overflowing().is_empty();
        let ids = encoding.get_ids().to_vec();
        if ids.is_empty() {
            return Err(wrong(
                "the text has no tokens; use other characters".to_string(),
            ));
        }
        if cut {
            tracing::warn!(
                "{origin}: the text is longer than the model's limit; truncated to {} tokens",
                ids.len()
            );
        }
        Ok(TextTokens { ids, cut })
    }

    /// Checks tokens from another tokenizer and returns them unchanged; `origin` names the text in messages.
    ///
    /// # Errors
    /// No tokens, more than the model takes, or an unknown one.
    pub fn given(&self, origin: &str, ids: Vec<u32>) -> Result<TextTokens> {
        let wrong = |problem: String| Error::Text {
            origin: origin.to_string(),
            problem,
        };
        let (most, vocab) = (self.max_tokens(), self.config.vocab);
        if !(1..=most).contains(&ids.len()) {
            return Err(wrong(format!(
                "found {} tokens; expected 1 to {most}",
                ids.len()
            )));
        }
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(wrong(format!(
                "token {id} is out of range; the vocabulary has {vocab} tokens"
            ))),
            None => Ok(TextTokens { ids, cut: false }),
        }
    }

    /// The tokens of any text, with the special ones around it or without.
    ///
    /// # Errors
    /// A text that is longer than the model takes, and the tokenizer's.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encode = |special| {
            let encoding = self.tokenizer.encode(text, special);
            encoding.map_err(|err| Error::Tokenizer(one_line(&err.to_string())))
        };
        let whole = encode(true)?;
        // Without the special tokens the tokenizer does not say that it has cut the text.
        if !whole.get_overflowing().is_empty() {
            return Err(Error::Text {
                origin: "the text".to_string(),
                problem: format!("has more than the model's {} tokens", self.max_tokens()),
            });
        }
        let encoding = if special { whole } else { encode(false)? };
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without special tokens.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let text = self.tokenizer.decode(ids, true);
        text.map_err(|err| Error::Tokenizer(one_line(&err.to_string())))
    }

    /// The most tokens of a text.
    fn max_tokens(&self) -> usize {
        let most = self.recipe.max_tokens.unwrap_or(usize::MAX);
        most.min(self.config.max_tokens)
    }

    /// The model on `device`, in f32.
    ///
    /// # Errors
    /// A weight that is missing or has another shape than the configuration says, or a device that fails.
    pub fn load(&self, device: &Device) -> Result<TextEncoder> {
        let open = |files: &[PathBuf]| encoder_folder::weights(files, device);
        let load = || {
            let (folder, files) = match &self.weights {
                Weights::Gguf(content) => {
                    let weights = gguf_weights(content.clone(), DType::F32, device)?;
                    return self.config.clone().load(weights);
                }
                Weights::Folder { folder, files } => (folder, files),
            };
            let mut encoder = self.config.clone().load(open(files)?)?;
            for layer in &self.recipe.dense {
                let file = folder.join(&layer.folder).join("model.safetensors");
                let weights = open(&[file])?;
                encoder = encoder.with_dense(layer.load(weights)?)?;
            }
            Ok(encoder)
        };
        load().doing("loading the weights")
    }
}

/// The tokenizer, with texts cut so that they and the special tokens are `most` together.
fn cutting(mut tokenizer: Tokenizer, most: usize) -> std::result::Result<Tokenizer, String> {
    let error = |err: tokenizers::Error| one_line(&err.to_string());
    tokenizer.with_padding(None);
    // A stride, which the file may have, is for texts in several parts.
    let direction = tokenizer.get_truncation().map(|params| params.direction);
    tokenizer.with_truncation(None).map_err(error)?;
    let special = tokenizer.encode("", true).map_err(error)?.len();
    if special >= most {
        return Err(format!(
            "adds {special} special tokens, but the model's limit is {most} tokens"
        ));
    }
    let truncation = TruncationParams {
        max_length: most,
        direction: direction.unwrap_or_default(),
        ..TruncationParams::default()
    };
    tokenizer.with_truncation(Some(truncation)).map_err(error)?;
    Ok(tokenizer)
}
