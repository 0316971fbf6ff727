//! Language models for sale on Nostr relays (NIP-90): the daemon, the customer's commands, and the program `candle-dvm`, which also has the
//! commands that run models locally.
//!
//! [`candle_engine`] loads and runs models; `candle_cli` has the commands that run them. This crate adds the service on relays.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `webgpu` (default) | WebGPU devices |
//! | `api` (default) | OpenAI's HTTP interface, the command `api` |
//! | `serve` (default) | the daemon `service` and the customer commands; includes `nostr` |
//! | `nostr` | the NIP-90 codec and the relay protocol, without I/O |
//! | `metal` | `--device metal` on Apple systems: the WebGPU kernels, under Candle's device name |
//! | `cuda` (default) | CUDA devices; the build needs no CUDA toolkit |
//! | `cashu` (default) | payment by Cashu tokens, and the command `cashu`; not in a browser |
//! | `audio` (default) | the command `transcribe`; not in a browser |
//!
//! # Errors
//!
//! Functions return [`Result`]; an [`Error`] is one line. The program exits with code 1.
//!
//! # Untrusted input
//!
//! Events and relay messages are validated and limited in size, and never cause a panic; `candle-dvm/fuzz` has fuzz targets for them.
//!
//! # Modules
//!
//! - [`jobs`]: admission, order and memory of jobs, independent of the protocol. `nip90` and `relay`: the protocol, without I/O.
//! - `service`: the daemon, with `journal`, `payment`, `key_file` and `platform`.
//! - `cli`: the program, with the commands of the service; not in a browser.

#![deny(missing_docs)]

#[cfg(not(target_arch = "wasm32"))]
pub mod cli;
pub mod error;
pub mod jobs;
#[cfg(feature = "serve")]
pub mod journal;
#[cfg(all(feature = "serve", not(target_arch = "wasm32")))]
pub mod key_file;
#[cfg(feature = "nostr")]
pub mod nip90;
#[cfg(feature = "serve")]
pub mod payment;
#[cfg(feature = "serve")]
pub mod platform;
#[cfg(feature = "nostr")]
pub mod relay;
#[cfg(feature = "serve")]
pub mod service;

pub use error::{Error, Result};
