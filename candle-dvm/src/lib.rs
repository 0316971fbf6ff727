//! Runs language models on whichever device is present: CUDA, Metal, any GPU that speaks WebGPU, or the CPU.
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
//! # Where things are
//! - [`backend`]: the trait that callers see; [`engine`]: its implementation over candle; [`generation`]: the loop that makes tokens.
//! - [`registry`]: which backends are present; [`device`]: their names.
//! - [`model`]: what is read from a folder, a GGUF file or the binary itself, checked before any device is touched;
//!   [`mod@format`]: what weights are stored as.
//! - [`stream`]: tokens to text. `bench`, `shapes`: speed on random weights; `bench_ops`: of single ops; `cli`: the commands. The
//!   four are not there in a browser.
//! - [`jobs`]: whom jobs are taken from, their order and what is remembered of them, whatever protocol they come by. With the feature
//!   `nostr`, `nip90`: the protocol, and `relay`: the protocol with one relay, both without I/O. With `serve`, `service`: the daemon;
//!   `journal`: its memory; `payment`: its wallet; `platform`: its tasks and timers, which a browser has too.

#![deny(missing_docs)]

pub mod backend;
#[cfg(not(target_arch = "wasm32"))]
pub mod bench;
#[cfg(not(target_arch = "wasm32"))]
pub mod bench_ops;
#[cfg(not(target_arch = "wasm32"))]
pub mod cli;
pub mod device;
pub mod devices;
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
pub mod stream;
mod turn;

pub use backend::{Completion, CompletionRequest, InferenceBackend, StopReason, Timings};
pub use device::{DeviceChoice, DeviceKind, FloatType};
pub use engine::CandleBackend;
pub use error::{Error, Result};
pub use format::WeightFormat;
pub use generation::{Generation, Wait};
pub use model::{ModelFiles, ModelParts, ModelSource, PartFile, PartSource};
pub use registry::BackendRegistry;
