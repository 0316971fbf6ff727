//! Headers of safetensors files, and every tensor behind them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::safetensors(data));
