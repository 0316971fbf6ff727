//! Linking of Intel's MKL: static libraries, 32-bit integers (lp64), threads from Intel's OpenMP runtime.
//!
//! The crate exports no functions. A crate that declares MKL's functions itself writes `extern crate candle_mkl as _;` and enables the
//! feature `link`. This crate's build script then searches `MKLROOT`, the location of `mkl-static-lp64-iomp` from pkg-config, and the
//! install folders of Intel's and Debian's packages. If the libraries are not found, the build fails and prints the searched folders and
//! the install command.
//!
//! A shared OpenMP runtime is preferred if it exists; the loader must find it at run time.

#[cfg(test)]
mod find;
