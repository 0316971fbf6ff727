//! `candle-dvm serve`.

use crate::journal::RedbJournal;
use crate::key_file::KeySource;
use crate::payment::nwc::Wallet;
use crate::payment::{Free, Payment};
#[cfg(feature = "audio")]
use crate::service::speech::Ear;
use crate::service::{prometheus, Generator, Metrics, Offers, Service, Settings};
use crate::{Error, Result};
use candle_engine::batch::{BatchEngine, BatchSettings};
#[cfg(feature = "audio")]
use candle_engine::device::describe;
use candle_engine::device::{DeviceChoice, DeviceParser};
use candle_engine::format::KvType;
use candle_engine::model::{
    ChatTemplate, GpuLayers, LoraSource, Message, ModelFiles, ModelSource, Role, Split,
};
use candle_engine::progress::{note, LoadBar};
use candle_engine::registry::{BackendEntry, BackendRegistry};
#[cfg(feature = "audio")]
use candle_engine::speech::SpeechFiles;
use candle_engine::CandleBackend;
use nostr::nips::nip19::ToBech32;
use nostr::prelude::Keys;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The journal's file.
const JOURNAL: &str = "journal.redb";
const CACHE_MEMORY: &str = "cache-memory";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration file; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Relay to serve on; may be given several times
    #[arg(long, value_name = "URL")]
    relay: Vec<String>,
    /// A GGUF file, a Hugging Face folder or a Hub model, owner/name[@revision][:file.gguf] [default: the small embedded model]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// LoRA adapter of peft over the model, a folder or a Hub name, and how much of it; may be given several times
    #[arg(long, value_name = "PATH[:SCALE]")]
    lora: Vec<LoraSource>,
    /// Draft model: a smaller model with the same tokenizer, which proposes tokens to a job that runs alone; results are the same
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,
    /// A Whisper, Moonshine or Parakeet model, a Hugging Face folder or a Hub model, for jobs of kind 5000; without --model it is served alone
    #[cfg(feature = "audio")]
    #[arg(long, value_name = "MODEL")]
    speech_model: Option<PathBuf>,
    /// Device to run on
    #[arg(long, value_parser = DeviceParser)]
    device: Option<DeviceChoice>,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value = "auto")]
    kv_dtype: KvType,
    /// Split each layer across N devices of this kind [default: 1]
    #[arg(long, value_name = "N")]
    gpus: Option<usize>,
    /// Layers on the GPU: `all`, `auto` for the largest number that fits, or a number. Those are the last ones; the others run on the CPU, which is slower
    #[arg(long, value_name = "N")]
    gpu_layers: Option<GpuLayers>,
    /// Keep the experts of all layers on the CPU
    #[arg(long)]
    cpu_experts: bool,
    /// Memory for the keys and values of jobs, such as 4GB, in pages that jobs share where they begin alike. When it is full, the youngest
    /// job waits [default: a cache that grows with the longest job times `running`]
    #[arg(long, value_name = "SIZE", value_parser = candle_engine::size::parse)]
    cache_memory: Option<u64>,
    /// File with the secret key; `-` reads standard input [default: the environment variable CANDLE_DVM_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Folder for the journal, which ensures that each job is answered once [default: candle-dvm-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// On the first start, also answer requests up to this old [default: 0]
    #[arg(long, value_name = "SECONDS")]
    look_back: Option<u64>,
    /// Continue prompts as they are, also if the model has a chat template; a request can override it
    #[arg(long)]
    raw: bool,
    /// Serve Prometheus metrics on a local address, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Log one JSON object per line
    #[arg(long)]
    pub(super) log_json: bool,
}

