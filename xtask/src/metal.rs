//! The tests of `Device::Metal`.

use crate::steps::tests_on;

const CRATES: &str = "-p candle-core -p candle-nn --features candle-core/metal,candle-nn/metal";

/// On a Mac every test that runs on any device. Elsewhere what Metal adds to WebGPU, whose kernels the step `test` has run: the files
/// `metal.rs`, on the adapter that stands in.
pub fn metal() -> Result<String, String> {
    match cfg!(target_vendor = "apple") {
        true => tests_on("Metal", &format!("{CRATES} --tests metal"), &[]),
        false => tests_on(
            "Metal",
            &format!("{CRATES} --test metal -- --skip ::cpu --skip ::webgpu"),
            &[("CANDLE_METAL_EMULATED", "1")],
        ),
    }
}
