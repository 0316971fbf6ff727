//! The tests of candle-dvm, one crate so that it links once.

mod api;
#[cfg(feature = "audio")]
mod audio;
mod batch;
mod bench;
mod chat;
mod cli;
mod embed;
mod gguf;
mod gguf_cli;
mod gguf_model;
mod golden;
mod gpus;
mod hub;
mod hub_server;
mod loader;
mod lookup;
mod models;
#[cfg(feature = "serve")]
mod nostr;
mod parts;
mod registry;
mod stream;
mod support;
#[cfg(unix)]
mod terminal;
#[cfg(feature = "audio")]
mod transcribe;
