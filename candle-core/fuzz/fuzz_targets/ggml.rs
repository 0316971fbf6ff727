//! A file of GGML before GGUF.

#![no_main]

use std::io::Cursor;

use candle_core::quantized::ggml_file::Content;
use candle_core::Device;
use candle_core_fuzz::{bounded, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        let content = Content::read(&mut Cursor::new(data), &Device::Cpu)?;
        for tensor in content.tensors.values() {
            read(&tensor.dequantize(&Device::Cpu)?)?;
        }
        Ok(())
    });
});
