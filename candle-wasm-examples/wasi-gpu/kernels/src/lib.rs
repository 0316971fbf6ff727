//! What `wasi:gpu@0.1.0` promises to a guest, as a trait and its backends over Candle's devices.
//!
//! [`GpuBackend`] has a method for each function of the interface, with the same parameters. Nothing here knows of WebAssembly: a host
//! (`wasi-gpu`, beside this crate) puts it behind a guest's imports, natively or in a browser, and a Rust program can call it directly.

mod backend;
mod error;
mod params;

pub use backend::{BufferId, BufferUsage, DeviceInfo, GpuBackend, PendingRead};
pub use error::GpuError;
pub use params::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseOp, ElementwiseParams,
    FindSplitParams, MatmulParams, ReduceOp, ReduceParams,
};

/// A [`GpuBackend`]'s answer.
pub type Result<T> = std::result::Result<T, GpuError>;
