//! The commands of the program `wasi-gpu`.
//!
//! Results go to standard output, everything else to standard error. A failure is one line there, `error: …`, and exit code 1; a
//! guest that ends by itself gives its exit code.

mod componentize;
mod devices;
mod inspect;
mod run;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::error::bounded;
use crate::{Error, Result};

/// Runs WebAssembly components that compute on this machine's GPU by wasi:gpu
#[derive(Debug, Parser)]
#[command(name = "wasi-gpu", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a guest: a command, or a function of a library
    Run(Box<run::Args>),
    /// List every backend, present or the reason why not
    Devices,
    /// Show what a guest imports and exports, and what of it this host lacks
    Inspect(inspect::Args),
    /// Make a component from a core module
    Componentize(componentize::Args),
}

/// Runs the program with these arguments, the program's name first, and returns its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(err) => return usage(&err),
    };
    let done = match cli.command {
        Command::Run(args) => run::run(*args),
        Command::Devices => devices::run(),
        Command::Inspect(args) => inspect::run(args),
        Command::Componentize(args) => componentize::run(args),
    };
    match done {
        Ok(code) => code,
        // Whoever reads the output has enough, as `head` does.
        Err(Error::Stdout(err)) if err.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(err) => {
            note(&format!("error: {err}"));
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
            note(&bounded(text.split("\n\n").next().unwrap_or(&text)));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error. A failure is ignored: it has no reader.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes to standard output at once.
fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Error::Stdout)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    read_at_most(path, usize::MAX)
}

/// A file, which is not read if it is larger.
fn read_at_most(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let failed = |source| Error::File {
        path: path.to_path_buf(),
        source,
    };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > limit as u64 {
        return Err(Error::TooLarge { size, limit });
    }
    std::fs::read(path).map_err(failed)
}
