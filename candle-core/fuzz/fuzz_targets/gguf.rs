//! A GGUF file: metadata, and every tensor dequantized.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::gguf(data));
