//! Headers of safetensors files, and every tensor behind them.

#![no_main]

use candle_core::safetensors::load_buffer;
use candle_core::Device;
use candle_core_fuzz::{bounded, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        for tensor in load_buffer(data, &Device::Cpu)?.values() {
            read(tensor)?;
        }
        Ok(())
    });
});
