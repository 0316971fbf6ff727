//! An array of NumPy.

#![no_main]

use candle_core::npy;
use candle_core_fuzz::{bounded, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    bounded(data, || {
        read(&npy::from_reader(&mut &*data)?)
    });
});
