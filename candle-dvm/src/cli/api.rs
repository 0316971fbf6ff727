//! `candle-dvm api`.

use crate::api::{self, Encoder, Served};
use crate::batch::{BatchEngine, BatchSettings};
use crate::device::{describe, DeviceChoice, DeviceParser, FloatType};
use crate::embed::EncoderFiles;
use crate::model::{ModelFiles, ModelSource};
use crate::progress::{note, LoadBar};
use crate::registry::BackendRegistry;
use crate::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A GGUF file; a Hugging Face folder with config.json, tokenizer.json and safetensors; or owner/name[@revision][:file.gguf], which is
    /// fetched from the Hugging Face Hub; without it, the small embedded model
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// What clients call the model [default: the name of its file or folder]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A model of vectors, as `embed` takes it, for /v1/embeddings; its name is that of its folder
    #[arg(long, value_name = "FOLDER")]
    embedding_model: Option<PathBuf>,
    /// The address to listen at. There is neither a password nor encryption: put a proxy in front before others can reach it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where to run
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
    /// Element type of activations, and of weights that are not quantised [default: f32 for the embedded model, on the CPU
    /// and beside quantised weights; otherwise what the weights are stored as]
    #[arg(long, value_enum)]
    dtype: Option<FloatType>,
    /// How many texts run at once
    #[arg(long, value_name = "N", default_value_t = BatchSettings::default().slots)]
    slots: usize,
    /// How many texts may wait
    #[arg(long, value_name = "N", default_value_t = BatchSettings::default().waiting)]
    waiting: usize,
    /// Tokens of prompts that are read between two tokens of the texts that run
    #[arg(long, value_name = "N", default_value_t = BatchSettings::default().piece)]
    piece: usize,
}

pub(super) fn run(args: Args) -> Result<()> {
    super::log_places_of_panics();
    let runtime = super::runtime()?;
    // An address that is taken is reported before gigabytes are read.
    let listener = runtime.block_on(tokio::net::TcpListener::bind(args.listen));
    let listener = listener.map_err(|err| Error::service(format!("{}: {err}", args.listen)))?;
    let source = args.model.map_or(ModelSource::Embedded, ModelSource::at);
    let files = ModelFiles::open(&source)?;
    let encoder = args.embedding_model.as_deref();
    let encoder_files = encoder.map(|folder| EncoderFiles::open(folder, None));
    let encoder_files = encoder_files.transpose()?;
    let template = files.chat_template.clone();
    let name = args.name.unwrap_or_else(|| last_part(&files.name));
    let registry = BackendRegistry::detect();
    let entry = registry.select(args.device)?;
    let bytes = files.total_bytes();
    let bar = LoadBar::new(bytes);
    let dtype = args.dtype.map(FloatType::dtype);
    let backend = entry.load(files, dtype, &|bytes| bar.advance(bytes))?;
    let device = backend.device().clone();
    bar.finish(&format!("{name} on {}", describe(&device)));
    let encoder = match encoder_files {
        None => None,
        Some(files) => {
            let name = last_part(&files.name);
            let model = files.load(&device)?;
            note(&format!("{name}, for vectors, beside it"));
            Some(Encoder { name, files, model })
        }
    };
    let settings = BatchSettings {
        slots: args.slots,
        piece: args.piece,
        waiting: args.waiting,
        compile_ahead: true,
        ..BatchSettings::default()
    };
    let served = Served {
        engine: BatchEngine::new(Arc::new(backend), settings)?,
        name,
        template,
        encoder,
    };
    let address = listener.local_addr().map_err(Error::service)?;
    note(&format!(
        "http://{address}/v1, for {} texts at once; Ctrl-C ends it",
        args.slots
    ));
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    runtime.block_on(api::serve(listener, served, stop))
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
