//! What `cargo xtask test` does, in order.

use std::path::PathBuf;

use crate::auth;
use crate::chrome;
use crate::command::cmd;
use crate::fuzz;
use crate::nostr;
use crate::oracle;
use crate::setup;
use crate::web;

/// One named part of `cargo xtask test`.
pub struct Step {
    pub name: &'static str,
    pub title: &'static str,
    /// `Ok` holds a note for the summary, `Err` the command that failed or what is missing.
    pub run: fn() -> Result<String, String>,
    /// What of it can be done beside other steps, before its turn: builds that are nobody else's. `run` does not need it.
    pub ahead: Option<fn() -> Result<(), String>>,
}

/// Cheap steps come first, so that a slip is found before the long ones.
pub const STEPS: &[Step] = &[
    Step {
        name: "setup",
        title: "setup: a Vulkan driver, rustfmt and clippy are there",
        run: setup::setup,
        ahead: None,
    },
    Step {
        name: "fmt",
        title: "rustfmt finds nothing to change",
        run: fmt,
        ahead: None,
    },
    Step {
        name: "deps",
        title: "candle-core's default build pulls in no wgpu",
        run: deps,
        ahead: None,
    },
    Step {
        name: "clippy",
        title: "clippy is silent, with WebGPU and without",
        run: clippy,
        ahead: None,
    },
    Step {
        name: "doc",
        title: "the documentation builds without a warning",
        run: doc,
        ahead: None,
    },
    Step {
        name: "test",
        title: "all tests, on the CPU and on WebGPU",
        run: test,
        ahead: None,
    },
    Step {
        name: "processor",
        title: "ops and models on WebGPU, with the kernels for adapters that are processors",
        run: processor_test,
        ahead: None,
    },
    Step {
        name: "browser",
        title: "the WebGPU tests, with no more than every browser gives",
        run: browser_test,
        ahead: None,
    },
    Step {
        name: "chrome",
        title: "a browser's compiler takes every shader of the step before",
        run: chrome::chrome,
        ahead: None,
    },
    Step {
        name: "web",
        title: "the pages work in headless Chromium and Firefox: every op on WebGPU, models on WebGPU and on the CPU",
        run: web::web,
        ahead: Some(web::ahead),
    },
    Step {
        name: "tiny",
        title: "candle-core's WebGPU tests, with 16 KiB in a binding: nearly every op is split",
        run: tiny_test,
        ahead: None,
    },
    Step {
        name: "fuzz",
        title: "the fuzz targets of files and events find nothing in a short run",
        run: fuzz::fuzz,
        ahead: Some(fuzz::ahead),
    },
    Step {
        name: "nostr",
        title: "jobs over relays and with customers that nobody here wrote; 200 jobs, 20 kills",
        run: nostr::nostr,
        ahead: None,
    },
    Step {
        name: "auth",
        title: "jobs over nostr-rs-relay, which takes events only of those who have said who they are",
        run: auth::auth,
        ahead: Some(auth::ahead),
    },
    Step {
        name: "oracle",
        title: "ops and models agree with crates.io's candle 0.11.1",
        run: oracle::oracle,
        ahead: None,
    },
];

/// The modules of tests of ops that have kernels for processors.
const PROCESSOR_OPS: &[&str] = &[
    "matmul::",
    "quantized_device::",
    "reduce::",
    "attention",
    "linear",
    "norms::",
    "softmax::",
];

/// What a browser's limits leave as it is: tests that take features away, which are away already, and whole models whose kernels other tests
/// run with these limits, and the step `web` in browsers.
const SAME_FOR_BROWSERS: &[&str] = &[
    "regimes::without_",
    "golden::greedy_tokens",
    "golden::cache_gives_the_same_logits",
    "gguf::unquantised",
    "parts::",
    "bench::demo_shape",
];

pub const WEBGPU: &str =
    "--features candle-core/webgpu,candle-nn/webgpu,candle-transformers/webgpu";

fn fmt() -> Result<String, String> {
    cmd("cargo fmt --all --check").run()?;
    Ok(String::new())
}

fn deps() -> Result<String, String> {
    let mut found = Vec::new();
    let tree = cmd("cargo tree -p candle-core -e normal --prefix none");
    tree.run_lines(|line| {
        if line.starts_with("wgpu") {
            found.push(line.to_string());
        }
    })?;
    if found.is_empty() {
        Ok(String::new())
    } else {
        Err(format!(
            "{tree}\n  lists {}; wgpu may come in with the `webgpu` feature alone",
            found.join(", ")
        ))
    }
}

fn clippy() -> Result<String, String> {
    cmd(&format!(
        "cargo clippy --workspace --all-targets {WEBGPU} -- -D warnings"
    ))
    .run()?;
    cmd(
        "cargo clippy -p candle-core -p candle-nn -p candle-transformers -p candle-dvm \
         --no-default-features --all-targets -- -D warnings",
    )
    .run()?;
    Ok(String::new())
}

/// Software drivers would get the kernels for processors. The tests take those that GPUs get, here and in the steps that follow.
const FOR_GPUS: (&str, &str) = ("CANDLE_WEBGPU_FEATURES", "-processor");

