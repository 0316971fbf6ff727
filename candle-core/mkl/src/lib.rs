//! Links Intel's MKL: static libraries, 32-bit integers (lp64), threads by Intel's OpenMP runtime.
//!
//! There is nothing to call. A crate that declares MKL's functions itself writes `extern crate candle_mkl as _;` and turns on the
//! feature `link`, with which this crate's build script looks for the libraries: in `MKLROOT`, or else where pkg-config says that
//! `mkl-static-lp64-iomp` is, or else where Intel's and Debian's packages put them. If they are not found, the build ends and says
//! where it looked and how to get them.
//!
//! The OpenMP runtime is the shared one where there is one: the loader has to find it when the program runs.

#[cfg(test)]
mod find;
