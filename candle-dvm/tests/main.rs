//! The tests of candle-dvm, one crate so that it links once.

mod bench;
mod cli;
mod golden;
mod loader;
mod registry;
mod stream;
mod support;
