//! The tests of `Device::Metal`.

use crate::testing::{Backend, Tests};

/// On a Mac every test that runs on any device. Elsewhere what Metal adds to WebGPU, whose kernels the step `test` has run: the files
/// `metal.rs`, on the adapter that stands in.
pub fn metal() -> Result<String, String> {
    let tests = match cfg!(target_vendor = "apple") {
        true => Tests {
            filter: "metal",
            ..Tests::default()
        },
        false => Tests {
            targets: "--test metal",
            filter: "--skip ::cpu --skip ::webgpu --skip ::cuda",
            env: &[("CANDLE_METAL_EMULATED", "1")],
            ..Tests::default()
        },
    };
    tests.run_on(Backend::Metal)
}
