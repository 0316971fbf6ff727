mod blocks;
mod config;
mod generation;
mod gguf;
mod llama;
mod quantized_llama;
mod support;
mod utils;
