//! A model of speech whose files are read in parts: from a server, or from files that a browser holds.

use super::about::About;
use super::model::SpeechModel;
use crate::model::{load_parts, PartFile, PartSource};
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use candle_transformers::models::whisper::transcribe::Options;
use std::path::Path;

/// A model of speech whose small files have been read and checked, and whose weights are still where they were.
pub struct SpeechParts {
    about: About,
    weights: Vec<Box<dyn PartFile>>,
}

impl SpeechParts {
    /// Checks `config.json`, `tokenizer.json` and, if it is there, `generation_config.json`.
    ///
    /// # Errors
    /// The first field that is missing or does not fit; a model of another kind than these three; a GGUF file, which has no configuration.
    pub fn open(source: PartSource) -> Result<Self> {
        match source {
            PartSource::Folder {
                config,
                generation_config,
                tokenizer,
                weights,
                ..
            } => Ok(Self {
                about: About::read(
                    Path::new(""),
                    &config,
                    generation_config.as_deref(),
                    || Ok(tokenizer),
                )?,
                weights,
            }),
            PartSource::Gguf(file) => Err(Error::File {
                file: file.name().to_string(),
                problem: "a GGUF file has no configuration of a speech model; expected config.json, tokenizer.json and model.safetensors"
                    .to_string(),
            }),
        }
    }

    /// The size of the weights in bytes, as they are stored.
    pub fn total_bytes(&self) -> u64 {
        self.weights.iter().map(|file| file.size()).sum()
    }

    /// The model on `device` with activations of `dtype`: by default f32 on the CPU and f16 elsewhere. `options` without heads for times of
    /// words get the model's.
    ///
    /// # Errors
    /// A tensor that is missing or does not fit, a device that cannot hold it, options that do not fit the model, and what a file gives for
    /// an error.
    pub async fn load(
        self,
        device: &Device,
        dtype: Option<DType>,
        options: Options,
    ) -> Result<SpeechModel> {
        let dtype = dtype.unwrap_or(if device.is_cpu() {
            DType::F32
        } else {
            DType::F16
        });
        let tensors = load_parts(&self.weights, dtype, device).await?;
        let vb = VarBuilder::from_tensors(tensors, dtype, device);
        self.about.dense(options, vb)
    }
}
