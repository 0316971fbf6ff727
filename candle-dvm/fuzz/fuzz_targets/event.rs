//! Any event, read as everything that there is. What could be read is written, and has to read back as the same.
//!
//! The input is text. Its first line is the kind and how it is hidden (`5050`, `6050 nip44`, `7000 nip04`), then comes a tag a line, its
//! values parted by `|`, and after an empty line the content.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| candle_dvm_fuzz::targets::event(text));
