//! Language models on the available device: files to weights, prompts to texts, several texts at once, speech, and vectors.
//!
//! ```no_run
//! use candle_engine::{BackendRegistry, CompletionRequest, DeviceChoice, InferenceBackend, ModelFiles, ModelSource};
//! # fn main() -> candle_engine::Result<()> {
//! let files = ModelFiles::open(&ModelSource::Embedded)?;
//! let registry = BackendRegistry::detect();
//! let backend = registry.select(DeviceChoice::Auto)?.load(files, None, &|_| ())?;
//! let request = CompletionRequest {
//!     prompt: "The borrow checker".to_string(),
//!     ..Default::default()
//! };
//! println!("{}", backend.complete(&request)?.text);
//! # Ok(())
//! # }
//! ```
//!
//! # Usage
//!
//! [`ModelFiles`] reads a Hugging Face folder, a GGUF file, a model from the Hugging Face Hub (downloaded to its cache) or the embedded
//! model, and validates it before a device is opened. [`BackendRegistry`] lists the available devices and loads the model on one.
//! [`InferenceBackend`] completes prompts; [`Generation`] returns one token at a time; [`Chat`] keeps a conversation.
//!
//! The crate knows no HTTP server and no Nostr: `candle-openai`, `candle-cli` and `candle-dvm` are built on it, and so are the browser pages, where a
//! [`Generation`] is asynchronous.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `webgpu` | WebGPU devices |
//! | `cuda` | CUDA devices; the build needs no CUDA toolkit |
//! | `metal` | Apple's GPUs under Candle's device name, through the WebGPU kernels |
//! | `audio` | sound files, `audio`, which are not for browsers, and `speech` |
//! | `speech` | speech recognition: `speech` |
//! | `bench` | speed on random weights: `bench`; not in a browser |
//! | `clap` | [`DeviceChoice`], [`FloatType`], [`KvType`] and [`WeightFormat`] as values of a command line |
//! | `testing` | `batch::testing`, for tests of what is built on the engine |
//!
//! # Errors
//!
//! Functions return [`Result`]; an [`Error`] is one line that names the file, the field or the device.
//!
//! # Untrusted input
//!
//! Model files and HTTP responses are validated and limited in size, and never cause a panic.
//!
//! # Modules
//!
//! - [`backend`]: the trait that callers see; [`engine`]: its implementation with candle; [`generation`]: the generation loop;
//!   [`stream`]: tokens to text; [`chat`]: conversations; [`thinking`]: thoughts and answers.
//! - [`registry`], [`device`], [`devices`]: the available backends. [`model`]: files and weights; [`mod@format`]: the storage
//!   formats of weights; [`size`]: sizes such as 8GB.
//! - [`pictures`]: images in prompts.
//! - `speech`: transcription, in a browser too. `audio`: sound files; `transcript`: subtitles. `embed`: text embeddings; `rerank`: scores
//!   of documents for a query. `batch`: several completions at once; `queue`: one request after the other. None of these six in a
//!   browser. `secret_file`: keys that others must not read; `terminal`: text without control characters.

#![deny(missing_docs)]

#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
pub mod audio;
pub mod backend;
#[cfg(not(target_arch = "wasm32"))]
pub mod batch;
#[cfg(all(feature = "bench", not(target_arch = "wasm32")))]
pub mod bench;
pub mod chat;
pub mod device;
pub mod devices;
#[cfg(not(target_arch = "wasm32"))]
pub mod embed;
#[cfg(not(target_arch = "wasm32"))]
mod encoder_folder;
pub mod engine;
pub mod error;
pub mod format;
pub mod generation;
pub mod model;
pub mod pictures;
#[cfg(not(target_arch = "wasm32"))]
pub mod progress;
#[cfg(not(target_arch = "wasm32"))]
pub mod queue;
pub mod registry;
#[cfg(not(target_arch = "wasm32"))]
pub mod rerank;
#[cfg(not(target_arch = "wasm32"))]
pub mod secret_file;
pub mod size;
#[cfg(feature = "speech")]
pub mod speech;
pub mod stream;
#[cfg(not(target_arch = "wasm32"))]
pub mod terminal;
pub mod thinking;
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
pub mod transcript;
mod turn;

pub use backend::{Completion, CompletionRequest, Guesses, InferenceBackend, StopReason, Timings};
pub use chat::Chat;
pub use device::{DeviceChoice, DeviceKind, FloatType};
pub use engine::CandleBackend;
pub use error::{Error, Result};
pub use format::{KvType, WeightFormat};
pub use generation::{Generation, Mask, Wait};
#[cfg(not(target_arch = "wasm32"))]
pub use model::{CachedModel, CachedRepo, Hub, HubModel, Removal};
pub use model::{
    ChatTemplate, Message, ModelFiles, ModelParts, ModelSource, PartFile, PartSource, Role,
    SamplingDefaults,
};
pub use registry::{BackendRegistry, MAX_DEVICES};
pub use turn::give_way;
