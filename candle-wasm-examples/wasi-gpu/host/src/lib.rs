#![doc = include_str!("../README.md")]

mod bindings;
pub mod cli;
mod device;
mod error;
mod gpu;
mod guest;
mod imports;
mod limits;
#[cfg(feature = "llm")]
mod llm;
mod module;
mod runner;
mod stats;

pub use device::{DeviceChoice, Devices};
pub use error::Error;
pub use guest::Guest;
pub use imports::{Inspection, Interface};
pub use limits::Limits;
#[cfg(feature = "llm")]
pub use llm::Models;
pub use module::{componentize, is_core_module};
pub use runner::{Program, Runner};
pub use stats::{Calls, Stats};
pub use wasmtime::component::Val;
pub use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder};

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
