//! Speech as text: a Whisper from a folder of Hugging Face.
//!
//! ```no_run
//! use candle_core::Device;
//! use candle_engine::audio::read_audio;
//! use candle_engine::speech::SpeechFiles;
//! use candle_transformers::models::whisper::transcribe::Options;
//! # fn main() -> candle_engine::Result<()> {
//! let files = SpeechFiles::open("whisper-tiny.en".as_ref())?;
//! let mut whisper = files.load(&Device::Cpu, None, Options::default())?;
//! let audio = read_audio("speech.wav".as_ref())?;
//! let transcript = whisper.transcribe(&audio.samples, |segment| {
//!     println!("{}", segment.text);
//!     Ok(())
//! });
//! # drop(transcript);
//! # Ok(())
//! # }
//! ```

use crate::error::{brief, Doing};
use crate::model::{
    expect_folder, kind, open_weights, read, read_tokenizer, Hub, ModelSource, CONFIG, TOKENIZER,
};
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use candle_transformers::models::silero_vad::{self, SileroVad, Speech};
use candle_transformers::models::whisper::transcribe::Vocabulary;
use candle_transformers::models::whisper::{model, quantized_model, Config};
use serde::Deserialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

mod worker;

pub use candle_transformers::models::whisper::transcribe::{
    Options, Segment, Transcriber, Transcript, LANGUAGES,
};
pub use worker::{Asked, Heard, Listener, SpeechWorker, MAX_SECONDS};

const LOADING: &str = "loading the weights";

/// A Whisper whose files have been read and checked, and that is on no device yet.
pub struct SpeechFiles {
    /// What to call the model in messages.
    pub name: String,
    config: Config,
    tokenizer: Tokenizer,
    weights: Weights,
    /// The heads of attention that times of words are read from, (layer, head); none if the files do not say.
    alignment_heads: Vec<(usize, usize)>,
    /// Tokens that are never chosen, by `generation_config.json`.
    suppress_tokens: Vec<u32>,
}

enum Weights {
    Safetensors(Vec<PathBuf>),
    Gguf(PathBuf),
}

/// What is read of `generation_config.json`.
#[derive(Default, Deserialize)]
struct Generation {
    #[serde(default)]
    alignment_heads: Vec<(usize, usize)>,
    suppress_tokens: Option<Vec<i64>>,
}

/// What says which kind of model a folder holds.
#[derive(Deserialize)]
struct Kind {
    model_type: Option<String>,
}

impl SpeechFiles {
    /// The files of `source`, fetched first if it is a model of the Hub.
    ///
    /// # Errors
    /// Those of the Hub and of [`open`](Self::open); a source that is no folder.
    pub fn at(source: ModelSource) -> Result<Self> {
        let source = match source {
            ModelSource::Hub(model) => Hub::from_env()?.fetch(&model)?,
            local => local,
        };
        match source {
            ModelSource::Folder(folder) => Self::open(&folder),
            ModelSource::Gguf(file) => Err(Error::file(
                &file,
                "is a file; expected a folder with config.json, tokenizer.json and the weights",
            )),
            other => Err(Error::Parameter {
                name: "model",
                value: other.short_name(),
                expected: "the folder of a Whisper model",
            }),
        }
    }

    /// Reads `config.json`, `tokenizer.json` and, if it is there, `generation_config.json`, and finds the weights: `model.safetensors`, its
    /// shards, or one GGUF file with the same names of tensors.
    ///
    /// # Errors
    /// The first file or field that is missing or does not fit; a model that is no Whisper; several GGUF files.
    pub fn open(folder: &Path) -> Result<Self> {
        expect_folder(
            folder,
            "config.json, tokenizer.json and model.safetensors of a Whisper",
        )?;
        let file = folder.join(CONFIG);
        let text = read(&file)?;
        let found: Kind = parse(&file, &text)?;
        match found.model_type.as_deref() {
            Some("whisper") | None => {}
            Some(other) => {
                let text = std::str::from_utf8(&text).unwrap_or_default();
                let known = kind::command_for(text).or_else(|| kind::language_model(text));
                let problem = known.unwrap_or_else(|| {
                    format!("unsupported speech model {other:?}; expected \"whisper\"")
                });
                return Err(Error::Field {
                    file: file.display().to_string(),
                    field: "model_type".to_string(),
                    problem,
                });
            }
        }
        let config: Config = parse(&file, &text)?;
        let generation = folder.join("generation_config.json");
        let generation: Generation = match generation.exists() {
            true => parse(&generation, &read(&generation)?)?,
            false => Generation::default(),
        };
        let suppress_tokens = generation.suppress_tokens.unwrap_or_default();
        let suppress_tokens = suppress_tokens
            .into_iter()
            .flat_map(u32::try_from)
            .collect();
        let file = folder.join(TOKENIZER);
        let tokenizer = read_tokenizer(&file, &read(&file)?)?;
        Ok(Self {
            name: folder.display().to_string(),
            config,
            tokenizer,
            weights: Weights::of(folder)?,
            alignment_heads: generation.alignment_heads,
            suppress_tokens,
        })
    }

