//! `candle-dvm api`.

use crate::{Error, Result};
use candle_engine::batch::{BatchEngine, BatchSettings};
use candle_engine::device::{describe, DeviceChoice, DeviceParser, FloatType};
use candle_engine::embed::EncoderFiles;
use candle_engine::model::{Message, ModelFiles, ModelSource, Role};
use candle_engine::progress::{note, LoadBar};
use candle_engine::registry::BackendRegistry;
use candle_openai::{Encoder, Served};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A GGUF file, a Hugging Face folder (config.json, tokenizer.json, safetensors) or a Hub model, owner/name[@revision][:file.gguf]
    /// [default: the small embedded model]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Model name reported to clients [default: the file or folder name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Embedding model for /v1/embeddings, as for `embed`; clients use its folder name
    #[arg(long, value_name = "FOLDER")]
    embedding_model: Option<PathBuf>,
    /// Address to listen on. The server has no authentication and no TLS: put a proxy in front of it before exposing it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
    /// Element type of activations and unquantised weights [default: f32 on the CPU, with quantised weights and for the embedded
    /// model; otherwise the type of the stored weights]
    #[arg(long, value_enum)]
    dtype: Option<FloatType>,
    /// Maximum number of requests to run at once
    #[arg(long, value_name = "N", default_value_t = BatchSettings::default().slots)]
    slots: usize,
    /// Maximum number of requests to queue
    #[arg(long, value_name = "N", default_value_t = BatchSettings::default().waiting)]
    waiting: usize,
    /// Maximum number of prompt tokens to process between two generation steps
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
    // One that cannot work would be found by the first client; texts without it are served all the same.
    let tried = template
        .as_ref()
        .map(|template| template.render(&[Message::new(Role::User, "Hello")]));
    if let Some(Err(err)) = tried {
        note(&format!(
            "warning: /v1/chat/completions cannot work: {}",
            err.one_line()
        ));
    }
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
            note(&format!("{name}, for embeddings"));
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
        "listening on http://{address}/v1, up to {} requests at once; press Ctrl-C to stop",
        args.slots
    ));
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(runtime.block_on(candle_openai::serve(listener, served, stop))?)
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
