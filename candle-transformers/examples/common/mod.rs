//! What the examples share: the device, the files of a checkpoint, and progress bars. Each example uses a part of it.
#![allow(dead_code)]

use std::fmt::Display;
use std::path::{Path, PathBuf};

use candle_core::{bail, DType, Device, Error, Result};
use candle_nn::VarBuilder;
use clap::ValueEnum;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Repo, RepoType};
use indicatif::{ProgressBar, ProgressStyle};

/// The device of an example.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum On {
    Cpu,
    Webgpu,
    Cuda,
}

/// The requested device, or the best one of this build.
pub fn device(on: Option<On>) -> Result<Device> {
    match on {
        Some(On::Cpu) => Ok(Device::Cpu),
        Some(On::Webgpu) => Device::new_webgpu(0),
        Some(On::Cuda) => Device::new_cuda(0),
        None => Device::best_available(),
    }
}

pub fn of_file(path: &Path, err: impl Display) -> Error {
    Error::Msg(format!("{}: {err}", path.display()))
}

/// A folder with a checkpoint's files, or a model of the Hugging Face Hub, which has them once they are downloaded.
pub enum Checkpoint {
    Folder(PathBuf),
    Hub(String, Box<ApiRepo>),
}

impl Checkpoint {
    /// The folder of this path, or the model `owner/name` or `owner/name@revision`.
    ///
    /// The Hub's client reads `HF_HOME` and `HF_ENDPOINT`; a token comes from `HF_TOKEN` or the file that `hf auth login` writes.
    pub fn open(name: &str) -> Result<Self> {
        if Path::new(name).is_dir() {
            return Ok(Self::Folder(name.into()));
        }
        let (model, revision) = name.split_once('@').unwrap_or((name, "main"));
        if model.starts_with(['.', '/'])
            || model.split('/').filter(|part| !part.is_empty()).count() != 2
        {
            bail!("{name}: no such folder; give one, or the name of a model on the Hugging Face Hub, owner/name")
        }
        let mut api = ApiBuilder::from_env();
        if let Ok(token) = std::env::var("HF_TOKEN") {
            api = api.with_token(Some(token));
        }
        let repo = Repo::with_revision(model.into(), RepoType::Model, revision.into());
        let repo = api.build().map_err(Error::wrap)?.repo(repo);
        Ok(Self::Hub(name.to_string(), Box::new(repo)))
    }

    /// The path of a file, which is downloaded with a progress bar unless the Hub's cache has it.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        match self {
            Self::Folder(folder) => Ok(folder.join(name)),
            Self::Hub(model, repo) => repo
                .get(name)
                .map_err(|err| Error::Msg(format!("{model} on the Hub: {name}: {err}"))),
        }
    }

    /// The weights as f32, of `model.safetensors`, or of `pytorch_model.bin` where that is absent.
    pub fn weights(&self, device: &Device) -> Result<VarBuilder<'static>> {
        let safetensors = self.file("model.safetensors").and_then(existing);
        match safetensors {
            Ok(path) => weights(&[path], DType::F32, device),
            Err(err) => match self.file("pytorch_model.bin").and_then(existing) {
                Ok(path) => VarBuilder::from_pth(path, DType::F32, device),
                Err(_) => Err(err),
            },
        }
    }

    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.file(name)?;
        std::fs::read(&path).map_err(|err| of_file(&path, err))
    }

    pub fn text(&self, name: &str) -> Result<String> {
        let path = self.file(name)?;
        std::fs::read_to_string(&path).map_err(|err| of_file(&path, err))
    }
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    if path.exists() {
        Ok(path)
    } else {
        Err(of_file(&path, "no such file"))
    }
}

/// A file by its path, or as `owner/name:file` of the Hub.
pub fn file(source: &str) -> Result<PathBuf> {
    match source.split_once(':') {
        Some((model, name)) if !Path::new(source).exists() && model.contains('/') => {
            Checkpoint::open(model)?.file(name)
        }
        _ => Ok(source.into()),
    }
}

/// The tensors of safetensors files.
pub fn weights<P: AsRef<Path>>(
    paths: &[P],
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    // SAFETY: nothing changes the files meanwhile.
    unsafe { VarBuilder::from_mmaped_safetensors(paths, dtype, device) }
}

/// The name of a value on the command line.
pub fn name(value: impl ValueEnum) -> String {
    let name = value.to_possible_value();
    name.map_or(String::new(), |name| name.get_name().to_string())
}

/// A bar on standard error, if that is a terminal.
pub fn bar(steps: usize, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_message(what);
    match ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} {elapsed}, {eta} left") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
