//! The tests of candle-dvm, one crate so that it links once.

#[cfg(feature = "api")]
mod api;
mod chat;
mod cli;
mod direction;
mod draft;
mod embed;
mod gguf_cli;
#[path = "../../candle-transformers/engine/tests/gguf_model.rs"]
mod gguf_model;
mod gpus;
mod hub;
mod hub_server;
mod lora;
mod models;
#[cfg(feature = "audio")]
mod moonshine;
#[cfg(feature = "serve")]
mod nostr;
#[cfg(feature = "audio")]
mod parakeet;
mod pictures;
mod rerank;
#[path = "../../candle-transformers/engine/tests/seeing.rs"]
#[allow(dead_code)]
mod seeing;
#[path = "../../candle-transformers/engine/tests/support.rs"]
// It has what the engine's tests use, too.
#[allow(dead_code)]
mod support;
#[cfg(unix)]
mod terminal;
#[cfg(feature = "audio")]
mod transcribe;
#[cfg(feature = "audio")]
#[path = "../../candle-transformers/engine/tests/wav.rs"]
#[allow(dead_code)]
mod wav;
