//! What can go wrong, each as one line.

use candle_engine::error::one_line;
use candle_engine::Error as Engine;

/// The result of a command.
pub type Result<T> = std::result::Result<T, Error>;

/// One failure. Its `Display` form is a single line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's: of a model, its files, its device or a parameter.
    #[error(transparent)]
    Engine(#[from] Engine),
    /// An error of the HTTP interface.
    #[cfg(feature = "api")]
    #[error(transparent)]
    Api(#[from] candle_openai::Error),
    /// A JSON schema that cannot be kept to.
    #[error("--schema: {0}")]
    Schema(String),
    /// An address, a signal or a thread that cannot be had.
    #[error("{0}")]
    Service(String),
    /// Standard input could not be read as text.
    #[error("standard input: {0}")]
    Stdin(std::io::Error),
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Stdout(std::io::Error),
}

impl From<candle_grammar::Error> for Error {
    fn from(error: candle_grammar::Error) -> Self {
        Self::Schema(error.to_string())
    }
}

impl Error {
    /// An error about a whole file.
    pub(crate) fn file(file: &std::path::Path, problem: impl std::fmt::Display) -> Self {
        Engine::file(file, problem).into()
    }

    /// A parameter outside its range.
    pub(crate) fn parameter(
        name: &'static str,
        value: impl std::fmt::Display,
        expected: &'static str,
    ) -> Self {
        let value = value.to_string();
        Self::Engine(Engine::Parameter {
            name,
            value,
            expected,
        })
    }

    /// An error of what serves, by what it says.
    #[cfg(feature = "service")]
    pub(crate) fn service(problem: impl std::fmt::Display) -> Self {
        Self::Service(problem.to_string())
    }

    /// Whether the reader of standard output has gone away (`… | head -1`); that is not a failure.
    pub fn is_closed_stdout(&self) -> bool {
        matches!(self, Self::Stdout(err) if err.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The error as one line, whatever line breaks a cause may have brought along.
    pub fn one_line(&self) -> String {
        one_line(&self.to_string())
    }

    /// The error as one line for the user, see [`of_engine`].
    pub fn for_command_line(&self) -> String {
        match self {
            Self::Engine(error) => of_engine(error),
            Self::Stdin(_) => format!("--prompt -: {}", self.one_line()),
            _ => self.one_line(),
        }
    }
}

/// An error of the engine as one line for the user: a field is named by its flag, `max_tokens` by `--max-tokens`.
pub fn of_engine(error: &Engine) -> String {
    let text = error.one_line();
    match error {
        Engine::Parameter { name, .. } => {
            let value = text.strip_prefix(name).unwrap_or_default();
            format!("--{}{value}", name.replace('_', "-"))
        }
        Engine::EmptyPrompt
        | Engine::PromptTooLong { .. }
        | Engine::CacheTooSmall { .. }
        | Engine::PromptTooLarge { .. } => {
            format!("--prompt: the {text}")
        }
        Engine::Device { .. } => format!("--{text}"),
        Engine::TooManyLayers { .. } => format!("--{}", text.replacen('_', "-", 1)),
        Engine::TooLarge {
            fits: Some(count), ..
        } => {
            format!("{text}; use --gpu-layers {count}, or --gpu-layers auto")
        }
        Engine::TooLarge { fits: None, .. } => format!("{text}; use --device cpu"),
        Engine::NoChatTemplate { .. } => {
            format!("{text}; use `generate`, or pass a template with `--template`")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{Engine, Error};

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
