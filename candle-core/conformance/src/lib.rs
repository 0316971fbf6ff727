//! Conformance of a device with the CPU: every op with every dtype and layout. [`CASES`] lists the ops, [`LAYOUTS`] the layouts, and
//! [`support()`] the gaps of WebGPU devices, from which the table in `docs/webgpu-ops.md` is generated. CUDA has every op and dtype of the
//! CPU.
//!
//! [`support_on()`] puts each pair of op and dtype in one of three classes, and any other behaviour is a failure. *Supported*: results agree
//! with the CPU's within the op's tolerance, and if the CPU returns an error (such as for the maximum of an empty tensor), so does the device.
//! *Undefined*: both return an error. *Unsupported*: the CPU supports it, and the device's error names op, dtype and device.
//!
//! candle-core's tests run the list natively, `candle-wasm-examples/ops` in a browser. candle-core's tests also check the gradients of its
//! ops, `oracle/ops` compares them with crates.io's, `versus` times both. candle-core's other tests cover special values (NaN, infinities,
//! overflow) and sizes around workgroups and tiles.
//!
//! ```
//! use candle_conformance::{check, CASES, LAYOUTS};
//! use candle_core::{DType, Device};
//! # fn main() -> candle_core::Result<()> {
//! let mut records = vec![];
//! pollster::block_on(check(&Device::Cpu, DType::U8, |record| records.push(record)))?;
//! assert_eq!(records.len(), CASES.len() * LAYOUTS.len());
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]

mod cases;
mod check;
mod compare;
mod inputs;
mod support;

/// The crate that [`CASES`] runs.
pub use candle_core;
pub use cases::{Case, Inputs, Near, CASES};
pub use check::{check, f64_error, root, Outcome, Record};
pub use compare::{first_difference, numbers, Tolerance};
pub use inputs::LAYOUTS;
pub use support::{support, support_on, table, Support, DTYPES, MISSING};
