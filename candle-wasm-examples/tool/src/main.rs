//! `cargo xtask web` and `cargo xtask serve`: builds the pages into a folder, serves them on this machine, and writes them for a static host.

mod build;
mod compress;
mod export;
mod pages;
mod serve;
mod target;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "web-tool", about = "The pages of candle-wasm-examples")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build all pages into `target/web/site`
    Build {
        /// Some of the builds alone, of `simd`, `threads` and `plain`: faster while a page is being written
        #[arg(long, value_delimiter = ',', value_parser = ["simd", "threads", "plain"])]
        only: Vec<String>,
        /// Optimise little and compress nothing: larger and slower modules, in a third of the time
        #[arg(long)]
        quick: bool,
        /// Keep the names of functions in the modules, for a browser's profiler; their sizes are not checked
        #[arg(long)]
        names: bool,
        /// Write gzip copies alone: brotli's take minutes
        #[arg(long)]
        no_brotli: bool,
    },
    /// Write what was built into a folder for a host that only serves files
    Export {
        /// A new folder, or one that was written by this
        to: PathBuf,
    },
    /// Serve what was built on 127.0.0.1
    Serve {
        /// The port; 0 takes any that is free
        #[arg(long, default_value_t = 8080)]
        port: u16,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Task::Build {
            only,
            quick,
            names,
            no_brotli,
        } => {
            let formats: &[_] = if no_brotli {
                &[compress::GZIP]
            } else {
                &compress::FORMATS
            };
            build::build(&only, quick, names, formats)
        }
        Task::Export { to } => export::export(&site(), &to),
        Task::Serve { port } => serve::serve(&site(), port),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("{err}");
            ExitCode::FAILURE
        }
    }
}

/// The folder `candle-wasm-examples`.
fn examples() -> PathBuf {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR"));
    tool.parent().unwrap_or(tool).to_path_buf()
}

/// The target folder of all builds for browsers: separate from the native builds, whose flags differ.
fn target_dir() -> PathBuf {
    examples().join("../target/web")
}

/// The pages as a server gives them out.
fn site() -> PathBuf {
    target_dir().join("site")
}

/// An error that names the file.
fn at(path: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |err| format!("{}: {err}", path.display())
}
