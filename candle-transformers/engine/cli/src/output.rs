//! Standard output.

use crate::{Error, Result};
use candle_engine::terminal::shown;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Writes to standard output at once, as [`shown`] allows it there: the text may be a model's or a stranger's.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let text = shown(text, stdout.is_terminal());
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(Error::Stdout)
}

/// As [`print()`], dimmed if a terminal reads it.
///
/// # Errors
/// Those of [`print()`].
pub fn print_dim(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let to_terminal = stdout.is_terminal();
    let text = shown(text, to_terminal);
    let written = if to_terminal {
        write!(stdout, "\u{1b}[2m{text}\u{1b}[0m")
    } else {
        stdout.write_all(text.as_bytes())
    };
    written.and_then(|()| stdout.flush()).map_err(Error::Stdout)
}

/// Prints `value` as indented JSON, followed by a line break.
///
/// # Errors
/// Those of [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|err| Error::Stdout(std::io::Error::other(err)))?;
    print(&format!("{text}\n"))
}
