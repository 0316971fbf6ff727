//! The tests of candle-engine, one crate so that it links once.

#[cfg(feature = "audio")]
mod audio;
mod batch;
#[cfg(feature = "bench")]
mod bench;
mod changed;
mod draft;
mod draft_draws;
mod gguf;
mod gguf_model;
mod golden;
mod loader;
mod lookup;
mod lora;
mod mixers;
mod paged;
mod parts;
mod pictures;
mod ranks;
mod registry;
// It has what candle-dvm's tests use, too.
#[allow(dead_code)]
mod seeing;
mod split;
mod stream;
mod support;
#[cfg(feature = "audio")]
mod wav;
