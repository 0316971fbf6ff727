//! `wasi-gpu devices`.

use std::process::ExitCode;

use super::print;
use crate::{device, Result};

pub(super) fn run() -> Result<ExitCode> {
    print(&device::report())?;
    Ok(ExitCode::SUCCESS)
}
