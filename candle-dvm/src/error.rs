//! What can go wrong, each as one line.

use candle_engine::error::one_line;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One failure. Its `Display` form is a single line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the engine: a model, its files, its device, or a request.
    #[error(transparent)]
    Engine(#[from] candle_engine::Error),
    /// An error of a command that runs models, or of standard input and output.
    #[cfg(not(target_arch = "wasm32"))]
    #[error(transparent)]
    Command(#[from] candle_cli::Error),
    /// A secret key that is missing, badly kept or none. What was found there is never part of the message.
    #[error("key: {place}: {problem}")]
    Key {
        /// The source of the key.
        place: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A setting of the service that does not fit.
    #[error("setting {name} {value:?}: expected {expected}")]
    Setting {
        /// The setting, as the configuration file spells it.
        name: &'static str,
        /// The value.
        value: String,
        /// The values that are allowed.
        expected: String,
    },
    /// The service cannot continue, or a customer's command has failed.
    #[error("{0}")]
    Service(String),
}

impl Error {
    /// An error about a whole file.
    #[cfg(all(feature = "serve", not(target_arch = "wasm32")))]
    pub(crate) fn file(file: &std::path::Path, problem: impl std::fmt::Display) -> Self {
        candle_engine::Error::file(file, problem).into()
    }

    /// An error of the service, by what it says.
    #[cfg(feature = "serve")]
    pub(crate) fn service(problem: impl std::fmt::Display) -> Self {
        Self::Service(problem.to_string())
    }

    /// Whether the reader of standard output has closed it (`candle-dvm … | head -1`), which is not a failure.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn is_closed_stdout(&self) -> bool {
        matches!(self, Self::Command(err) if err.is_closed_stdout())
    }

    /// The error as one line, whatever line breaks a cause may have brought along.
    pub fn one_line(&self) -> String {
        one_line(&self.to_string())
    }

    /// As [`Error::one_line`], for the user of a command: a field is named by its flag, `max_tokens` by `--max-tokens`.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn for_command_line(&self) -> String {
        match self {
            Self::Engine(error) => candle_cli::of_engine(error),
            Self::Command(error) => error.for_command_line(),
            _ => self.one_line(),
        }
    }
}

impl From<crate::jobs::JournalError> for Error {
    fn from(err: crate::jobs::JournalError) -> Self {
        Self::Service(err.to_string())
    }
}
