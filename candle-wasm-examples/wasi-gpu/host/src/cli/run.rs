//! `wasi-gpu run`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytesize::ByteSize;
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder};

use super::{note, print, read_at_most};
use crate::error::line;
use crate::{device, DeviceChoice, Devices, Error, Guest, Limits, Result, Runner};

/// A guest gets no file, no variable and no network, but what is given here.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Device: auto, cuda[:N], metal[:N], webgpu[:N] or cpu
    #[arg(
        short = 'b',
        long,
        alias = "backend",
        default_value_t,
        value_name = "DEVICE"
    )]
    device: DeviceChoice,
    /// A directory for the guest to read and write, under the name GUEST or the same
    #[arg(long, value_name = "HOST[::GUEST]")]
    dir: Vec<String>,
    /// The same as --dir DIR::.
    #[arg(short = 'd', long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// An environment variable for the guest
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Memory for all of the guest's buffers together
    #[arg(long, default_value = "1GiB", value_name = "BYTES")]
    gpu_memory: ByteSize,
    /// Memory for the guest itself
    #[arg(long, default_value = "1GiB", value_name = "BYTES")]
    memory: ByteSize,
    /// Maximum size of the guest's file: a large one takes long to compile
    #[arg(long, default_value = "64MiB", value_name = "BYTES")]
    guest_size: ByteSize,
    /// Maximum number of buffers of the guest at a time
    #[arg(long, default_value_t = 4096, value_name = "COUNT")]
    buffers: usize,
    /// Maximum run time of the guest, such as 90s or 2h; none is without end
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = timeout)]
    timeout: Timeout,
    /// Maximum computation of the guest, about 1 for an instruction
    #[arg(long, value_name = "N")]
    fuel: Option<u64>,
    /// A language model for the guest, by NAME or the file's own: a Hugging Face folder or a GGUF file
    #[cfg(feature = "llm")]
    #[arg(long, value_name = "[NAME=]PATH")]
    model: Vec<String>,
    /// A model that makes vectors of texts, by NAME or the folder's own: a BERT as a Hugging Face folder
    #[cfg(feature = "llm")]
    #[arg(long, value_name = "[NAME=]FOLDER")]
    embedding_model: Vec<String>,
    /// Say afterwards what the guest asked of wasi:gpu and how long it took
    #[arg(long)]
    stats: bool,
    /// Call this export of a library; ARGS are its arguments as WAVE writes them, such as 1.5, "text", [1, 2], {x: 1}
    #[arg(long, value_name = "NAME")]
    invoke: Option<String>,
    /// A component or a core module
    guest: PathBuf,
    /// The guest's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Timeout(Option<Duration>);

fn timeout(text: &str) -> std::result::Result<Timeout, humantime::DurationError> {
    match text {
        "none" => Ok(Timeout(None)),
        text => humantime::parse_duration(text).map(|time| Timeout(Some(time))),
    }
}

fn variable(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err("give NAME=VALUE".to_string()),
    }
}

pub(super) fn run(args: Args) -> Result<ExitCode> {
    let program = usize::try_from(args.guest_size.as_u64()).unwrap_or(usize::MAX);
    let wasm = read_at_most(&args.guest, program)?;
    let memory = usize::try_from(args.memory.as_u64()).unwrap_or(usize::MAX);
    let runner = Runner::new(Limits {
        program,
        memory,
        transfer: memory,
        gpu_memory: args.gpu_memory.as_u64(),
        buffers: args.buffers,
        timeout: args.timeout.0,
        fuel: args.fuel,
        ..Limits::default()
    })?;
    let program = runner.load(&wasm)?;
    drop(wasm);
    if args.invoke.is_none() && !program.is_command() {
        return Err(Error::NotACommand {
            exports: program.exports(),
        });
    }
    let wasi = wasi(&args)?;
    let devices = Devices::choose(args.device)?;
    for (name, reason) in devices.passed_over() {
        note(&format!("device {name} is passed over: {reason}"));
    }
    let device = devices.open()?;
    note(&format!("device: {}", device::name(&device)));
    #[cfg(feature = "llm")]
    let runner = runner.with_models(models(&args, &devices)?);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|err| Error::Runtime(line(&err)))?;
    let done = runtime.block_on(async {
        let mut guest = runner.start(&program, &device, wasi).await?;
        let done = act(&mut guest, &args).await;
        if args.stats {
            note(guest.stats().text().trim_end());
        }
        done
    });
    // Does not wait for the guest's remaining work, such as a kernel past its time.
    runtime.shutdown_background();
    done
}

async fn act(guest: &mut Guest, args: &Args) -> Result<ExitCode> {
    let Some(name) = &args.invoke else {
        // An exit code has 8 bits; what is cut off must not look like success.
        let code = guest.run().await?;
        let short = u8::try_from(code & 0xff).unwrap_or(1);
        return Ok(ExitCode::from(if code == 0 { 0 } else { short.max(1) }));
    };
    let results = guest.invoke(name, &args.args).await?;
    for result in &results {
        print(&format!("{result}\n"))?;
    }
    let failed = results
        .iter()
        .any(|result| result == "err" || result.starts_with("err("));
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The models, on a device that no guest has.
#[cfg(feature = "llm")]
fn models(args: &Args, devices: &Devices) -> Result<crate::Models> {
    let mut models = crate::Models::new();
    if args.model.is_empty() && args.embedding_model.is_empty() {
        return Ok(models);
    }
    let device = devices.open()?;
    for given in &args.model {
        let (name, path) = named(given);
        models.load(&name, path, &device)?;
    }
    for given in &args.embedding_model {
        let (name, folder) = named(given);
        models.load_embeddings(&name, folder, &device)?;
    }
    Ok(models)
}

/// The name and the path of `NAME=PATH`; of a path that is there, or has no name before it, the file's name without its ending.
#[cfg(feature = "llm")]
fn named(given: &str) -> (String, &Path) {
    if let (false, Some((name, path))) = (Path::new(given).exists(), given.split_once('=')) {
        return (name.to_string(), Path::new(path));
    }
    let path = Path::new(given);
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    (
        name.unwrap_or_default().to_string_lossy().into_owned(),
        path,
    )
}

fn wasi(args: &Args) -> Result<WasiCtx> {
    let mut wasi = WasiCtxBuilder::new();
    wasi.inherit_stdio();
    wasi.allow_tcp(false).allow_udp(false);
    wasi.allow_ip_name_lookup(false);
    if args.invoke.is_none() {
        let name = args.guest.file_name().unwrap_or_default();
        wasi.arg(name.to_string_lossy()).args(&args.args);
    }
    for (name, value) in &args.env {
        wasi.env(name, value);
    }
    let mut open = |host: &Path, guest: &str| {
        wasi.preopened_dir(host, guest, FsPerms::ReadWrite)
            .map(|_| ())
            .map_err(|err| Error::Directory {
                path: host.to_path_buf(),
                reason: line(&err),
            })
    };
    for dir in &args.dir {
        let (host, guest) = dir.split_once("::").unwrap_or((dir, dir));
        open(Path::new(host), guest)?;
    }
    if let Some(dir) = &args.workdir {
        open(dir, ".")?;
    }
    Ok(wasi.build())
}
