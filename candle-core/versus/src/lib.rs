//! The same work, done by this repository's candle-core and by crates.io's 0.11.1.
//!
//! Each side is a separate program, `here` and `there`: within one build cargo unites what two packages ask of a third,
//! and crates.io's candle-core would be timed over a `gemm` with features that only this one asks for. `cases/` is one
//! table of work, compiled against either side; inputs come from a generator that starts anew for each case.
//! `RAYON_NUM_THREADS`, and the processors that the caller may use, hold for both.

#[cfg(all(feature = "here", feature = "there"))]
compile_error!("a build is of one side: here or there");

#[cfg(any(feature = "here", feature = "there"))]
mod cases;
#[cfg(any(feature = "here", feature = "there"))]
pub mod serve;
pub mod side;

#[cfg(feature = "here")]
use {ours as candle_core, ours_nn as candle_nn};
#[cfg(feature = "there")]
use {upstream as candle_core, upstream_nn as candle_nn};
