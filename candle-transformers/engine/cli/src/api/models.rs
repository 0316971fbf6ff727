//! The models that `api` serves.

use super::Args;
use crate::{Error, Result};
use candle_engine::batch::{BatchEngine, BatchSettings};
use candle_engine::device::{describe, DeviceChoice, FloatType};
use candle_engine::embed::EncoderFiles;
use candle_engine::model::{ChatTemplate, Message, ModelFiles, ModelSource, Role};
use candle_engine::progress::{note, LoadBar};
use candle_engine::registry::BackendRegistry;
use candle_engine::speech::{SpeechFiles, SpeechWorker};
use candle_openai::{Encoder, Served, Speech, TextSource, Texts};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// How models of text are loaded.
#[derive(Clone)]
struct Loader {
    registry: Arc<BackendRegistry>,
    device: DeviceChoice,
    dtype: Option<FloatType>,
    settings: BatchSettings,
}

impl Loader {
    fn load(
        &self,
        name: &str,
        files: ModelFiles,
    ) -> candle_engine::Result<(BatchEngine, Option<ChatTemplate>)> {
        let template = files.chat_template.clone();
        let bar = LoadBar::new(files.total_bytes());
        let entry = self.registry.select(self.device)?;
        let dtype = self.dtype.map(FloatType::dtype);
        let backend = entry.load(files, dtype, &|bytes| bar.advance(bytes))?;
        bar.finish(&format!("{name} on {}", describe(backend.device())));
        let engine = BatchEngine::new(Arc::new(backend), self.settings)?;
        Ok((engine, template))
    }
}

/// Checks the files of all models, and loads those of text for which the budget has room, and the others.
pub(super) fn load(args: &Args) -> Result<Served> {
    let sources: Vec<ModelSource> = match args.model.is_empty() {
        true => vec![ModelSource::Embedded],
        false => args.model.iter().cloned().map(ModelSource::at).collect(),
    };
    if args.name.len() > sources.len() {
        return Err(Error::parameter(
            "name",
            args.name.len(),
            "at most one for each --model",
        ));
    }
    let all = sources.iter().map(ModelFiles::open);
    let all = all.collect::<candle_engine::Result<Vec<_>>>()?;
    let encoder = args.embedding_model.as_deref();
    let encoder = encoder
        .map(|folder| EncoderFiles::open(folder, None))
        .transpose()?;
    let speech = args.speech_model.clone();
    let speech = speech.map(|model| SpeechFiles::at(ModelSource::at(model)));
    let speech = speech.transpose()?;
    let loader = Loader {
        registry: Arc::new(BackendRegistry::detect()),
        device: args.device,
        dtype: args.dtype,
        settings: BatchSettings {
            slots: args.slots,
            piece: args.piece,
            waiting: args.waiting,
            compile_ahead: true,
            ..BatchSettings::default()
        },
    };
    let texts = sources.into_iter().zip(all).enumerate();
    let texts = texts.map(|(at, (source, files))| {
        let name = args.name.get(at).cloned();
        let name = name.unwrap_or_else(|| last_part(&files.name));
        try_template(&name, &files);
        let (loader, called) = (loader.clone(), name.clone());
        let bytes = files.total_bytes();
        // They are read: the first time to load need not read them again.
        let read = Mutex::new(Some(files));
        let load = move || {
            let files = read.lock().unwrap_or_else(PoisonError::into_inner).take();
            let files = files.map_or_else(|| ModelFiles::open(&source), Ok)?;
            loader.load(&called, files)
        };
        TextSource {
            name,
            bytes,
            load: Box::new(load),
        }
    });
    let texts = Texts::several(texts.collect(), args.memory)?;
    texts.load_ahead()?;
    let device = loader.registry.select(args.device)?.open()?.clone();
    let encoder = match encoder {
        None => None,
        Some(files) => {
            let name = args.embedding_name.clone();
            let name = name.unwrap_or_else(|| last_part(&files.name));
            let model = files.load(&device)?;
            note(&format!("{name}, for embeddings"));
            Some(Encoder { name, files, model })
        }
    };
    let speech = match speech {
        None => None,
        Some(files) => {
            let name = args.speech_name.clone();
            let name = name.unwrap_or_else(|| last_part(&files.name));
            let dtype = args.dtype.map(FloatType::dtype);
            let worker = SpeechWorker::start(files, &device, dtype)?;
            note(&format!("{name}, for speech"));
            Some(Speech { name, worker })
        }
    };
    Ok(Served::new(texts)
        .with_encoder(encoder)?
        .with_speech(speech))
}

/// Says so if the chat template cannot work: the first client would find out; texts without it are served all the same.
fn try_template(name: &str, files: &ModelFiles) {
    let template = files.chat_template.as_ref();
    let tried = template.map(|template| template.render(&[Message::new(Role::User, "Hello")]));
    if let Some(Err(err)) = tried {
        let err = err.one_line();
        note(&format!("warning: chats with {name} cannot work: {err}"));
    }
}

/// The name of a file or folder without what is before it, or behind a point.
fn last_part(name: &str) -> String {
    let path = Path::new(name);
    let part = match path.extension().is_some_and(|end| end == "gguf") {
        true => path.file_stem(),
        false => path.file_name(),
    };
    part.map_or_else(
        || name.to_string(),
        |part| part.to_string_lossy().into_owned(),
    )
}

/// A size in bytes, such as `8GB`, `512MiB` or `1000000`.
pub(super) fn size(text: &str) -> std::result::Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "kib" => 1024.,
        "mib" => 1024. * 1024.,
        "gib" => 1024. * 1024. * 1024.,
        _ => f64::NAN,
    };
    let bytes = number.parse::<f64>().unwrap_or(f64::NAN) * factor;
    match bytes >= 1. {
        true => Ok(bytes as u64),
        false => Err("expected a size such as 8GB or 512MiB".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes() {
        assert_eq!(size("1000"), Ok(1000));
        assert_eq!(size("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(size("2MiB"), Ok(2 << 20));
        for wrong in ["", "GB", "-1", "8 apples", "0", "1.2.3k"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
