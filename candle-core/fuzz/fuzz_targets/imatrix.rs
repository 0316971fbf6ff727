//! An importance matrix of llama.cpp. The parser takes a path, so each input becomes a file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::imatrix(data));
