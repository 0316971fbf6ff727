mod bert;
mod blocks;
mod both_ways;
mod config;
mod detect;
mod embed;
mod encoders;
mod experts;
mod families;
mod generation;
mod gguf;
mod llama;
mod moe;
mod object_detection;
#[cfg(not(target_arch = "wasm32"))]
mod parallel;
mod quantized_files;
mod quantized_llama;
mod qwen3_5;
mod recurrent;
mod segment_anything;
mod sentences;
mod seq2seq;
mod silero_vad;
mod slots;
mod stella;
mod support;
mod utils;
mod vision;
mod vision_convs;
mod vision_transformers;
mod whisper;

candle_core::with_webgpu! {
    mod dispatches;
}
