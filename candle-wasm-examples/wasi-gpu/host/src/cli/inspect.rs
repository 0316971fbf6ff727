//! `wasi-gpu inspect`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{print, read};
use crate::{Limits, Result, Runner};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A component or a core module
    guest: PathBuf,
}

pub(super) fn run(args: Args) -> Result<ExitCode> {
    let wasm = read(&args.guest)?;
    let inspection = Runner::new(Limits::default())?.inspect(&wasm)?;
    print(&inspection.to_string())?;
    Ok(ExitCode::SUCCESS)
}
