//! The commands of the program `candle-dvm`.
//!
//! Results go to standard output, everything else to standard error. A failure is one line there, `error: …`, and exit
//! code 1.

mod bench;
mod devices;
mod generate;

use crate::error::one_line;
use crate::progress::note;
use crate::{Error, Result};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Runs language models on whichever device is present.
#[derive(Debug, Parser)]
#[command(name = "candle-dvm", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Complete a prompt; the text streams to standard output
    Generate(generate::Args),
    /// List every backend, present or the reason why not
    Devices(devices::Args),
    /// Measure prompt and generation speed on random weights
    Bench(bench::Args),
}

/// Runs the program with these arguments, the program's own name first, and returns its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(err) => return usage(&err),
    };
    let done = match cli.command {
        Command::Generate(args) => generate::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Bench(args) => bench::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) if err.is_closed_stdout() => ExitCode::SUCCESS,
        Err(err) => {
            note(&format!("error: {}", err.one_line()));
            ExitCode::FAILURE
        }
    }
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
            // The usage and the hint that follow after an empty line are what `--help` says better.
            let text = err.to_string();
            note(&one_line(text.split("\n\n").next().unwrap_or(&text)));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output at once.
fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
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
