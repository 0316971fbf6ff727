//! The models that `api` serves.

use super::Args;
use crate::draft::{Draft, DraftFiles, LoadedDraft};
use crate::split::SplitArgs;
use crate::{Error, Result};
use candle_engine::batch::{BatchEngine, BatchSettings, LARGE_PIECE};
use candle_engine::device::{DeviceChoice, FloatType};
use candle_engine::embed::EncoderFiles;
use candle_engine::format::KvType;
use candle_engine::model::{ChatTemplate, Message, ModelFiles, ModelSource, Role};
use candle_engine::progress::{note, LoadBar};
use candle_engine::registry::BackendRegistry;
use candle_engine::rerank::RerankerFiles;
use candle_engine::speech::{SpeechFiles, SpeechWorker};
use candle_openai::{Encoder, Reranker, Served, Speech, TextSource, Texts};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The settings for loading text models.
#[derive(Clone)]
struct Loader {
    registry: Arc<BackendRegistry>,
    device: DeviceChoice,
    dtype: Option<FloatType>,
    settings: BatchSettings,
    split: SplitArgs,
    context: usize,
    draft: Draft,
}

impl Loader {
    fn load(
        &self,
        name: &str,
        mut files: ModelFiles,
    ) -> candle_engine::Result<(BatchEngine, Option<ChatTemplate>)> {
        let template = files.chat_template.clone();
        let draft = self.draft.open(&files, KvType::default())?;
        let name = DraftFiles::with(draft.as_ref(), name);
        let bar = LoadBar::new(total_bytes(&files, draft.as_ref()));
        let entry = self.registry.select(self.device)?;
        let dtype = self.dtype.map(FloatType::dtype);
        let context = self.context.min(files.max_positions());
        let BatchSettings { slots, piece, .. } = self.settings;
        let piece = piece.unwrap_or(LARGE_PIECE);
        files.split = self.split.with_room(slots, context, piece);
        let progress = |bytes| bar.advance(bytes);
        let draft = DraftFiles::load(draft, entry, dtype, &progress)?;
        let backend = entry.load_shared(files, self.split.gpus, dtype, &progress)?;
        let backend = LoadedDraft::beside(draft, backend)?;
        bar.finish(&format!("{name} on {}", backend.devices()));
        let engine = BatchEngine::new(Arc::new(backend), self.settings)?;
        Ok((engine, template))
    }
}

/// Checks the files of all models, and loads those of text for which the budget has room, and the others.
pub(super) fn load(args: &Args) -> Result<Served> {
    let sources: Vec<ModelSource> = if args.model.is_empty() {
        vec![ModelSource::Embedded]
    } else {
        args.model.iter().cloned().map(ModelSource::at).collect()
    };
    if args.name.len() > sources.len() {
        return Err(Error::parameter(
            "name",
            args.name.len(),
            "at most one for each --model",
        ));
    }
    if !args.lora.is_empty() && sources.len() > 1 {
        return Err(Error::parameter(
            "lora",
            args.lora.len(),
            "at most one --model beside it",
        ));
    }
    if args.draft.is_given() && sources.len() > 1 {
        return Err(Error::parameter(
            "draft",
            "with several models",
            "at most one --model beside it",
        ));
    }
    let open = |source: &ModelSource| ModelFiles::open_with(source, &args.lora);
    let all = sources.iter().map(open);
    let all = all.collect::<candle_engine::Result<Vec<_>>>()?;
    let encoder = args.embedding_model.as_deref();
    let encoder = encoder
        .map(|folder| EncoderFiles::open(folder, None))
        .transpose()?;
    let reranker = args.rerank_model.as_deref();
    let reranker = reranker.map(RerankerFiles::open).transpose()?;
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
            cache_memory: args.cache_memory,
            ..BatchSettings::default()
        },
        split: args.split.clone(),
        context: args.context,
        draft: args.draft.clone(),
    };
    let texts = sources.into_iter().zip(all).enumerate();
    let texts = texts.map(|(at, (source, files))| {
        let name = args.name.get(at).cloned();
        let name = name.unwrap_or_else(|| last_part(&files.name));
        try_template(&name, &files);
        let (loader, called) = (loader.clone(), files.with_loras(&name));
        let loras = args.lora.clone();
        let draft = loader.draft.open(&files, KvType::default())?;
        let bytes = total_bytes(&files, draft.as_ref());
        // They are read: the first time to load need not read them again.
        let read = Mutex::new(Some(files));
        let load = move || {
            let files = read.lock().unwrap_or_else(PoisonError::into_inner).take();
            let files = files.map_or_else(|| ModelFiles::open_with(&source, &loras), Ok)?;
            loader.load(&called, files)
        };
        Ok(TextSource {
            name,
            bytes,
            load: Box::new(load),
        })
    });
    let texts = texts.collect::<Result<Vec<_>>>()?;
    let texts = Texts::several(texts, args.memory)?;
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
    let reranker = match reranker {
        None => None,
        Some(files) => {
            let name = args.rerank_name.clone();
            let name = name.unwrap_or_else(|| last_part(&files.name));
            let model = files.load(&device)?;
            note(&format!("{name}, for reranking"));
            Some(Reranker { name, files, model })
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
        .with_reranker(reranker)?
        .with_speech(speech))
}

/// The size of the weights of a model and its draft model.
fn total_bytes(files: &ModelFiles, draft: Option<&DraftFiles>) -> u64 {
    files.total_bytes() + draft.map_or(0, DraftFiles::bytes)
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

/// The last component of a path, without the extension `.gguf`.
fn last_part(name: &str) -> String {
    let path = Path::new(name);
    let part = if path.extension().is_some_and(|end| end == "gguf") {
        path.file_stem()
    } else {
        path.file_name()
    };
    part.map_or_else(
        || name.to_string(),
        |part| part.to_string_lossy().into_owned(),
    )
}
