//! Every op, with every dtype, over every layout, on a device and on the CPU: one list of ops ([`CASES`]), one of layouts ([`LAYOUTS`]), and
//! what a WebGPU device lacks ([`support()`]), from which the table in `docs/webgpu-ops.md` is made; CUDA has every op and dtype of the CPU.
//!
//! A pair of op and dtype is one of three things. *Supported*: results agree with the CPU's within the op's tolerance, and where
//! the CPU has an error (the greatest of nothing, say) so has the device. *Undefined*: the CPU refuses it and the device as well.
//! *Unsupported*: the CPU does it, and the device's error names op, dtype and device. What a pair is, [`support_on()`] says, and it is a failure
//! if it is something else.
//!
//! candle-core's tests run the list natively, `candle-wasm-examples/ops` in a browser. Special values (NaN, infinities, arguments that
//! overflow) and sizes around workgroups and tiles are in candle-core's other tests.
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

pub use cases::{Case, CASES};
pub use check::{check, f64_error, root, Outcome, Record};
pub use compare::{first_difference, numbers, Tolerance};
pub use inputs::{Inputs, LAYOUTS};
pub use support::{support, support_on, table, Support, DTYPES, MISSING};
