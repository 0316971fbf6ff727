mod bert;
mod blocks;
mod config;
#[cfg(feature = "webgpu")]
mod dispatches;
mod generation;
mod gguf;
mod llama;
mod moe;
mod quantized_files;
mod quantized_llama;
mod sentences;
mod support;
mod utils;
