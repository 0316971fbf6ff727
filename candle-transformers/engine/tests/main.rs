//! The tests of candle-engine, one crate so that it links once.

#[cfg(feature = "audio")]
mod audio;
mod batch;
#[cfg(feature = "bench")]
mod bench;
mod gguf;
mod gguf_model;
mod golden;
mod loader;
mod lookup;
mod parts;
mod registry;
mod stream;
mod support;
#[cfg(feature = "audio")]
mod wav;
