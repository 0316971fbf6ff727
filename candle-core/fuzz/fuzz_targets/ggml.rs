//! A GGML file in a format before GGUF.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::ggml(data));
