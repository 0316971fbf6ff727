//! A Python pickle without an archive around it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::pickle(data));
