//! A GGUF file: metadata, and every tensor dequantized.

#![no_main]

use std::io::Cursor;

use candle_core::quantized::gguf_file::Content;
use candle_core::Device;
use candle_core_fuzz::{bounded, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        let content = Content::read(&mut Cursor::new(data))?;
        for name in content.tensor_infos.keys() {
            let tensor = content.tensor(&mut Cursor::new(data), name, &Device::Cpu)?;
            read(&tensor.dequantize(&Device::Cpu)?)?;
        }
        Ok(())
    });
});
