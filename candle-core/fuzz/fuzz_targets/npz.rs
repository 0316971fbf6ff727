//! A zip archive with NumPy arrays.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::npz(data));
