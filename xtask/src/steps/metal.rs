//! The tests of `Device::Metal`.

use crate::testing::{Backend, Tests};

/// On a Mac, every test that runs on any device. Elsewhere, the tests of what Metal adds to WebGPU, whose kernels the step `test` covers:
/// the files `metal.rs`, on the WebGPU adapter.
pub fn metal() -> Result<String, String> {
    let tests = if cfg!(target_vendor = "apple") {
        Tests {
            filter: "metal",
            ..Tests::default()
        }
    } else {
        Tests {
            targets: "--test metal",
            filter: "--skip ::cpu --skip ::webgpu --skip ::cuda",
            env: &[("CANDLE_METAL_EMULATED", "1")],
            ..Tests::default()
        }
    };
    tests.run_on(Backend::Metal)
}
