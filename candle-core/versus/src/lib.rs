//! Benchmarks of this repository's candle-core against crates.io's 0.11.1.
//!
//! Each side is a separate program, `here` and `there`: within one build cargo unifies features, and crates.io's candle-core
//! would be timed with `gemm` features that only this repository requests. `cases/` is one table of cases, with the list of
//! candle-conformance, compiled against each side; the input generator is reseeded for each case. `RAYON_NUM_THREADS` and the caller's CPU
//! affinity apply to both.

#[cfg(all(feature = "here", feature = "there"))]
compile_error!("a build is of one side: here or there");

#[cfg(any(feature = "here", feature = "there"))]
mod cases;
#[cfg(any(feature = "here", feature = "there"))]
#[allow(dead_code, reason = "the tolerances and gradients of tests")]
#[path = "../../conformance/src/cases.rs"]
mod list;
#[cfg(any(feature = "here", feature = "there"))]
pub mod serve;
pub mod side;

#[cfg(feature = "here")]
use {ours as candle_core, ours_nn as candle_nn};
#[cfg(feature = "there")]
use {upstream as candle_core, upstream_nn as candle_nn};
