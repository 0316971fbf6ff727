//! A zip archive with arrays of NumPy.

#![no_main]

use candle_core::npy::NpzTensors;
use candle_core_fuzz::{bounded, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        let arrays = NpzTensors::from_bytes(data.to_vec())?;
        for name in arrays.names() {
            arrays.get(name)?.map_or(Ok(()), |array| read(&array))?;
        }
        Ok(())
    });
});
