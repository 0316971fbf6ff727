//! Headers of safetensors files, and all of their tensors.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::safetensors(data));
