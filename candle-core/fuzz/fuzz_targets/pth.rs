//! A checkpoint of PyTorch.

#![no_main]

use candle_core::pickle::PthTensors;
use candle_core_fuzz::{bounded, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        let checkpoint = PthTensors::from_bytes(data.to_vec(), None)?;
        for name in checkpoint.tensor_infos().keys() {
            checkpoint.get(name)?.map_or(Ok(()), |tensor| read(&tensor))?;
        }
        Ok(())
    });
});
