//! `candle-dvm api`.

mod models;

use crate::draft::Draft;
use crate::split::SplitArgs;
use crate::{Error, Result};
use candle_engine::batch::BatchSettings;
use candle_engine::device::{DeviceChoice, DeviceParser, FloatType};
use candle_engine::model::{LoraSource, Split};
use candle_engine::progress::note;
use candle_openai::{Access, Limits};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

/// Time for the program's threads to end.
const LAST_STEP: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A GGUF file, a Hugging Face folder (config.json, tokenizer.json, safetensors) or a Hub model, owner/name[@revision][:file.gguf];
    /// may be given several times [default: the small embedded model]
    #[arg(long, value_name = "MODEL")]
    model: Vec<PathBuf>,
    /// LoRA adapter of peft over the model, which must then be the only one: a folder or a Hub name, and its scale; may be given several
    /// times
    #[arg(long, value_name = "PATH[:SCALE]")]
    lora: Vec<LoraSource>,
    #[command(flatten)]
    draft: Draft,
    /// Model name reported to clients, one for each --model in their order [default: the file or folder name]
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Maximum size of the weights that are loaded at once, such as 8GB, for several models: they are loaded when a client asks for
    /// them, and the one that was not used for the longest is unloaded [default: all stay loaded]
    #[arg(long, value_name = "SIZE", value_parser = candle_engine::size::parse)]
    memory: Option<u64>,
    /// Embedding model for /v1/embeddings, as for `embed`
    #[arg(long, value_name = "FOLDER")]
    embedding_model: Option<PathBuf>,
    /// Name of the embedding model reported to clients [default: the file or folder name]
    #[arg(long, value_name = "NAME", requires = "embedding_model")]
    embedding_name: Option<String>,
    /// Model that scores documents for /v1/rerank, as for `rerank`
    #[arg(long, value_name = "FOLDER")]
    rerank_model: Option<PathBuf>,
    /// Name of that model reported to clients [default: the folder name]
    #[arg(long, value_name = "NAME", requires = "rerank_model")]
    rerank_name: Option<String>,
    /// Whisper, Moonshine or Parakeet model for /v1/audio/transcriptions and, with a Whisper, /v1/audio/translations, as for `transcribe`
    #[arg(long, value_name = "MODEL")]
    speech_model: Option<PathBuf>,
    /// Name of the speech model reported to clients [default: the file or folder name]
    #[arg(long, value_name = "NAME", requires = "speech_model")]
    speech_name: Option<String>,
    /// Address to listen on. The server has no TLS: put a proxy in front of it before exposing it, and require a key with
    /// --api-key-file
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// File with the keys that clients may use, one in each line; only its owner may be able to read it [default: no key is
    /// required]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Additional host name that clients use for the server; may be given several times
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    /// Origin of web pages that may use the server, such as https://example.com, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    connections: usize,
    /// Time for running requests to finish after SIGINT or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().drain.as_secs())]
    drain: u64,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
    /// Element type of activations and unquantised weights [default: f32 on the CPU, with quantised weights and for the embedded
    /// model; otherwise the type of the stored weights]
    #[arg(long, value_enum)]
    dtype: Option<FloatType>,
    #[command(flatten)]
    split: SplitArgs,
    /// Tokens of each request that `--gpu-layers auto` leaves room for
    #[arg(long, alias = "ctx-size", value_name = "N", default_value_t = Split::default().context)]
    context: usize,
    /// Maximum number of requests to run at once
    #[arg(long, value_name = "N", default_value_t = BatchSettings::default().slots)]
    slots: usize,
    /// Maximum number of requests to queue
    #[arg(long, value_name = "N", default_value_t = BatchSettings::default().waiting)]
    waiting: usize,
    /// Maximum number of prompt tokens to process between two generation steps [default: 128 on the CPU, 512 on a GPU]
    #[arg(long, value_name = "N")]
    piece: Option<usize>,
    /// Memory for the keys and values of requests, such as 4GB, on each device, in pages that requests share where they begin alike. When
    /// it is full, the youngest request waits [default: a cache that grows with the longest request times --slots]
    #[arg(long, value_name = "SIZE", value_parser = candle_engine::size::parse)]
    cache_memory: Option<u64>,
}

pub(super) fn run(args: Args) -> Result<()> {
    crate::log_places_of_panics();
    if args.connections == 0 {
        return Err(Error::parameter("connections", "0", "at least 1"));
    }
    args.split.check()?;
    let mut access = Access::default();
    if let Some(file) = &args.api_key_file {
        access = access.with_keys(file)?;
    }
    for name in &args.host_name {
        access = access.with_host(name);
    }
    for origin in &args.allow_origin {
        access = access.with_origin(origin);
    }
    let runtime = crate::runtime()?;
    // An address that is in use is reported before gigabytes are read.
    let listener = runtime.block_on(tokio::net::TcpListener::bind(args.listen));
    let listener = listener.map_err(|err| Error::service(format!("{}: {err}", args.listen)))?;
    let is_open = !access.has_keys();
    let served = models::load(&args)?.with_access(access);
    let address = listener.local_addr().map_err(Error::service)?;
    if is_open && !address.ip().is_loopback() {
        note(&format!(
            "warning: whoever reaches {address} can use the server; require a key with --api-key-file"
        ));
    }
    let limits = Limits {
        connections: args.connections,
        drain: Duration::from_secs(args.drain),
        ..Limits::default()
    };
    // Before any client can know the address: a signal that comes at once drains too.
    let stop = runtime.block_on(async { crate::asked_to_stop() })?;
    note(&format!(
        "listening on http://{address}/v1, up to {} requests at once; press Ctrl-C to stop",
        args.slots
    ));
    let served = runtime.block_on(candle_openai::serve(listener, served, limits, stop));
    // The last step of a device may take long, and a device that hangs does not return.
    let (ended, wait) = channel::<()>();
    std::thread::spawn(move || {
        if wait.recv_timeout(LAST_STEP) == Err(RecvTimeoutError::Timeout) {
            std::process::exit(1);
        }
    });
    runtime.shutdown_timeout(LAST_STEP / 5);
    drop(ended);
    Ok(served?)
}
