//! `wasi-gpu componentize`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::read;
use crate::{componentize, is_core_module, Error, Result};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A core module that imports wasi:gpu, WASI 0.1 or both, or one by wit-bindgen
    core: PathBuf,
    /// Path of the component to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

pub(super) fn run(args: Args) -> Result<ExitCode> {
    let wasm = read(&args.core)?;
    if !is_core_module(&wasm) {
        return Err(Error::Componentize(format!(
            "{} is not a core module",
            args.core.display()
        )));
    }
    let component = componentize(&wasm)?;
    std::fs::write(&args.output, component).map_err(|source| Error::File {
        path: args.output,
        source,
    })?;
    Ok(ExitCode::SUCCESS)
}
