//! Text generation with language models on the available device, and a service for it on Nostr relays (NIP-90).
//!
//! ```no_run
//! use candle_dvm::{BackendRegistry, CompletionRequest, DeviceChoice, InferenceBackend, ModelFiles, ModelSource};
//! # fn main() -> candle_dvm::Result<()> {
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
//! [`InferenceBackend`] completes prompts; [`Generation`] returns one token at a time.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `webgpu` (default) | WebGPU devices |
//! | `api` (default) | OpenAI's HTTP interface `api` |
//! | `serve` (default) | the daemon `service` and the customer commands; includes `nostr` |
//! | `nostr` | the NIP-90 codec and the relay protocol, without I/O |
//! | `metal` | `--device metal` on Apple systems: the WebGPU kernels, under Candle's device name |
//! | `cuda` (default) | CUDA devices; the build needs no CUDA toolkit |
//! | `audio` (default) | sound files and speech recognition: `audio`, `speech`; not in a browser |
//!
//! # Devices
//!
//! The CPU, CUDA, WebGPU and, with the feature `metal`, Metal. The library also compiles for browsers, where a [`Generation`] is
//! asynchronous.
//!
//! # Errors
//!
//! Functions return [`Result`]; an [`Error`] is one line that names the file, the field or the device. The program exits with code
//! 1.
//!
//! # Untrusted input
//!
//! Model files, events, relay messages and HTTP responses are validated and limited in size, and never cause a panic; `candle-dvm/fuzz`
//! has fuzz targets for events and relays.
//!
//! # Modules
//!
//! - [`backend`]: the trait that callers see; [`engine`]: its implementation with candle; [`generation`]: the generation loop;
//!   [`stream`]: tokens to text.
//! - [`registry`], [`device`], [`devices`]: the available backends. [`model`]: files and weights; [`mod@format`]: the storage
//!   formats of weights.
//! - `audio`, `speech`: sound files and their transcription; not in a browser.
//! - `embed`: text embeddings; not in a browser.
//! - `batch`: several completions at once; `api`: OpenAI's HTTP interface for them; not in a browser.
//! - `bench`, `bench_ops`, `shapes`: speed on random weights; `cli`: the commands; not in a browser.
//! - [`jobs`]: admission, order and memory of jobs, independent of the protocol. `nip90` and `relay`: the protocol, without I/O.
//!   `service`: the daemon, with `journal`, `payment` and `platform`.

#![deny(missing_docs)]
// Whether a device may be shared between threads is asked through all of wgpu's types.
#![recursion_limit = "256"]

#[cfg(all(feature = "api", not(target_arch = "wasm32")))]
pub mod api;
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
pub mod audio;
pub mod backend;
#[cfg(not(target_arch = "wasm32"))]
pub mod batch;
#[cfg(not(target_arch = "wasm32"))]
pub mod bench;
#[cfg(not(target_arch = "wasm32"))]
pub mod bench_ops;
pub mod chat;
#[cfg(not(target_arch = "wasm32"))]
pub mod cli;
pub mod device;
pub mod devices;
#[cfg(not(target_arch = "wasm32"))]
pub mod embed;
pub mod engine;
pub mod error;
pub mod format;
pub mod generation;
pub mod jobs;
#[cfg(feature = "serve")]
pub mod journal;
#[cfg(all(feature = "serve", not(target_arch = "wasm32")))]
pub mod key_file;
pub mod model;
#[cfg(feature = "nostr")]
pub mod nip90;
#[cfg(feature = "serve")]
pub mod payment;
#[cfg(feature = "serve")]
pub mod platform;
#[cfg(not(target_arch = "wasm32"))]
pub mod progress;
pub mod registry;
#[cfg(feature = "nostr")]
pub mod relay;
#[cfg(feature = "serve")]
pub mod service;
#[cfg(not(target_arch = "wasm32"))]
pub mod shapes;
#[cfg(all(feature = "audio", not(target_arch = "wasm32")))]
pub mod speech;
pub mod stream;
mod turn;

pub use backend::{Completion, CompletionRequest, Guesses, InferenceBackend, StopReason, Timings};
pub use chat::Chat;
pub use device::{DeviceChoice, DeviceKind, FloatType};
pub use engine::CandleBackend;
pub use error::{Error, Result};
pub use format::{KvType, WeightFormat};
pub use generation::{Generation, Wait};
pub use model::{
    ChatTemplate, Message, ModelFiles, ModelParts, ModelSource, PartFile, PartSource, Recommended,
    Role,
};
#[cfg(not(target_arch = "wasm32"))]
pub use model::{Hub, HubModel};
pub use registry::BackendRegistry;
