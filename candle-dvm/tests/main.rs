//! The tests of candle-dvm, one crate so that it links once.

mod bench;
mod cli;
mod gguf;
mod gguf_cli;
mod gguf_model;
mod golden;
mod loader;
mod registry;
mod stream;
mod support;