pub(super) fn run(args: Args) -> Result<()> {
    candle_cli::log_places_of_panics();
    let mut settings = match &args.config {
        Some(file) => Settings::read(file)?,
        None => Settings::default(),
    };
    if !args.relay.is_empty() {
        settings.relays = args.relay;
    }
    settings.model = args.model.or(settings.model);
    if !args.lora.is_empty() {
        settings.lora = args.lora.iter().map(LoraSource::to_string).collect();
    }
    settings.draft = args.draft.or(settings.draft);
    #[cfg(feature = "audio")]
    {
        settings.speech_model = args.speech_model.or(settings.speech_model);
    }
    settings.key_file = args.key_file.or(settings.key_file);
    settings.data_dir = args.data_dir.or(settings.data_dir);
    settings.metrics = args.metrics.or(settings.metrics);
    settings.raw |= args.raw;
    settings.gpus = args.gpus.unwrap_or(settings.gpus);
    settings.cpu_experts |= args.cpu_experts;
    settings.cache_memory = args.cache_memory.or(settings.cache_memory);
    let gpu_layers = args.gpu_layers.map(|layers| layers.to_string());
    settings.gpu_layers = gpu_layers.or(settings.gpu_layers);
    settings.look_back_seconds = args.look_back.unwrap_or(settings.look_back_seconds);
    settings.check()?;
    let device = device(args.device, settings.device.as_deref())?;
    // One copy in memory, which everybody shares.
    let keys = Arc::new(KeySource::named(settings.key_file.clone()).read()?);
    let folder = settings
        .data_dir
        .clone()
        .unwrap_or_else(|| "candle-dvm-data".into());
    let journal = open_journal(&folder)?;

    let registry = BackendRegistry::detect();
    let entry = registry.select(device)?;
    let mut offers = Offers::default();
    if settings.model.is_some() || settings.speech_model.is_none() {
        let (model, backend, template) = text_model(&mut settings, entry, args.kv_dtype)?;
        let generator = generator(backend, &settings)?;
        offers = offers.text(model, generator, template);
    } else if let Some((name, value)) = for_texts(&settings) {
        return Err(Error::Setting {
            name,
            value,
            expected: "a language model beside it: pass --model".to_string(),
        });
    }
    if let Some(model) = settings.speech_model.clone() {
        offers = add_speech(offers, &settings, entry, ModelSource::at(model))?;
    }
    let public = keys.public_key().to_bech32().map_err(Error::service)?;
    note(&format!("serving as {public}; {}", terms(&settings)));

    let runtime = candle_cli::runtime()?;
    let end = runtime.block_on(async move {
        let payment = payment(&settings, &folder, &keys)?;
        let metrics = Arc::new(Metrics::default());
        if let Some(address) = settings.metrics {
            prometheus::serve(address, metrics.clone())
                .await
                .map_err(|err| Error::service(format!("metrics on {address}: {err}")))?;
        }
        if std::io::stderr().is_terminal() && !args.log_json {
            tokio::spawn(status_line(metrics.clone(), settings.relays.len()));
        }
        let journal = Arc::new(journal);
        let service = Service::new(settings, offers, keys, journal, payment, metrics)?;
        service.run(candle_cli::asked_to_stop()?).await
    });
    // A thread that waits for a device that hangs ends with the process.
    runtime.shutdown_background();
    end
}

/// The payment methods for jobs: invoices of a wallet, tokens of mints, or both.
fn payment(settings: &Settings, folder: &Path, keys: &Arc<Keys>) -> Result<Arc<dyn Payment>> {
    let price = settings.price_msat;
    if price == 0 {
        return Ok(Arc::new(Free));
    }
    let wallet = settings.wallet_file.as_ref();
    let wallet = wallet
        .map(|file| Wallet::connect(file, price))
        .transpose()?;
    match wallet {
        Some(wallet) if settings.cashu_mints.is_empty() => Ok(Arc::new(wallet)),
        wallet => {
            let wallet = wallet.map(|wallet| Box::new(wallet) as Box<dyn Payment>);
            with_cash(settings, folder, keys, wallet)
        }
    }
}

#[cfg(feature = "cashu")]
fn with_cash(
    settings: &Settings,
    folder: &Path,
    keys: &Arc<Keys>,
    wallet: Option<Box<dyn Payment>>,
) -> Result<Arc<dyn Payment>> {
    use crate::payment::{cashu::Till, WithCash};
    let (mints, price_msat) = (&settings.cashu_mints, settings.price_msat);
    let folder = folder.join(super::cashu::FOLDER);
    let cash = Till::open(&folder, mints, price_msat, keys.clone())?;
    Ok(Arc::new(WithCash {
        wallet,
        cash,
        price_msat,
    }))
}

