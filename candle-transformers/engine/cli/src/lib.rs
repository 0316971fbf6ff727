//! Commands that run models, as part of a program such as `candle-dvm`.
//!
//! Results go to standard output, everything else to standard error. A failure is one line there, `error: …`.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `api` | the command `api`: OpenAI's HTTP interface |
//! | `audio` | the command `transcribe` |
//! | `service` | [`runtime`], [`asked_to_stop`], [`log_places_of_panics`], for programs that serve |
//! | `webgpu`, `cuda`, `metal` | devices |

#![deny(missing_docs)]

#[cfg(feature = "api")]
mod api;
mod bench;
mod chat;
mod devices;
mod draft;
mod embed;
mod error;
mod generate;
mod models;
mod output;
mod rerank;
mod sampling;
#[cfg(feature = "service")]
mod service;
#[cfg(feature = "service")]
mod signals;
mod split;
#[cfg(feature = "audio")]
mod transcribe;
mod usage;

use clap::Subcommand;
use tracing_subscriber::EnvFilter;

pub use error::{of_engine, Error, Result};
pub use output::{print, print_json};
#[cfg(feature = "service")]
pub use service::{log_places_of_panics, runtime};
#[cfg(feature = "service")]
pub use signals::asked_to_stop;
pub use usage::usage;

/// The commands.
#[derive(Debug, Subcommand)]
// Their flags are for the command line, not for callers.
#[allow(private_interfaces)]
pub enum Command {
    /// Complete a prompt and stream the text to standard output
    Generate(generate::Args),
    /// Chat with a model
    Chat(chat::Args),
    /// List, download and remove models of the Hugging Face Hub
    Models(models::Args),
    /// Transcribe a recording with a Whisper, Moonshine or Parakeet model
    #[cfg(feature = "audio")]
    Transcribe(transcribe::Args),
    /// Embed texts as vectors, or compare them
    Embed(embed::Args),
    /// Rank documents by how well they answer a query
    Rerank(rerank::Args),
    /// Serve models over an OpenAI-compatible HTTP API
    #[cfg(feature = "api")]
    Api(api::Args),
    /// List backends, with the reason for each that is unavailable
    Devices(devices::Args),
    /// Benchmark prompt processing and generation with random weights
    Bench(bench::Args),
}

impl Command {
    /// Runs the command until it ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn run(self) -> Result<()> {
        match self {
            Self::Generate(args) => generate::run(args),
            Self::Chat(args) => chat::run(args),
            Self::Models(args) => models::run(args),
            #[cfg(feature = "audio")]
            Self::Transcribe(args) => transcribe::run(args),
            Self::Embed(args) => embed::run(args),
            Self::Rerank(args) => rerank::run(args),
            #[cfg(feature = "api")]
            Self::Api(args) => api::run(args),
            Self::Devices(args) => devices::run(args),
            Self::Bench(args) => bench::run(args),
        }
    }
}

/// Starts to log to standard error, as lines or as JSON: what RUST_LOG asks for, or else `standard`.
pub fn log(standard: &str, json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(standard));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A program that calls this may have a log already.
    let _ = if json {
        log.json().try_init()
    } else {
        log.try_init()
    };
}

fn check_gpus(gpus: usize) -> Result<()> {
    if (1..=candle_engine::MAX_DEVICES).contains(&gpus) {
        Ok(())
    } else {
        Err(Error::parameter("gpus", gpus, "1 to 64"))
    }
}
