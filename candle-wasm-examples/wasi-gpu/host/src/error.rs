//! What can go wrong, and how it is put into one line.

use std::path::PathBuf;
use std::time::Duration;

/// The most bytes of a text that comes from a guest or a driver.
const MAX_TEXT: usize = 1000;

/// The reason why a guest cannot be loaded, or how it ended. Each message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name of a device that does not exist.
    #[error("the device {asked:?} is not known: give auto, cuda, cuda:N, metal, metal:N, webgpu, webgpu:N or cpu")]
    UnknownDevice {
        /// The requested name.
        asked: String,
    },
    /// A device that is not present, or does not work.
    #[error("the requested device {asked} cannot be used: {reason}; `wasi-gpu devices` lists those that can")]
    Device {
        /// The requested device.
        asked: String,
        /// The reason.
        reason: String,
    },
    /// A language model that cannot be loaded.
    #[error("the model {name} cannot be loaded: {reason}")]
    Model {
        /// The name that guests would ask for.
        name: String,
        /// Why.
        reason: String,
    },
    /// A file that cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A directory that cannot be given to a guest.
    #[error("the directory {} cannot be given to the guest: {reason}", .path.display())]
    Directory {
        /// Its path on the host.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file that is larger than it may be.
    #[error("the guest's file has {size} bytes, it may have {limit}: build it for release and without debug information, or allow it more with --guest-size")]
    TooLarge {
        /// Number of bytes.
        size: u64,
        /// Maximum number of bytes.
        limit: usize,
    },
    /// Bytes that are neither a component nor a core module, or one that does not validate.
    #[error("this is not WebAssembly that can be run: {0}")]
    Invalid(String),
    /// A core module that does not become a component.
    #[error("the core module does not become a component: {0}")]
    Componentize(String),
    /// Imports that this host does not have.
    #[error("the guest imports what this host does not have: {}", list(.0))]
    MissingImports(Vec<String>),
    /// An import by the right name, but of another type.
    #[error("the guest's imports are not those of this host: {0}")]
    Link(String),
    /// A component without `wasi:cli/run`.
    #[error(
        "the guest is a library, not a command: call one of its exports with --invoke ({})",
        list(.exports)
    )]
    NotACommand {
        /// The functions that it exports.
        exports: Vec<String>,
    },
    /// No export has this name.
    #[error("the guest exports no function {asked:?}: it exports {}", list(.exports))]
    NoExport {
        /// The requested name.
        asked: String,
        /// The functions that it exports.
        exports: Vec<String>,
    },
    /// Several exports have this name.
    #[error("{asked:?} is exported more than once: name one of {}", list(.exports))]
    Ambiguous {
        /// The requested name.
        asked: String,
        /// The functions with this name.
        exports: Vec<String>,
    },
    /// Arguments of another number or type than the function's.
    #[error("{0}")]
    Arguments(String),
    /// A result that WAVE cannot write, such as a resource.
    #[error("the result of {function} cannot be written as text: {reason}")]
    Unwritable {
        /// The function.
        function: String,
        /// Why.
        reason: String,
    },
    /// The guest did something that WebAssembly forbids, or gave up.
    #[error("the guest trapped: {0}")]
    Trap(String),
    /// The guest took longer than it may.
    #[error("the guest ran longer than {}: give it more with --timeout", duration(.0))]
    Timeout(Duration),
    /// The guest used up its fuel.
    #[error("the guest used up its fuel of {0}: give it more with --fuel")]
    Fuel(u64),
    /// The guest trapped, timed out or ended before.
    #[error("the guest has ended before and takes no more calls: start it again")]
    Ended,
    /// The runtime does not start.
    #[error("the runtime does not start: {0}")]
    Runtime(String),
    /// Standard output takes no more.
    #[error("standard output: {0}")]
    Stdout(std::io::Error),
}

fn duration(time: &Duration) -> humantime::FormattedDuration {
    humantime::format_duration(*time)
}

fn list(names: &[String]) -> String {
    match names {
        [] => "no function".to_string(),
        names => bounded(&names.join(", ")),
    }
}

/// Text from elsewhere, on one line and at most [`MAX_TEXT`] bytes long.
pub(crate) fn bounded(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > MAX_TEXT {
            return shortened(line);
        }
    }
    line
}

/// At most [`MAX_TEXT`] bytes of a text, cut between two characters.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = '…'.len_utf8();
        text.truncate(text.floor_char_boundary(MAX_TEXT - end));
        text.push('…');
    }
    text
}

/// Errors of wasmtime and of candle as one line, causes included.
pub(crate) fn line(err: &impl std::fmt::Display) -> String {
    bounded(&format!("{err:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        for text in ["a".repeat(5000), "ü".repeat(5000), "日".repeat(5000)] {
            let short = shortened(text.clone());
            assert!(short.len() <= MAX_TEXT && short.len() > MAX_TEXT - 4);
            assert!(text.starts_with(short.trim_end_matches('…')));
            assert_eq!(bounded(&text), short);
        }
        assert_eq!(shortened("short".into()), "short");
    }

    #[test]
    fn texts_become_one_line() {
        assert_eq!(bounded("one\n  two\r\n\n three \n"), "one two three");
        assert_eq!(bounded(" \n "), "");
    }

    #[test]
    fn errors_are_one_line() {
        let err = Error::NoExport {
            asked: "a\nb".into(),
            exports: vec!["x".repeat(400); 100],
        };
        let text = err.to_string();
        assert!(!text.contains('\n') && text.len() < 2 * MAX_TEXT, "{text}");
    }
}
