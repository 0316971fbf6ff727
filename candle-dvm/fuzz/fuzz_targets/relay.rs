//! Anything that a relay sends, a message a line, while a subscription and a publication are open. `!` closes the connection and opens
//! it again, `+` lets a minute pass.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| candle_dvm_fuzz::targets::relay(text));
