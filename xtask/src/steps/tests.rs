//! The tests of the workspace.

use std::path::Path;

use super::{chrome, shaders};
use crate::testing::{self, Backend, Tests, METAL};

/// All tests but those on CUDA and Metal, which have separate steps. The shaders that they compile are kept for the step `shaders`.
pub fn test() -> Result<String, String> {
    let tests = Tests {
        filter: "--skip ::cuda --skip ::metal",
        without: METAL,
        ..Tests::default()
    };
    let note = dumping(&shaders::folder(), tests)?;
    let examples = testing::doc_tests()?;
    Ok(format!("{note}; {examples} examples of the documentation"))
}

/// Tests that browser limits do not affect: tests that disable features, which are already disabled, and whole models, whose kernels run with
/// these limits in other tests, and in browsers in the step `web`.
const SAME_FOR_BROWSERS: &[&str] = &[
    "regimes::without_",
    "golden::greedy_tokens",
    "golden::cache_gives_the_same_logits",
    "gguf::unquantised",
    "parts::",
    "bench::demo_shape",
];

/// The WebGPU tests again without f16, subgroups and large limits.
pub fn browser() -> Result<String, String> {
    let skip = SAME_FOR_BROWSERS.join(" --skip ");
    dumping(
        &chrome::shaders(),
        Tests {
            targets: "--tests",
            filter: &format!("webgpu --skip {skip}"),
            env: &[("CANDLE_WEBGPU_LIMITS", "browser")],
            without: METAL,
        },
    )
}

/// Runs tests that write their shaders to a folder.
fn dumping(folder: &Path, tests: Tests) -> Result<String, String> {
    // Shaders of an earlier run may be stale.
    let _ = std::fs::remove_dir_all(folder);
    let folder = folder.display().to_string();
    let mut env = tests.env.to_vec();
    env.push(("CANDLE_WEBGPU_DUMP_SHADERS", folder.as_str()));
    Tests { env: &env, ..tests }.run_on(Backend::WebGpu)
}

/// The tests of candle-core with bindings and buffers so small that nearly everything is split.
pub fn tiny() -> Result<String, String> {
    // The first one's images need columns of 64 MiB: thousands of windows, and rows that exceed one. So do the sizes of the second.
    Tests {
        targets: "--test core",
        filter: "webgpu --skip convolutions_in_pieces --skip long_loops",
        env: &[("CANDLE_WEBGPU_LIMITS", "tiny")],
        ..Tests::default()
    }
    .run_on(Backend::WebGpu)
}
