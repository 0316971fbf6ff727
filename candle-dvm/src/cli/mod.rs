//! The commands of the program `candle-dvm`.
//!
//! Results go to standard output, everything else to standard error. A failure is one line there, `error: …`, and exit
//! code 1.

#[cfg(feature = "cashu")]
mod cashu;
#[cfg(feature = "serve")]
mod customer;
#[cfg(feature = "serve")]
mod discover;
#[cfg(feature = "serve")]
mod key;
#[cfg(feature = "serve")]
mod request;
#[cfg(feature = "serve")]
mod serve;

use crate::Error;
#[cfg(feature = "serve")]
use crate::Result;
use candle_engine::progress::note;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Run language models on the available GPU or CPU.
#[derive(Debug, Parser)]
#[command(name = "candle-dvm", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Model(Box<candle_cli::Command>),
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
        Err(err) => return candle_cli::usage(&err),
    };
    log(&cli.command);
    let done = match cli.command {
        Command::Model(command) => command.run().map_err(Error::from),
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
    candle_cli::log(standard, json);
}

#[cfg(feature = "serve")]
fn print(text: &str) -> Result<()> {
    Ok(candle_cli::print(text)?)
}

#[cfg(feature = "serve")]
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    Ok(candle_cli::print_json(value)?)
}