fn test() -> Result<String, String> {
    run_tests("--workspace", &[FOR_GPUS])
}

fn processor_test() -> Result<String, String> {
    let ops = run_tests(&processor_ops(), &[])?;
    let models = run_tests("--workspace --test transformers --test dvm webgpu", &[])?;
    Ok(format!("ops {ops}; models {models}"))
}

/// The ops that have kernels for processors.
fn processor_ops() -> String {
    format!(
        "--workspace --test core --test nn -- --skip ::cpu {}",
        PROCESSOR_OPS.join(" ")
    )
}

/// The tests once more without f16, subgroups and large limits: the same binaries, the tests that run on WebGPU; then the ops that
/// have kernels for processors with those.
fn browser_test() -> Result<String, String> {
    let shaders = chrome::shaders();
    // Those of an earlier run may be no kernel's any more.
    let _ = std::fs::remove_dir_all(&shaders);
    let shaders = shaders.display().to_string();
    let limits = ("CANDLE_WEBGPU_LIMITS", "browser");
    let dump = ("CANDLE_WEBGPU_DUMP_SHADERS", shaders.as_str());
    let skip = format!(
        "--workspace --tests webgpu -- --skip {}",
        SAME_FOR_BROWSERS.join(" --skip ")
    );
    let gpu = run_tests(&skip, &[limits, dump, FOR_GPUS])?;
    let processor = run_tests(&processor_ops(), &[limits, dump])?;
    Ok(format!("{gpu}; for processors {processor}"))
}

/// The tests of candle-core with bindings and buffers so small that nearly everything is split.
fn tiny_test() -> Result<String, String> {
    // Its images are made for columns of 64 MiB: thousands of windows, and rows that are past one.
    let tests = "--workspace --test core webgpu -- --skip convolutions_in_pieces";
    run_tests(tests, &[("CANDLE_WEBGPU_LIMITS", "tiny"), FOR_GPUS])
}

fn run_tests(args: &str, env: &[(&str, &str)]) -> Result<String, String> {
    // Shaders check their bounds in tests; outside they rely on ours.
    let line = format!("cargo test --no-fail-fast {WEBGPU} {args}");
    let mut tests = cmd(&line).env("CANDLE_WEBGPU_CHECKS", "1");
    for (name, value) in env {
        tests = tests.env(name, value.to_string());
    }
    // Mesa looks for a Wayland socket there and complains when the variable is not set.
    let runtime_dir = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(_) => None,
        None => Some(EmptyDir::new()?),
    };
    if let Some(dir) = &runtime_dir {
        tests = tests.env("XDG_RUNTIME_DIR", dir.0.display().to_string());
    }
    let mut tally = Tally::default();
    let result = tests.run_lines(|line| {
        println!("{line}");
        tally.add(line);
    });
    // One line for the whole run; cargo closes each test binary with its own.
    println!("tests: {} passed, {} failed", tally.passed, tally.failed);
    result?;
    if tally.webgpu == 0 {
        return Err(format!("{tests}\n  ran no test on WebGPU"));
    }
    Ok(format!(
        "{} passed, {} of them on WebGPU",
        tally.passed, tally.webgpu
    ))
}

fn doc() -> Result<String, String> {
    cmd(&format!("cargo doc --workspace --no-deps {WEBGPU}"))
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Ok(String::new())
}

/// A folder with nothing in it that goes away with the value.
pub struct EmptyDir(pub PathBuf);

impl EmptyDir {
    pub fn new() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("candle-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|err| format!("cannot make {}: {err}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for EmptyDir {
    fn drop(&mut self) {
        // What is left behind in the temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the test harness said, summed over every test binary.
#[derive(Debug, Default, PartialEq)]
pub struct Tally {
    pub passed: usize,
    failed: usize,
    /// Of `passed`, those whose name says that they ran on WebGPU.
    webgpu: usize,
}

impl Tally {
    /// Reads `test result: ok. 3 passed; 0 failed; …` and `test add::webgpu ... ok`.
    pub fn add(&mut self, line: &str) {
        if let Some((_, counts)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        {
            for part in counts.split("; ") {
                match part.split_once(' ') {
                    Some((n, "passed")) => self.passed += n.parse().unwrap_or(0),
                    Some((n, "failed")) => self.failed += n.parse().unwrap_or(0),
                    _ => {}
                }
            }
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... ok"))
        {
            self.webgpu += usize::from(name.ends_with("webgpu"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tally_sums_over_test_binaries() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test matmul::cpu ... ok",
            "test matmul::webgpu ... ok",
            "test softmax::webgpu ... FAILED",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ] {
            tally.add(line);
        }
        let expected = Tally {
            passed: 7,
            failed: 1,
            webgpu: 1,
        };
        assert_eq!(tally, expected);
    }

    #[test]
    fn every_step_has_a_name_of_its_own() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name));
        }
    }

    #[test]
    fn an_empty_dir_is_made_and_goes_away() {
        let dir = EmptyDir::new().unwrap();
        let path = dir.0.clone();
        assert!(path.is_dir());
        drop(dir);
        assert!(!path.exists());
    }
}
