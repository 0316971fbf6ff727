//! What can go wrong, each as one line that says which file, field, tensor, device or parameter it was.

use std::path::Path;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One failure. Its `Display` form is a single line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that is missing, unreadable or not what its name says.
    #[error("{file}: {problem}")]
    File {
        /// The file, as the user can find it.
        file: String,
        /// The actual and the expected value.
        problem: String,
    },
    /// A file in which one field is missing or has a value that does not fit.
    #[error("{file}: field `{field}`: {problem}")]
    Field {
        /// The file.
        file: String,
        /// The field's path, parts joined by dots; of a GGUF file the metadata's key.
        field: String,
        /// The actual and the expected value.
        problem: String,
    },
    /// A tensor that is missing or has the wrong shape or dtype.
    #[error("{file}: tensor `{tensor}`: {problem}")]
    Tensor {
        /// The safetensors file or its index, or the GGUF file.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The actual and the expected value.
        problem: String,
    },
    /// A model of the Hugging Face Hub that cannot be had.
    #[error("{model}: {problem}")]
    Hub {
        /// The requested model.
        model: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A requested device is not present.
    #[error("device {asked}: {reason}")]
    Device {
        /// The device's name.
        asked: &'static str,
        /// The reason for its absence.
        reason: String,
    },
    /// A model that does not fit on a device.
    #[error("the model needs {} on {device}, where {} are free: {}", gigabytes(*needed), gigabytes(*free), fitting(*fits, *layers))]
    TooLarge {
        /// The device.
        device: String,
        /// Bytes of weights, cache and what is computed.
        needed: u64,
        /// Bytes that were free.
        free: u64,
        /// Number of the model's last layers that fit next to its output layer; `None` if even that does not fit.
        fits: Option<usize>,
        /// Layers of the model.
        layers: usize,
    },
    /// More layers on the GPU than the model has.
    #[error("gpu_layers {count}: expected at most {layers}, the layers of the model")]
    TooManyLayers {
        /// Layers that were requested.
        count: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A parameter outside its range.
    #[error("{name} {value}: expected {expected}")]
    Parameter {
        /// The parameter, as the field is spelt; `candle-dvm` shows its flag.
        name: &'static str,
        /// The invalid value.
        value: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// A prompt in which the tokenizer finds no token.
    #[error("prompt has no tokens; give at least one character of text")]
    EmptyPrompt,
    /// A prompt that the model's positions cannot hold.
    #[error("prompt has {tokens} tokens, but the model's limit is {limit}; shorten the prompt")]
    PromptTooLong {
        /// The prompt's length in tokens, the begin token included.
        tokens: usize,
        /// `max_position_embeddings` of the model's configuration.
        limit: usize,
    },
    /// A prompt that the memory for keys and values cannot hold.
    #[error("prompt has {tokens} tokens, but the cache memory holds {limit}; shorten the prompt or raise --cache-memory")]
    CacheTooSmall {
        /// The prompt's length in tokens, the begin token included.
        tokens: usize,
        /// Positions of all pages.
        limit: usize,
    },
    /// A prompt of more bytes than the model's positions can hold, whatever tokens they become.
    #[error("prompt has {bytes} bytes, more than the model's limit of {limit} tokens can hold; shorten the prompt")]
    PromptTooLarge {
        /// The prompt's length in bytes.
        bytes: usize,
        /// `max_position_embeddings` of the model's configuration.
        limit: usize,
    },
    /// A text that cannot become a vector.
    #[error("{origin}: {problem}")]
    Text {
        /// Its name.
        origin: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A language or a task that the speech model does not know.
    #[error("{0}")]
    Speech(String),
    /// A chat template that cannot be rendered.
    #[error("{origin}: {problem}")]
    ChatTemplate {
        /// Its source.
        origin: String,
        /// The problem.
        problem: String,
    },
    /// A model that comes without a chat template.
    #[error("{model} has no chat template: it is a base model, not a chat model")]
    NoChatTemplate {
        /// The model.
        model: String,
    },
    /// A model that takes no images.
    #[error("{model} takes no images: {why}")]
    NoPictures {
        /// The model.
        model: String,
        /// The mismatch, or the unsupported feature.
        why: String,
    },
    /// Images that do not fit a prompt.
    #[error("images: {0}")]
    Pictures(String),
    /// More completions at once than there are slots.
    #[error("{0} requests are running or queued, the maximum; try again later")]
    Busy(usize),
    /// A model whose completions cannot share a cache, and why.
    #[error("this model does not support batching: {0}")]
    Alone(String),
    /// A model that cannot propose tokens to another.
    #[error("draft model {draft} does not fit {model}: {problem}")]
    Draft {
        /// The one that would propose.
        draft: String,
        /// The one that would choose.
        model: String,
        /// The difference, and the remedy.
        problem: String,
    },
    /// Completions that ran together and failed together.
    #[error("the model failed: {0}")]
    Batch(String),
    /// A constraint on a text that cannot be kept.
    #[error("the constraint on the text: {0}")]
    Constraint(String),
    /// Text that the tokenizer cannot encode, or ids that it cannot decode.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// An operation on tensors failed.
    #[error("{doing}: {}", brief(.source))]
    Tensors {
        /// The operation that failed.
        doing: &'static str,
        /// The tensor library's own error.
        source: Box<candle_core::Error>,
    },
    /// A setting, such as an environment variable, that does not fit.
    #[error("setting {name} {value:?}: expected {expected}")]
    Setting {
        /// The setting, in the caller's spelling.
        name: &'static str,
        /// The value.
        value: String,
        /// The values that are allowed.
        expected: String,
    },
}

impl Error {
    /// An error about a whole file.
    pub fn file(file: &Path, problem: impl std::fmt::Display) -> Self {
        Self::File {
            file: file.display().to_string(),
            problem: problem.to_string(),
        }
    }

    /// The error as one line, whatever line breaks a cause may have brought along.
    pub fn one_line(&self) -> String {
        one_line(&self.to_string())
    }
}

/// Adds what was being done to a tensor library's error.
pub trait Doing<T> {
    /// Wraps the error as [`Error::Tensors`].
    fn doing(self, doing: &'static str) -> Result<T>;
}

impl<T> Doing<T> for candle_core::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| {
            tracing::debug!(doing, error = %source, "tensor operation failed");
            Error::Tensors {
                doing,
                source: Box::new(source),
            }
        })
    }
}

/// A tensor library's error without the stack traces that `RUST_BACKTRACE=1` appends, at any depth.
pub fn brief(err: &candle_core::Error) -> String {
    use candle_core::Error;
    match err {
        Error::WithBacktrace { inner, .. } => brief(inner),
        Error::WithPath { inner, path } => format!("{}: {}", path.display(), brief(inner)),
        Error::Context { inner, context } => {
            let context = one_line(&context.to_string());
            format!("{context}: {}", brief(inner))
        }
        Error::WrappedContext { wrapped, context } => {
            let wrapped = match wrapped.downcast_ref::<Error>() {
                Some(err) => brief(err),
                None => one_line(&wrapped.to_string()),
            };
            format!("{}: {wrapped}", one_line(context))
        }
        other => one_line(&other.to_string()),
    }
}

/// The error without the path that candle puts around it: the messages here name the file themselves.
pub(crate) fn unlocated(err: &candle_core::Error) -> &candle_core::Error {
    match err {
        candle_core::Error::WithPath { inner, .. }
        | candle_core::Error::WithBacktrace { inner, .. } => unlocated(inner),
        other => other,
    }
}

/// `text` with every run of white space that contains a line break replaced by one space.
pub fn one_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn fitting(fits: Option<usize>, layers: usize) -> String {
    match fits {
        Some(count) => format!("{count} of {layers} layers fit"),
        None => "none of its layers fits".to_string(),
    }
}

fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..100_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::brief;
    use candle_core::Context;

    #[test]
    fn no_frame_of_a_nested_trace_is_shown() {
        let trace = || Box::new(std::backtrace::Backtrace::force_capture());
        let traced = |inner| candle_core::Error::WithBacktrace {
            inner: Box::new(inner),
            backtrace: trace(),
        };
        let io = || traced(candle_core::Error::Msg("no such file".to_string()));
        assert!(io().to_string().lines().count() > 2, "there is a trace");
        let context = traced(io().context("reading the header")).with_path("a.gguf");
        assert_eq!(brief(&context), "a.gguf: reading the header: no such file");
        let wrapped = Err::<(), _>(io()).context("the weights").unwrap_err();
        assert_eq!(brief(&wrapped), "the weights: no such file");
    }
}
