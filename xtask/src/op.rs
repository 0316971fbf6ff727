//! `cargo xtask op matmul --device webgpu`: the tests of one op on one device.

use crate::steps::cuda;
use crate::testing::{self, Backend, Tests};

/// The devices that a test's name ends with.
pub const DEVICES: [&str; 4] = ["cpu", "webgpu", "cuda", "metal"];

/// Runs the tests of candle-core and candle-nn whose name contains `op` on `device`, with the features that `cargo xtask test` builds.
pub fn run(op: &str, device: &str) -> Result<String, String> {
    let others = DEVICES.iter().filter(|other| **other != device);
    let mut filter = op.to_string();
    for other in others {
        // A test without a device in its name is the CPU's.
        filter.push_str(&format!(" --skip ::{other}"));
    }
    let cuda = match device {
        "cuda" => cuda::environment()?.0,
        _ => Vec::new(),
    };
    let mut env: Vec<(&str, &str)> = cuda
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    if device == "metal" && !cfg!(target_vendor = "apple") {
        env.push(("CANDLE_METAL_EMULATED", "1"));
    }
    let tests = Tests {
        targets: "--test core --test nn --test metal",
        filter: &filter,
        env: &env,
        without: if device == "metal" {
            &[]
        } else {
            testing::METAL
        },
        ..Tests::default()
    };
    match device {
        "webgpu" => tests.run_on(Backend::WebGpu),
        "cuda" => tests.run_on(Backend::Cuda),
        "metal" => tests.run_on(Backend::Metal),
        _ => match tests.run()?.passed {
            0 => Err(format!("no test's name contains `{op}`")),
            passed => Ok(format!("{passed} passed")),
        },
    }
}
