//! Notes for the person at the terminal, on standard error.

use crate::terminal::shown;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};

/// Writes one line to standard error, as [`shown`] allows it there. A closed standard error is not worth failing for.
pub fn note(line: &str) {
    let mut stderr = std::io::stderr();
    let line = shown(line, stderr.is_terminal());
    let _ = writeln!(stderr, "{line}");
}

/// Progress bar for loading weights. It draws nothing if standard error is not a terminal.
pub struct LoadBar {
    bar: ProgressBar,
}

impl LoadBar {
    /// An empty bar for `total` bytes.
    pub fn new(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let template = "loading [{bar:40}] {bytes}/{total_bytes} {binary_bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }

    /// Says that `bytes` more have arrived.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Replaces the bar by `summary`.
    pub fn finish(self, summary: &str) {
        self.bar.finish_and_clear();
        note(summary);
    }
}

/// Progress bar for a download. It draws nothing if standard error is not a terminal.
#[derive(Clone)]
pub struct FetchBar {
    bar: ProgressBar,
}

impl FetchBar {
    /// A bar for a file of unknown name and size.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = "{msg} [{bar:40}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for FetchBar {
    fn default() -> Self {
        Self::new()
    }
}

impl FetchBar {
    /// Says how many bytes the file has, and its name.
    pub fn begin(&self, size: u64, filename: &str) {
        self.bar.set_length(size);
        self.bar.set_position(0);
        // The bar is on a terminal, and the name is the Hub's.
        self.bar.set_message(shown(filename, true).into_owned());
    }

    /// Says that `bytes` more have arrived.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

/// Progress bar for a transcription. It draws nothing if standard error is not a terminal.
#[cfg(feature = "audio")]
pub struct SpeechBar {
    bar: ProgressBar,
}

#[cfg(feature = "audio")]
impl SpeechBar {
    /// An empty bar for a recording of this length.
    pub fn new(seconds: f64) -> Self {
        let length = (seconds * 100.).round() as u64;
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("transcribing [{bar:40}] {percent} % {eta}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }

    /// Says that everything up to `seconds` has been heard.
    pub fn reach(&self, seconds: f64) {
        self.bar.set_position((seconds * 100.).round() as u64);
    }

    /// Runs `write` while the bar is hidden.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Takes the bar away.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