    /// The size of the weights in bytes, as they are stored; 0 if a file has gone.
    pub fn total_bytes(&self) -> u64 {
        let files = match &self.weights {
            Weights::Safetensors(files) => files.as_slice(),
            Weights::Gguf(file) => std::slice::from_ref(file),
        };
        let sizes = files.iter().flat_map(std::fs::metadata);
        sizes.map(|about| about.len()).sum()
    }

    /// The tokens of a text, without special ones: for [`Options::initial_prompt`].
    ///
    /// # Errors
    /// The tokenizer refuses it.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        tokens(&self.tokenizer, text)
    }

    /// The model on `device` with activations of `dtype`: by default f32 on the CPU and beside quantised weights, f16 elsewhere. `options`
    /// without heads for times of words get the model's.
    ///
    /// # Errors
    /// A tensor that is missing or does not fit, a device that cannot hold it, options that do not fit the model.
    pub fn load(
        self,
        device: &Device,
        dtype: Option<DType>,
        options: Options,
    ) -> Result<Transcriber> {
        let mut config = self.config;
        config.suppress_tokens.extend(self.suppress_tokens);
        let mut options = options;
        if options.alignment_heads.is_empty() {
            options.alignment_heads = self.alignment_heads;
        }
        let vocabulary = Box::new(Tokens(self.tokenizer));
        match self.weights {
            Weights::Safetensors(files) => {
                let dtype = dtype.unwrap_or(match device.is_cpu() {
                    true => DType::F32,
                    false => DType::F16,
                });
                // SAFETY: as for every model that is mapped: nobody changes a file of weights while it is in use.
                let vb = unsafe { VarBuilder::from_mmaped_safetensors(&files, dtype, device) };
                let network = model::Whisper::load(&vb.doing(LOADING)?, config).doing(LOADING)?;
                Transcriber::new(network, vocabulary, options).doing("transcribe")
            }
            Weights::Gguf(file) => {
                if let Some(dtype) = dtype.filter(|dtype| *dtype != DType::F32) {
                    return Err(Error::Parameter {
                        name: "dtype",
                        value: dtype.as_str().to_string(),
                        expected: "f32 with the quantised weights of a GGUF file",
                    });
                }
                let vb = quantized_model::VarBuilder::from_gguf(&file, device).doing(LOADING)?;
                let network = quantized_model::Whisper::load(&vb, config).doing(LOADING)?;
                Transcriber::new(network, vocabulary, options).doing("transcribe")
            }
        }
    }
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(format!(" {}", text.trim()), false);
    let encoding = encoding.map_err(|err| Error::Tokenizer(err.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

/// Where somebody speaks in `samples` at 16 kHz, as Silero VAD hears it on the CPU: `file` is `silero_vad_16k.safetensors` of the Python
/// package `silero-vad`.
///
/// # Errors
/// A file of another network, or of none.
pub fn speech_in(file: &Path, samples: &[f32]) -> Result<Speech> {
    // SAFETY: as for every model that is mapped: nobody changes a file of weights while it is in use.
    let vb = unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &Device::Cpu) };
    let heard = vb
        .and_then(SileroVad::load)
        .and_then(|vad| vad.probabilities(samples));
    let heard = heard.map_err(|err| Error::file(file, brief(&err)))?;
    Ok(Speech::of(
        &heard,
        samples.len(),
        &silero_vad::Options::default(),
    ))
}

impl Weights {
    fn of(folder: &Path) -> Result<Self> {
        let entries = std::fs::read_dir(folder).map_err(|err| Error::file(folder, err))?;
        let paths = entries.flatten().map(|entry| entry.path());
        let is_gguf = |path: &PathBuf| path.extension() == Some(OsStr::new("gguf"));
        let mut gguf: Vec<_> = paths.filter(is_gguf).collect();
        gguf.sort_unstable();
        match (open_weights(folder), gguf.as_slice()) {
            (Ok(weights), _) => {
                let files = weights.files().map(Path::to_path_buf);
                Ok(Self::Safetensors(files.collect()))
            }
            (Err(_), [one]) => Ok(Self::Gguf(one.clone())),
            (Err(err), []) => Err(err),
            (Err(_), several) => Err(Error::file(
                folder,
                format!(
                    "found {} GGUF files and no model.safetensors; keep only one",
                    several.len()
                ),
            )),
        }
    }
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
