//! LoRA adapters of peft over a model's files.

use super::network::Files;
use super::weights::Headers;
#[cfg(not(target_arch = "wasm32"))]
use super::{Hub, HubModel};
use super::{ModelFiles, ModelSource};
use crate::error::{brief, unlocated};
use crate::{Error, Result};
use candle_transformers::lora::{Adapter, Plan};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An adapter and how much of it: `PATH[:SCALE]`, where the path is a folder with `adapter_config.json` and `adapter_model.safetensors`, or
/// a name on the Hugging Face Hub.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSource {
    /// The folder or the name.
    pub path: PathBuf,
    /// Scales the adapter's changes, in addition to the factor of its configuration.
    pub scale: f64,
}

impl FromStr for LoraSource {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (path, scale) = match text.rsplit_once(':') {
            // Other colons are a drive's, or part of a name.
            Some((path, scale)) if scale.parse::<f64>().is_ok() => (path, scale.parse().ok()),
            _ => (text, Some(1.)),
        };
        match scale.filter(|scale: &f64| scale.is_finite()) {
            Some(scale) if !path.is_empty() => Ok(Self {
                path: PathBuf::from(path),
                scale,
            }),
            _ => Err("expected PATH or PATH:SCALE with a finite number".to_string()),
        }
    }
}

impl fmt::Display for LoraSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.scale == 1. {
            Ok(())
        } else {
            write!(f, ":{}", self.scale)
        }
    }
}

impl LoraSource {
    /// Reads the adapter; one on the Hugging Face Hub is fetched first, as the environment says ([`Hub::from_env`]).
    ///
    /// # Errors
    /// An adapter that cannot be fetched; as [`Adapter::open`] and [`Adapter::with_scale`].
    pub fn open(&self) -> Result<Adapter> {
        let adapter = Adapter::open(&self.folder()?).map_err(|err| self.error(&err))?;
        let named = adapter.with_name(self.path.display().to_string());
        named.with_scale(self.scale).map_err(|err| self.error(&err))
    }

    fn error(&self, err: &candle_core::Error) -> Error {
        Error::file(&self.path, brief(unlocated(err)))
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn folder(&self) -> Result<PathBuf> {
        if !self.path.exists() {
            if let Some(name) = self.path.to_str().and_then(HubModel::parse) {
                return Hub::from_env()?.fetch_adapter(&name);
            }
        }
        Ok(self.path.clone())
    }

    #[cfg(target_arch = "wasm32")]
    fn folder(&self) -> Result<PathBuf> {
        Ok(self.path.clone())
    }
}

impl ModelFiles {
    /// As [`ModelFiles::open`], with adapters over the model.
    ///
    /// # Errors
    /// As [`ModelFiles::open`], [`LoraSource::open`] and [`ModelFiles::with_adapters`].
    pub fn open_with(source: &ModelSource, loras: &[LoraSource]) -> Result<Self> {
        let files = Self::open(source)?;
        if loras.is_empty() {
            return Ok(files);
        }
        let adapters = loras.iter().map(LoraSource::open);
        let files = files.with_adapters(&adapters.collect::<Result<Vec<_>>>()?)?;
        let names = loras.iter().map(LoraSource::to_string).collect();
        Ok(Self {
            loras: names,
            ..files
        })
    }

    /// The model with the changes of `adapters`, which replace any earlier ones. Dense weights are changed when they are loaded; weights of
    /// a GGUF file keep the changes as separate matrices.
    ///
    /// # Errors
    /// As [`Plan::new`]: the first module that the model does not have, or whose shape does not fit.
    pub fn with_adapters(mut self, adapters: &[Adapter]) -> Result<Self> {
        let spec = &self.network.spec;
        let plan = match &*self.network.files {
            Files::Safetensors(weights) => Plan::new(spec, &mut Headers(weights), adapters),
            Files::Gguf(content) => {
                let mut content = content;
                Plan::new(spec, &mut content, adapters)
            }
        };
        let plan = plan.map_err(|err| Error::file(self.name.as_ref(), brief(&err)))?;
        self.network.plan = (!plan.is_empty()).then(|| plan.into());
        self.loras = adapters
            .iter()
            .map(|adapter| adapter.name().to_string())
            .collect();
        Ok(self)
    }

    /// `name` with the adapters that are over the model, for messages.
    pub fn with_loras(&self, name: &str) -> String {
        match self.loras.as_slice() {
            [] => name.to_string(),
            loras => format!("{name} with LoRA {}", loras.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LoraSource;

    #[test]
    fn places_and_scales() {
        for (text, path, scale) in [
            ("folder", "folder", 1.),
            ("folder:0.5", "folder", 0.5),
            ("us/name@main:-2", "us/name@main", -2.),
            ("C:\\folder", "C:\\folder", 1.),
        ] {
            let source: LoraSource = text.parse().unwrap();
            assert_eq!(source.path.to_str(), Some(path));
            assert_eq!(source.scale, scale, "{text}");
            assert_eq!(source.to_string(), text);
        }
        for text in ["", ":1", "folder:inf", "folder:NaN"] {
            assert!(text.parse::<LoraSource>().is_err(), "{text}");
        }
    }
}
