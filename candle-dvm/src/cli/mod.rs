//! The commands of the program `candle-dvm`.
//!
//! Results go to standard output, everything else to standard error. A failure is one line there, `error: …`, and exit
//! code 1.

#[cfg(feature = "api")]
mod api;
mod bench;
#[cfg(feature = "cashu")]
mod cashu;
mod chat;
#[cfg(feature = "serve")]
mod customer;
mod devices;
#[cfg(feature = "serve")]
mod discover;
mod embed;
mod generate;
#[cfg(feature = "serve")]
mod key;
mod models;
#[cfg(feature = "serve")]
mod request;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
#[cfg(any(feature = "api", feature = "serve"))]
mod signals;
#[cfg(feature = "audio")]
mod transcribe;

use crate::{Error, Result};
use candle_engine::error::one_line;
use candle_engine::progress::note;
use candle_engine::terminal::shown;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Run language models on the available GPU or CPU.
#[derive(Debug, Parser)]
#[command(name = "candle-dvm", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Complete a prompt and stream the text to standard output
    Generate(generate::Args),
    /// Chat with a model
    Chat(chat::Args),
    /// List, download and remove models of the Hugging Face Hub
    Models(models::Args),
    /// Transcribe a recording with a Whisper model
    #[cfg(feature = "audio")]
    Transcribe(transcribe::Args),
    /// Embed texts as vectors, or compare them
    Embed(embed::Args),
    /// Serve a model over an OpenAI-compatible HTTP API
    #[cfg(feature = "api")]
    Api(api::Args),
    /// List backends, with the reason for each that is unavailable
    Devices(devices::Args),
    /// Benchmark prompt processing and generation with random weights
    Bench(bench::Args),
    /// Answer jobs on Nostr relays: text generation and speech to text (NIP-90, kinds 5050 and 5000)
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    /// Submit a job to Nostr relays and stream the result to standard output
    #[cfg(feature = "serve")]
    Request(request::Args),
    /// List providers of text generation and speech to text on Nostr relays
    #[cfg(feature = "serve")]
    Discover(discover::Args),
    /// Show and take out what `serve` earned in Cashu tokens
    #[cfg(feature = "cashu")]
    Cashu(cashu::Args),
    /// Generate a key, or print its public key
    #[cfg(feature = "serve")]
    Key(key::Args),
}

/// Runs the program with these arguments, the program's own name first, and returns its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(err) => return usage(&err),
    };
    log(&cli.command);
    let done = match cli.command {
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Models(args) => models::run(args),
        #[cfg(feature = "audio")]
        Command::Transcribe(args) => transcribe::run(args),
        Command::Embed(args) => embed::run(args),
        #[cfg(feature = "api")]
        Command::Api(args) => api::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Bench(args) => bench::run(args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args),
        #[cfg(feature = "serve")]
        Command::Request(args) => request::run(args),
        #[cfg(feature = "serve")]
        Command::Discover(args) => discover::run(args),
        #[cfg(feature = "cashu")]
        Command::Cashu(args) => cashu::run(args),
        #[cfg(feature = "serve")]
        Command::Key(args) => key::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) if err.is_closed_stdout() => ExitCode::SUCCESS,
        Err(err) => {
            note(&format!("error: {}", err.for_command_line()));
            ExitCode::FAILURE
        }
    }
}

/// Starts to log to standard error: what RUST_LOG asks for, or else warnings, and of a daemon what it does.
fn log(command: &Command) {
    let (standard, json) = match command {
        #[cfg(feature = "serve")]
        Command::Serve(args) => ("warn,candle_dvm=info,candle_engine=info", args.log_json),
        _ => ("warn", false),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(standard));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A program that calls `run` may have a log already.
    let _ = match json {
        true => log.json().try_init(),
        false => log.try_init(),
    };
}

/// A panic is logged with its place alone: what it says may quote somebody's text.
#[cfg(any(feature = "api", feature = "serve"))]
fn log_places_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let backtrace = std::backtrace::Backtrace::capture();
        let place = place.unwrap_or_default();
        match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => {
                tracing::error!("panicked at {place}\n{backtrace}");
            }
            _ => tracing::error!("panicked at {place}; set RUST_BACKTRACE=1 for a backtrace"),
        }
    }));
}

/// What waits for sockets, on as many threads as there are processors.
#[cfg(any(feature = "api", feature = "serve"))]
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::service)
}

/// Help and version as clap prints them; a mistake as one line like every other error.
fn usage(err: &clap::Error) -> ExitCode {
    match err.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = err.print();
            if err.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            }
        }
        _ => {
            // The usage that follows after an empty line is what `--help` says better; a suggestion may precede it.
            let text = err.to_string();
            let parts = text.split("\n\n");
            let of_use = |part: &&str| {
                !["Usage:", "For more information"]
                    .iter()
                    .any(|start| part.starts_with(start))
            };
            let parts: Vec<String> = parts.take_while(of_use).map(one_line).collect();
            note(&parts.join("; "));
            ExitCode::FAILURE
        }
    }
}

/// The most ranks that a model is shared by.
const MAX_GPUS: usize = 64;

fn check_gpus(gpus: usize) -> Result<()> {
    match (1..=MAX_GPUS).contains(&gpus) {
        true => Ok(()),
        false => Err(Error::parameter("gpus", gpus, "1 to 64")),
    }
}

/// Writes to standard output at once, as [`shown`] allows it there: the text may be a model's or a stranger's.
fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let text = shown(text, stdout.is_terminal());
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Error::Stdout)
}

/// Prints `value` as indented JSON with a line break behind it.
fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|err| Error::Stdout(std::io::Error::other(err)))?;
    print(&format!("{text}\n"))
}
