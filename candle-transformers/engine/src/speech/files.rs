//! A speech model from a folder.

use super::about::{About, GENERATION};
use super::model::SpeechModel;
use super::LOADING;
use crate::error::Doing;
use crate::model::{expect_folder, open_weights, read, Hub, ModelSource, CONFIG, TOKENIZER};
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use candle_transformers::models::whisper::quantized_model;
use candle_transformers::models::whisper::transcribe::Options;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// A model of speech whose files have been read and checked, and that is on no device yet.
pub struct SpeechFiles {
    /// The name of the model in messages.
    pub name: String,
    about: About,
    weights: Weights,
}

enum Weights {
    Safetensors(Vec<PathBuf>),
    Gguf(PathBuf),
}

impl SpeechFiles {
    /// The files of `source`, fetched first if it is a model of the Hub.
    ///
    /// # Errors
    /// Those of the Hub and of [`open`](Self::open); a source that is not a folder.
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
                expected: "the folder of a speech model",
            }),
        }
    }

    /// Reads `config.json`, `tokenizer.json` and, if it is there, `generation_config.json`, and finds the weights: `model.safetensors`, its
    /// shards, or of a Whisper one GGUF file with the same names of tensors.
    ///
    /// # Errors
    /// The first file or field that is missing or does not fit; a model of another kind than these three; several GGUF files.
    pub fn open(folder: &Path) -> Result<Self> {
        expect_folder(
            folder,
            "config.json, tokenizer.json and model.safetensors of a speech model",
        )?;
        let config = read(&folder.join(CONFIG))?;
        let generation = folder.join(GENERATION);
        let generation = if generation.exists() {
            Some(read(&generation)?)
        } else {
            None
        };
        let tokenizer = || read(&folder.join(TOKENIZER));
        Ok(Self {
            name: folder.display().to_string(),
            about: About::read(folder, &config, generation.as_deref(), tokenizer)?,
            weights: Weights::of(folder)?,
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
        tokens(&self.about.tokenizer, text)
    }

    #[cfg(feature = "audio")]
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.about.tokenizer
    }

    /// The model on `device` with activations of `dtype`: by default f32 on the CPU and for quantised weights, f16 elsewhere. `options`
    /// without alignment heads get the model's.
    ///
    /// # Errors
    /// A tensor that is missing or does not fit, a device that cannot hold it, options that do not fit the model.
    pub fn load(
        self,
        device: &Device,
        dtype: Option<DType>,
        options: Options,
    ) -> Result<SpeechModel> {
        match self.weights {
            Weights::Safetensors(files) => {
                let dtype = dtype.unwrap_or(if device.is_cpu() {
                    DType::F32
                } else {
                    DType::F16
                });
                // SAFETY: as for all mapped weights: nothing changes the files while they are in use.
                let vb = unsafe { VarBuilder::from_mmaped_safetensors(&files, dtype, device) };
                let vb = vb.doing(LOADING)?;
                self.about.dense(options, vb)
            }
            Weights::Gguf(file) => {
                if let Some(dtype) = dtype.filter(|dtype| *dtype != DType::F32) {
                    return Err(Error::Parameter {
                        name: "dtype",
                        value: dtype.as_str().to_string(),
                        expected: "f32 with the quantised weights of a GGUF file",
                    });
                }
                let weights = || quantized_model::VarBuilder::from_gguf(&file, device);
                self.about.quantized(options, weights)
            }
        }
    }
}

/// The tokens of a text that comes before the first window's.
pub(super) fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(format!(" {}", text.trim()), false);
    let encoding = encoding.map_err(|err| Error::Tokenizer(err.to_string()))?;
    Ok(encoding.get_ids().to_vec())
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
