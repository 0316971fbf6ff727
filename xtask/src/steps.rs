//! What `cargo xtask test` does, in order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::auth;
use crate::chrome;
use crate::command::cmd;
use crate::cross;
use crate::cuda;
use crate::emulated;
use crate::examples;
use crate::fuzz;
use crate::metal;
use crate::nostr;
use crate::openai;
use crate::oracle;
use crate::setup;
use crate::shaders;
use crate::upstream;
use crate::wasi;
use crate::web;
use crate::weights;
use crate::words;

/// Which runs have a step.
#[derive(Clone, Copy, PartialEq)]
pub enum When {
    /// Every run: what shows each feature once.
    Default,
    /// `--all`: the same once more under other limits, in other browsers, on other systems, or for longer.
    All,
}

/// One named part of `cargo xtask test`.
pub struct Step {
    pub name: &'static str,
    pub title: &'static str,
    pub when: When,
    /// `Ok` holds a note for the summary, `Err` the command that failed or what is missing.
    pub run: fn() -> Result<String, String>,
    /// What of it can be done beside the steps before it: builds that no other step uses. `run` does not need it.
    pub ahead: Option<fn() -> Result<(), String>>,
}

/// Cheap steps come first, so that a slip is found before the long ones.
pub const STEPS: &[Step] = &[
    Step {
        name: "setup",
        title: "setup: a Vulkan driver, rustfmt and clippy are there",
        when: When::Default,
        run: setup::setup,
        ahead: None,
    },
    Step {
        name: "fmt",
        title: "rustfmt finds nothing to change, and texts keep to the trade's words",
        when: When::Default,
        run: fmt,
        ahead: None,
    },
    Step {
        name: "deps",
        title: "candle-core's default build pulls in no wgpu and no cudarc, and no more packages than it did",
        when: When::Default,
        run: deps,
        ahead: None,
    },
    Step {
        name: "clippy",
        title: "clippy is silent, with WebGPU and without",
        when: When::Default,
        run: clippy,
        ahead: None,
    },
    Step {
        name: "doc",
        title: "the documentation builds without a warning",
        when: When::Default,
        run: doc,
        ahead: None,
    },
    Step {
        name: "test",
        title: "all tests but those on CUDA, on the CPU and on WebGPU",
        when: When::Default,
        run: test,
        ahead: None,
    },
    Step {
        name: "metal",
        title: "Device::Metal, on a Mac's adapter or on what stands in for it",
        when: When::Default,
        run: metal::metal,
        ahead: None,
    },
    Step {
        name: "cuda",
        title: "tensors and layers on CUDA, on a card or on an emulator, with NVIDIA's compiler beside it",
        when: When::Default,
        run: cuda::cuda,
        ahead: None,
    },
    Step {
        name: "shaders",
        title: "naga translates every shader of the step `test` for Metal and DX12",
        when: When::Default,
        run: shaders::shaders,
        ahead: None,
    },
    Step {
        name: "examples",
        title: "the examples run, on the CPU and on WebGPU",
        when: When::Default,
        run: examples::examples,
        ahead: None,
    },
    Step {
        name: "cross",
        title: "all packages compile for macOS and Windows",
        when: When::Default,
        run: cross::cross,
        ahead: None,
    },
    Step {
        name: "web",
        title: "the pages work in headless Chromium: every op on WebGPU, models on WebGPU and on the CPU",
        when: When::Default,
        run: web::web,
        ahead: Some(web::ahead),
    },
    Step {
        name: "wasi",
        title: "WebAssembly guests train forests by wasi:gpu as scikit-learn does; hostile ones get nowhere",
        when: When::Default,
        run: wasi::wasi,
        ahead: Some(wasi::ahead),
    },
    Step {
        name: "oracle",
        title: "ops and models agree with crates.io's candle 0.11.1",
        when: When::Default,
        run: oracle::oracle,
        ahead: None,
    },
    Step {
        name: "upstream",
        title: "Candle's own tests pass, on the CPU and on WebGPU",
        when: When::Default,
        run: upstream::upstream,
        ahead: None,
    },
    Step {
        name: "nostr",
        title: "jobs over relays and with customers that nobody here wrote; 200 jobs, 20 kills",
        when: When::Default,
        run: nostr::nostr,
        ahead: None,
    },
    Step {
        name: "fuzz",
        title: "the fuzz targets of files and events find nothing in a short run",
        when: When::Default,
        run: fuzz::fuzz,
        ahead: Some(fuzz::ahead),
    },
    Step {
        name: "msrv",
        title: "all packages compile with the oldest Rust that the manifest names",
        when: When::All,
        run: msrv,
        ahead: None,
    },
    Step {
        name: "browser",
        title: "the WebGPU tests, with no more than every browser gives",
        when: When::All,
        run: browser_test,
        ahead: None,
    },
    Step {
        name: "chrome",
        title: "Chromium's compiler takes every shader of the step `browser`",
        when: When::All,
        run: chrome::chrome,
        ahead: None,
    },
    Step {
        name: "firefox",
        title: "the pages work in headless Firefox",
        when: When::All,
        run: web::firefox,
        ahead: Some(web::ahead),
    },
    Step {
        name: "tiny",
        title: "candle-core's WebGPU tests, with 16 KiB in a binding: nearly every op is split",
        when: When::All,
        run: tiny_test,
        ahead: None,
    },
    Step {
        name: "cuda-long",
        title: "models on CUDA as well; NVRTC takes every kernel for each generation of cards",
        when: When::All,
        run: cuda::long,
        ahead: None,
    },
    Step {
        name: "oracle-long",
        title: "ops agree with crates.io's candle 0.11.1, in four times as many cases",
        when: When::All,
        run: oracle::long,
        ahead: None,
    },
    Step {
        name: "fuzz-long",
        title: "the fuzz targets find nothing in a minute each",
        when: When::All,
        run: fuzz::long,
        ahead: Some(fuzz::ahead),
    },
    Step {
        name: "auth",
        title: "jobs over nostr-rs-relay, which takes events only of those who have said who they are",
        when: When::All,
        run: auth::auth,
        ahead: Some(auth::ahead),
    },
    Step {
        name: "weights",
        title: "trained models answer, hear and see as they do elsewhere, through `candle-dvm` and the example `classify`, on the CPU and on WebGPU",
        when: When::All,
        run: weights::weights,
        ahead: None,
    },
    Step {
        name: "openai",
        title: "OpenAI's packages of Python and JavaScript are answered by `candle-dvm api`, on the CPU and on WebGPU",
        when: When::All,
        run: openai::openai,
        ahead: None,
    },
    Step {
        name: "emulated",
        title: "the CPU backend on AArch64 and on x86-64 without AVX in an emulator, and in WebAssembly",
        when: When::All,
        run: emulated::emulated,
        ahead: None,
    },
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

/// The GPU backends. CUDA needs nothing of CUDA to build, so it is built on every machine.
pub const BACKENDS: &str =
    "--features candle-core/webgpu,candle-nn/webgpu,candle-transformers/webgpu,\
                            candle-core/cuda,candle-nn/cuda,candle-transformers/cuda";

fn fmt() -> Result<String, String> {
    cmd("cargo fmt --all --check").run()?;
    words::check(Path::new("."))
}

/// The packages of candle-core's default build on Linux, candle-core among them: an upper bound.
const MOST_PACKAGES: usize = 118;

fn deps() -> Result<String, String> {
    // For one target, so that the number is the same on every machine.
    let tree = cmd("cargo tree -p candle-core -e normal --prefix none --no-dedupe --target x86_64-unknown-linux-gnu");
    let mut packages = BTreeSet::new();
    tree.run_lines(|line| {
        packages.insert(line.to_string());
    })?;
    for (start, feature) in [("wgpu", "webgpu"), ("cudarc", "cuda")] {
        let found: Vec<&str> = packages
            .iter()
            .filter(|line| line.starts_with(start))
            .map(String::as_str)
            .collect();
        if !found.is_empty() {
            return Err(format!(
                "{tree}\n  lists {}; {start} may come in with the feature `{feature}` alone",
                found.join(", ")
            ));
        }
    }
    match packages.len() {
        count if count > MOST_PACKAGES => Err(format!(
            "{tree}\n  lists {count} packages, at most {MOST_PACKAGES} are allowed; make the new dependency optional, or raise \
             MOST_PACKAGES in xtask/src/steps.rs and say why"
        )),
        count => Ok(format!("{count} packages")),
    }
}

fn clippy() -> Result<String, String> {
    cmd(&format!(
        "cargo clippy --workspace --all-targets {BACKENDS} -- -D warnings"
    ))
    .run()?;
    // Apart: candle-dvm turns candle-core's tokenizers on, and takes few models.
    for packages in [
        "-p candle-core -p candle-nn -p candle-transformers --features candle-transformers/diffusion,candle-transformers/sound",
        "-p candle-dvm",
    ] {
        cmd(&format!(
            "cargo clippy {packages} --no-default-features --all-targets -- -D warnings"
        ))
        .run()?;
    }
    Ok(String::new())
}

fn test() -> Result<String, String> {
    let shaders = shaders::folder();
    dumping(&shaders, "--workspace -- --skip ::cuda", &[])
}

/// The tests once more without f16, subgroups and large limits: the same binaries, the tests that run on WebGPU.
fn browser_test() -> Result<String, String> {
    let skip = format!(
        "--workspace --tests webgpu -- --skip {}",
        SAME_FOR_BROWSERS.join(" --skip ")
    );
    dumping(
        &chrome::shaders(),
        &skip,
        &[("CANDLE_WEBGPU_LIMITS", "browser")],
    )
}

/// Runs tests that leave their shaders in a folder.
fn dumping(folder: &Path, args: &str, env: &[(&str, &str)]) -> Result<String, String> {
    // Those of an earlier run may be no kernel's any more.
    let _ = std::fs::remove_dir_all(folder);
    let folder = folder.display().to_string();
    let mut env = env.to_vec();
    env.push(("CANDLE_WEBGPU_DUMP_SHADERS", folder.as_str()));
    run_tests(args, &env)
}

/// The tests of candle-core with bindings and buffers so small that nearly everything is split.
fn tiny_test() -> Result<String, String> {
    // Its images are made for columns of 64 MiB: thousands of windows, and rows that are past one.
    let tests = "--workspace --test core webgpu -- --skip convolutions_in_pieces";
    run_tests(tests, &[("CANDLE_WEBGPU_LIMITS", "tiny")])
}

/// Runs tests with the features of WebGPU and CUDA, and counts them.
fn run_tests(args: &str, env: &[(&str, &str)]) -> Result<String, String> {
    tests_on("WebGPU", &format!("{BACKENDS} {args}"), env)
}

/// Runs tests with these arguments and counts them; some have to be on this backend.
pub fn tests_on(backend: &str, args: &str, env: &[(&str, &str)]) -> Result<String, String> {
    // Shaders check their bounds in tests; outside they rely on ours.
    let line = format!("cargo test --no-fail-fast {args}");
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
    let on_gpu = match backend {
        "CUDA" => tally.cuda,
        "Metal" => tally.metal,
        _ => tally.webgpu,
    };
    if on_gpu == 0 {
        return Err(format!("{tests}\n  ran no test on {backend}"));
    }
    Ok(format!(
        "{} passed, {on_gpu} of them on {backend}",
        tally.passed
    ))
}

fn doc() -> Result<String, String> {
    cmd(&format!("cargo doc --workspace --no-deps {BACKENDS}"))
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Ok(String::new())
}

/// Checks the workspace with the compiler that `rust-version` in Cargo.toml names.
fn msrv() -> Result<String, String> {
    let metadata = cmd("cargo metadata --no-deps --format-version 1");
    let text = metadata
        .stdout()
        .ok_or_else(|| format!("{metadata}\n  failed"))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).map_err(|err| format!("cargo metadata: {err}"))?;
    let version = metadata["packages"][0]["rust_version"].as_str();
    let version = version.ok_or("Cargo.toml names no rust-version")?;
    if !cmd(&format!("rustup run {version} rustc --version")).succeeds() {
        let install = format!("rustup toolchain install {version} --profile minimal");
        if !setup::may_change_machine() {
            return Err(format!("missing Rust {version}: `{install}` brings it"));
        }
        cmd(&install).run()?;
    }
    // Not `cargo`: that would be the one that started us.
    cmd(&format!(
        "rustup run {version} cargo check --workspace --locked {BACKENDS}"
    ))
    .run()?;
    Ok(format!("Rust {version}"))
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
    pub webgpu: usize,
    /// The same on CUDA.
    pub cuda: usize,
    /// The same on Metal.
    metal: usize,
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
            self.cuda += usize::from(name.ends_with("::cuda"));
            self.metal += usize::from(name.ends_with("::metal"));
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
            "test matmul::metal ... ok",
            "test softmax::webgpu ... FAILED",
            "test softmax::cuda ... ok",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ] {
            tally.add(line);
        }
        let expected = Tally {
            passed: 8,
            failed: 1,
            webgpu: 1,
            cuda: 1,
            metal: 1,
        };
        assert_eq!(tally, expected);
    }

    #[test]
    fn every_step_has_a_name_of_its_own() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name));
        }
    }

    /// The steps that a workflow names.
    fn in_workflow(text: &str) -> Vec<&str> {
        let lists = text.lines().filter_map(|line| {
            let (_, list) = line.split_once("steps: ").or(line.split_once("--only "))?;
            (!list.starts_with("${{")).then_some(list)
        });
        lists.flat_map(|list| list.trim().split(',')).collect()
    }

    #[test]
    fn ci_runs_each_step_of_the_default_run() {
        let named = in_workflow(include_str!("../../.github/workflows/ci.yml"));
        for name in &named {
            assert!(STEPS.iter().any(|step| step.name == *name), "{name}");
        }
        for step in STEPS.iter().filter(|step| step.when == When::Default) {
            assert!(named.contains(&step.name), "{}", step.name);
        }
        let nightly = include_str!("../../.github/workflows/nightly.yml");
        assert!(nightly.contains("cargo xtask test --all"));
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
