//! The small files of a speech model, and its kind.

use super::model::SpeechModel;
use super::windowed::{check, Network, Windowed};
use super::LOADING;
use crate::error::Doing;
use crate::model::{read_tokenizer, CONFIG, TOKENIZER};
use crate::{Error, Result};
use candle_nn::VarBuilder;
use candle_transformers::models::moonshine::{self, Moonshine};
use candle_transformers::models::parakeet::{self, Parakeet};
#[cfg(not(target_arch = "wasm32"))]
use candle_transformers::models::whisper::quantized_model;
use candle_transformers::models::whisper::transcribe::{
    Network as WhisperNetwork, Options, Transcriber, Vocabulary,
};
use candle_transformers::models::whisper::{self, model};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use tokenizers::Tokenizer;

pub(super) const GENERATION: &str = "generation_config.json";

/// `config.json`, `generation_config.json` and `tokenizer.json`, checked.
pub(super) struct About {
    kind: Kind,
    /// Stands for the model in messages.
    model: String,
    pub(super) tokenizer: Tokenizer,
}

/// The kinds that are known, by `model_type`.
enum Kind {
    Whisper {
        config: whisper::Config,
        /// The heads of attention that times of words are read from, (layer, head); none if the files do not say.
        alignment_heads: Vec<(usize, usize)>,
    },
    Moonshine(Box<moonshine::Config>),
    Parakeet(Box<parakeet::Config>),
}

/// The fields of a Whisper's `generation_config.json` that are read.
#[derive(Default, Deserialize)]
struct Generation {
    #[serde(default)]
    alignment_heads: Vec<(usize, usize)>,
    /// Tokens that are never chosen.
    suppress_tokens: Option<Vec<i64>>,
}

/// The fields that identify the kind of model in a folder.
#[derive(Deserialize)]
struct ModelType {
    model_type: Option<String>,
}

impl Kind {
    fn read(folder: &Path, config: &[u8], generation: Option<&[u8]>) -> Result<Self> {
        let file = folder.join(CONFIG);
        let found: ModelType = parse(&file, config)?;
        match found.model_type.as_deref() {
            Some("whisper") | None => {
                let mut config: whisper::Config = parse(&file, config)?;
                let generation = match generation {
                    Some(text) => parse(&folder.join(GENERATION), text)?,
                    None => Generation::default(),
                };
                let never = generation.suppress_tokens.unwrap_or_default();
                let never = never.into_iter().flat_map(u32::try_from);
                config.suppress_tokens.extend(never);
                Ok(Self::Whisper {
                    config,
                    alignment_heads: generation.alignment_heads,
                })
            }
            Some("moonshine") => Ok(Self::Moonshine(Box::new(parse(&file, config)?))),
            Some("parakeet_ctc") => Ok(Self::Parakeet(Box::new(parse(&file, config)?))),
            Some(other) => Err(Error::Field {
                file: file.display().to_string(),
                field: "model_type".to_string(),
                problem: command_for(config).unwrap_or_else(|| {
                    format!(
                        "unsupported speech model {other:?}; expected \"whisper\", \"moonshine\" or \"parakeet_ctc\""
                    )
                }),
            }),
        }
    }
}

impl About {
    /// `folder` is what messages name before a file's name. `tokenizer` is read when the model is known to be one of speech.
    ///
    /// # Errors
    /// The first field that is missing or does not fit; a model of another kind.
    pub(super) fn read(
        folder: &Path,
        config: &[u8],
        generation: Option<&[u8]>,
        tokenizer: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let kind = Kind::read(folder, config, generation)?;
        let family = match &kind {
            Kind::Whisper { .. } => "whisper",
            Kind::Moonshine(_) => "moonshine",
            Kind::Parakeet(_) => "parakeet_ctc",
        };
        Ok(Self {
            kind,
            model: match folder.display().to_string() {
                name if name.is_empty() => family.to_string(),
                name => format!("{name} ({family})"),
            },
            tokenizer: read_tokenizer(&folder.join(TOKENIZER), &tokenizer()?)?,
        })
    }

    /// The model with the dense weights of `vb`. `options` without heads for times of words get the model's.
    ///
    /// # Errors
    /// A tensor that is missing or does not fit, options that do not fit the model.
    pub(super) fn dense(self, options: Options, vb: VarBuilder) -> Result<SpeechModel> {
        let is_whisper = matches!(self.kind, Kind::Whisper { .. });
        if !is_whisper {
            // Before the weights, which may take a while.
            check(&self.model, &options).doing("transcribe")?;
        }
        let network = match self.kind {
            Kind::Whisper {
                config,
                alignment_heads,
            } => {
                let network = model::Whisper::load(&vb, config).doing(LOADING)?;
                return transcriber(network, self.tokenizer, options, alignment_heads);
            }
            Kind::Moonshine(config) => {
                Moonshine::new(&config, vb).map(|network| Network::Moonshine(Box::new(network)))
            }
            Kind::Parakeet(config) => {
                Parakeet::new(&config, vb).map(|network| Network::Parakeet(Box::new(network)))
            }
        };
        Ok(SpeechModel::Windowed(Box::new(Windowed {
            network: network.doing(LOADING)?,
            model: self.model,
            tokenizer: Arc::new(self.tokenizer),
            options,
        })))
    }

    /// As [`dense`](Self::dense), with the quantised weights of a GGUF file, which `weights` opens.
    ///
    /// # Errors
    /// As [`dense`](Self::dense); a kind whose weights are not read from GGUF files.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn quantized(
        self,
        options: Options,
        weights: impl FnOnce() -> candle_core::Result<quantized_model::VarBuilder>,
    ) -> Result<SpeechModel> {
        match self.kind {
            Kind::Whisper {
                config,
                alignment_heads,
            } => {
                let vb = weights().doing(LOADING)?;
                let network = quantized_model::Whisper::load(&vb, config).doing(LOADING)?;
                transcriber(network, self.tokenizer, options, alignment_heads)
            }
            Kind::Moonshine(_) | Kind::Parakeet(_) => Err(Error::File {
                file: self.model,
                problem: "weights in a GGUF file are not supported; expected model.safetensors"
                    .to_string(),
            }),
        }
    }
}

fn transcriber(
    network: impl Into<WhisperNetwork>,
    tokenizer: Tokenizer,
    mut options: Options,
    alignment_heads: Vec<(usize, usize)>,
) -> Result<SpeechModel> {
    if options.alignment_heads.is_empty() {
        options.alignment_heads = alignment_heads;
    }
    let model = Transcriber::new(network, Box::new(Tokens(tokenizer)), options);
    Ok(SpeechModel::Whisper(Box::new(model.doing("transcribe")?)))
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
