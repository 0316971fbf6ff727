//! What can go wrong, each as one line.

use candle_engine::error::one_line;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One failure. Its `Display` form is a single line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's: of a model, its files, its device, or what was asked of it.
    #[error(transparent)]
    Engine(#[from] candle_engine::Error),
    /// Of the HTTP interface.
    #[cfg(all(feature = "api", not(target_arch = "wasm32")))]
    #[error(transparent)]
    Api(#[from] candle_openai::Error),
    /// A secret key that is missing, badly kept or none. What was found there is never part of the message.
    #[error("key: {place}: {problem}")]
    Key {
        /// Where it was looked for.
        place: String,
        /// What is wrong, and what to do.
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
    /// The service cannot go on, or a customer's command has failed.
    #[error("{0}")]
    Service(String),
    /// Standard input could not be read as text.
    #[error("standard input: {0}")]
    Stdin(std::io::Error),
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Stdout(std::io::Error),
}

impl Error {
    /// An error about a whole file.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn file(file: &std::path::Path, problem: impl std::fmt::Display) -> Self {
        candle_engine::Error::file(file, problem).into()
    }

    /// A parameter outside its range.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn parameter(
        name: &'static str,
        value: impl std::fmt::Display,
        expected: &'static str,
    ) -> Self {
        let value = value.to_string();
        candle_engine::Error::Parameter {
            name,
            value,
            expected,
        }
        .into()
    }

    /// An error of the service, by what it says.
    #[cfg(any(feature = "api", feature = "serve"))]
    pub(crate) fn service(problem: impl std::fmt::Display) -> Self {
        Self::Service(problem.to_string())
    }

    /// Whether the reader of standard output has gone away (`candle-dvm … | head -1`), which is no failure.
    pub fn is_closed_stdout(&self) -> bool {
        matches!(self, Self::Stdout(err) if err.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The error as one line, whatever line breaks a cause may have brought along.
    pub fn one_line(&self) -> String {
        one_line(&self.to_string())
    }

    /// As [`Error::one_line`], for whoever typed the command: a field goes by its flag, `max_tokens` by `--max-tokens`.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn for_command_line(&self) -> String {
        use candle_engine::Error as Engine;
        let text = self.one_line();
        match self {
            Self::Engine(Engine::Parameter { name, .. }) => {
                let value = text.strip_prefix(name).unwrap_or_default();
                format!("--{}{value}", name.replace('_', "-"))
            }
            Self::Engine(
                Engine::EmptyPrompt | Engine::PromptTooLong { .. } | Engine::PromptTooLarge { .. },
            ) => {
                format!("--prompt: the {text}")
            }
            Self::Engine(Engine::Device { .. }) => format!("--{text}"),
            Self::Stdin(_) => format!("--prompt -: {text}"),
            Self::Engine(Engine::NoChatTemplate { .. }) => {
                format!("{text}; use `generate`, or pass a template with `--template`")
            }
            _ => text,
        }
    }
}

impl From<crate::jobs::JournalError> for Error {
    fn from(err: crate::jobs::JournalError) -> Self {
        Self::Service(err.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::Error;
    use candle_engine::Error as Engine;

    #[test]
    fn a_field_is_a_flag_on_the_command_line_alone() {
        let error = Error::from(Engine::Parameter {
            name: "max_tokens",
            value: "0".to_string(),
            expected: "at least 1",
        });
        assert_eq!(error.to_string(), "max_tokens 0: expected at least 1");
        assert_eq!(
            error.for_command_line(),
            "--max-tokens 0: expected at least 1"
        );
        let long = Error::from(Engine::PromptTooLong {
            tokens: 1602,
            limit: 512,
        });
        assert_eq!(
            long.to_string(),
            "prompt has 1602 tokens, but the model's limit is 512; shorten the prompt"
        );
        assert!(long
            .for_command_line()
            .starts_with("--prompt: the prompt has 1602"));
    }
}