#[cfg(not(feature = "cashu"))]
fn with_cash(
    settings: &Settings,
    _: &Path,
    _: &Arc<Keys>,
    _: Option<Box<dyn Payment>>,
) -> Result<Arc<dyn Payment>> {
    Err(Error::Setting {
        name: "cashu-mints",
        value: settings.cashu_mints.join(" "),
        expected: "none: this program was built without the feature `cashu`".to_string(),
    })
}

/// The split of the layers. `auto` reserves memory for all jobs at once.
fn split(settings: &Settings) -> Result<Split> {
    let gpu_layers = settings.gpu_layers.as_deref().unwrap_or("all");
    Ok(Split {
        gpu_layers: gpu_layers.parse().map_err(|expected| Error::Setting {
            name: "gpu-layers",
            value: gpu_layers.to_string(),
            expected,
        })?,
        cpu_experts: settings.cpu_experts,
        texts: settings.running,
        ..Split::default()
    })
}

/// Loads the language model; limits the settings' tokens to its positions.
fn text_model(
    settings: &mut Settings,
    entry: &BackendEntry,
    kv_type: KvType,
) -> Result<(String, CandleBackend, Option<ChatTemplate>)> {
    let source = settings.model.clone();
    let source = source.map_or(ModelSource::Embedded, ModelSource::at);
    let loras = settings.lora.iter().map(|text| {
        text.parse().map_err(|expected| Error::Setting {
            name: "lora",
            value: text.clone(),
            expected,
        })
    });
    let mut files = ModelFiles::open_with(&source, &loras.collect::<Result<Vec<_>>>()?)?;
    files.kv_type = kv_type;
    files.split = split(settings)?;
    let model = settings.model_name.clone();
    let model = model.unwrap_or_else(|| source.short_name());
    // A job cannot have more tokens than the model has positions.
    settings.max_tokens = settings.max_tokens.min(files.max_positions());
    settings.default_tokens = settings.default_tokens.min(settings.max_tokens);
    let template = usable_template(&files);
    let mut called = files.with_loras(&model);
    let mut bytes = files.total_bytes();
    let draft = match settings.draft.clone() {
        None => None,
        Some(path) => {
            CandleBackend::check_draft_tokens(settings.draft_tokens)?;
            let mut draft = ModelFiles::open(&ModelSource::at(path))?;
            draft.kv_type = kv_type;
            files.check_draft(&draft)?;
            bytes += draft.total_bytes();
            called = format!("{called} with draft model {}", draft.name);
            Some(draft)
        }
    };
    let bar = LoadBar::new(bytes);
    let progress = |bytes| bar.advance(bytes);
    let mut backend = entry.load_shared(files, settings.gpus, None, &progress)?;
    if let Some(draft) = draft {
        let draft = entry.load(draft, None, &progress)?;
        backend = backend.with_draft(draft, settings.draft_tokens)?;
    }
    let prompts = if template.is_some() && !settings.raw {
        "its chat template"
    } else {
        "raw prompts"
    };
    bar.finish(&format!(
        "{called} on {}, {prompts}, up to {} running jobs and {} tokens per job",
        backend.devices(),
        settings.running,
        settings.max_tokens
    ));
    Ok((model, backend, template))
}

#[cfg(feature = "audio")]
fn add_speech(
    offers: Offers,
    settings: &Settings,
    entry: &BackendEntry,
    source: ModelSource,
) -> Result<Offers> {
    let model = source.short_name();
    let files = SpeechFiles::at(source)?;
    let device = entry.open()?;
    let loaded = files.load(device, None, Default::default())?;
    note(&format!(
        "{model} on {}, speech to text, recordings of up to {} s",
        describe(device),
        settings.recording_seconds
    ));
    let ear = Ear::new(loaded, settings.recording_seconds);
    Ok(offers.speech(model, Arc::new(ear)))
}

#[cfg(not(feature = "audio"))]
fn add_speech(_: Offers, _: &Settings, _: &BackendEntry, source: ModelSource) -> Result<Offers> {
    Err(Error::Setting {
        name: "speech-model",
        value: source.short_name(),
        expected: "none: this program was built without the feature `audio`".to_string(),
    })
}

