//! A PyTorch checkpoint.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| candle_core_fuzz::targets::pth(data));
