//! What the small files of a Whisper say.

use super::LOADING;
use crate::error::Doing;
use crate::model::{read_tokenizer, CONFIG, TOKENIZER};
use crate::{Error, Result};
use candle_transformers::models::whisper::transcribe::{Network, Options, Transcriber, Vocabulary};
use candle_transformers::models::whisper::Config;
use serde::Deserialize;
use std::path::Path;
use tokenizers::Tokenizer;

pub(super) const GENERATION: &str = "generation_config.json";

/// `config.json`, `generation_config.json` and `tokenizer.json`, checked.
pub(super) struct About {
    config: Config,
    pub(super) tokenizer: Tokenizer,
    /// The heads of attention that times of words are read from, (layer, head); none if the files do not say.
    alignment_heads: Vec<(usize, usize)>,
}

/// The fields of `generation_config.json` that are read.
#[derive(Default, Deserialize)]
struct Generation {
    #[serde(default)]
    alignment_heads: Vec<(usize, usize)>,
    /// Tokens that are never chosen.
    suppress_tokens: Option<Vec<i64>>,
}

/// What says which kind of model a folder holds.
#[derive(Deserialize)]
struct Kind {
    model_type: Option<String>,
}

impl About {
    /// `folder` is what messages name before a file's name. `tokenizer` is read when the model is known to be a Whisper.
    ///
    /// # Errors
    /// The first field that is missing or does not fit; a model that is not a Whisper.
    pub(super) fn read(
        folder: &Path,
        config: &[u8],
        generation: Option<&[u8]>,
        tokenizer: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let file = folder.join(CONFIG);
        let found: Kind = parse(&file, config)?;
        match found.model_type.as_deref() {
            Some("whisper") | None => {}
            Some(other) => {
                return Err(Error::Field {
                    file: file.display().to_string(),
                    field: "model_type".to_string(),
                    problem: command_for(config).unwrap_or_else(|| {
                        format!("unsupported speech model {other:?}; expected \"whisper\"")
                    }),
                });
            }
        }
        let mut config: Config = parse(&file, config)?;
        let generation = match generation {
            Some(text) => parse(&folder.join(GENERATION), text)?,
            None => Generation::default(),
        };
        let never = generation.suppress_tokens.unwrap_or_default();
        let never = never.into_iter().flat_map(u32::try_from);
        config.suppress_tokens.extend(never);
        Ok(Self {
            config,
            tokenizer: read_tokenizer(&folder.join(TOKENIZER), &tokenizer()?)?,
            alignment_heads: generation.alignment_heads,
        })
    }

    /// The model, whose weights `network` has. `options` without heads for times of words get the model's.
    pub(super) fn transcriber<N: Into<Network>>(
        self,
        mut options: Options,
        network: impl FnOnce(Config) -> candle_core::Result<N>,
    ) -> Result<Transcriber> {
        if options.alignment_heads.is_empty() {
            options.alignment_heads = self.alignment_heads;
        }
        let network = network(self.config).doing(LOADING)?;
        let vocabulary = Box::new(Tokens(self.tokenizer));
        Transcriber::new(network, vocabulary, options).doing("transcribe")
    }
}

/// The command that takes another kind of model.
#[cfg(not(target_arch = "wasm32"))]
fn command_for(config: &[u8]) -> Option<String> {
    use crate::model::kind::{command_for, language_model};
    let text = std::str::from_utf8(config).ok()?;
    command_for(text).or_else(|| language_model(text))
}

/// A page has no commands.
#[cfg(target_arch = "wasm32")]
fn command_for(_: &[u8]) -> Option<String> {
    None
}

fn parse<T: serde::de::DeserializeOwned>(file: &Path, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|err| Error::file(file, err))
}

/// A `tokenizer.json`.
struct Tokens(Tokenizer);

impl Vocabulary for Tokens {
    fn id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn text(&self, tokens: &[u32]) -> candle_core::Result<String> {
        self.0.decode(tokens, true).map_err(candle_core::Error::msg)
    }
}