/// The model's chat template, if it has one that takes a conversation.
fn usable_template(files: &ModelFiles) -> Option<ChatTemplate> {
    let template = files.chat_template.clone()?;
    match template.render(&[Message::new(Role::User, "Hello")]) {
        Ok(_) => Some(template.saying_text_to(&files.tokenizer)),
        Err(err) => {
            let err = err.one_line();
            note(&format!(
                "warning: prompts are continued as they are: {err}"
            ));
            None
        }
    }
}

/// The first setting that only a language model has, with its value.
fn for_texts(settings: &Settings) -> Option<(&'static str, String)> {
    let Settings {
        lora,
        draft,
        cache_memory,
        ..
    } = settings;
    let lora = (!lora.is_empty()).then(|| ("lora", lora.join(" ")));
    let draft = draft.as_ref();
    let draft = draft.map(|draft| ("draft", draft.display().to_string()));
    let memory = cache_memory.map(|bytes| (CACHE_MEMORY, bytes.to_string()));
    lora.or(draft).or(memory)
}

/// The generator for the jobs that run at once: in shared steps. Pages are a matter of shared steps, also of a single job.
fn generator(backend: CandleBackend, settings: &Settings) -> Result<Arc<dyn Generator>> {
    let backend = Arc::new(backend);
    if settings.running == 1 && settings.cache_memory.is_none() {
        return Ok(backend);
    }
    let batch = BatchSettings {
        slots: settings.running,
        // The service has the queue.
        waiting: 0,
        compile_ahead: true,
        cache_memory: settings.cache_memory,
        ..BatchSettings::default()
    };
    Ok(Arc::new(BatchEngine::new(backend, batch)?))
}

fn device(flag: Option<DeviceChoice>, setting: Option<&str>) -> Result<DeviceChoice> {
    match (flag, setting) {
        (Some(choice), _) => Ok(choice),
        (None, None) => Ok(DeviceChoice::default()),
        (None, Some(name)) => DeviceChoice::parse(name).ok_or_else(|| Error::Setting {
            name: "device",
            value: name.to_string(),
            expected: "auto, cpu, cuda, cuda:1 for the second GPU, metal or webgpu".to_string(),
        }),
    }
}

/// The price and the relays, in one line.
fn terms(settings: &Settings) -> String {
    let price = match settings.price_msat {
        0 => "free".to_string(),
        msat => format!("{msat} msat per job"),
    };
    format!(
        "name {:?}, {price}, up to {} queued jobs; relays: {}",
        settings.name,
        settings.queue,
        settings.relays.join(" ")
    )
}

/// Requests may be private.
const FOLDER_MODE: u32 = 0o700;

fn open_journal(folder: &Path) -> Result<RedbJournal> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(FOLDER_MODE);
    }
    builder
        .create(folder)
        .map_err(|err| Error::file(folder, err))?;
    #[cfg(unix)]
    keep_private(folder);
    Ok(RedbJournal::open(&folder.join(JOURNAL))?)
}

/// Takes a folder that was there before away from others, unless there is more in it than a journal: then it is not ours alone.
#[cfg(unix)]
fn keep_private(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(folder).map_or(0, |data| data.permissions().mode() & 0o777);
    if mode & 0o077 == 0 {
        return;
    }
    let ours = std::fs::read_dir(folder).is_ok_and(|mut files| {
        files.all(|file| {
            file.is_ok_and(|file| {
                [JOURNAL, "cashu"].contains(&&*file.file_name().to_string_lossy())
            })
        })
    });
    let place = folder.display();
    let set =
        ours.then(|| std::fs::set_permissions(folder, PermissionsExt::from_mode(FOLDER_MODE)));
    match set {
        Some(Ok(())) => tracing::warn!("{place} had mode {mode:03o}; changed it to 700"),
        _ => tracing::warn!(
            "{place} has mode {mode:03o}, so other users can read it; run `chmod 700` on it"
        ),
    }
}

/// Keeps one line at the bottom of a terminal up to date.
async fn status_line(metrics: Arc<Metrics>, relays: usize) {
    let mut shown = String::new();
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let line = metrics.line(relays);
        if line != shown {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K{line}\r");
            let _ = stderr.flush();
            shown = line;
        }
    }
}
