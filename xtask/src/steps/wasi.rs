//! Guests in WebAssembly that compute on the host's devices, and the host that runs them: a workspace apart, because wasmtime wants a newer
//! compiler than Candle's users have to have.

use std::path::Path;

use super::cuda;
use crate::command::{cmd, Cmd};
use crate::files::{self, EmptyDir};
use crate::install;
use crate::targets;
use crate::testing;

const HOST: &str = "candle-wasm-examples/wasi-gpu";
const GUESTS: &str = "candle-wasm-examples/wasi-gpu/guests";
/// Build output; separate from the workspace, whose profiles differ.
const TARGET: &str = "target/wasi";
/// The folder in which the host's tests find the guests.
const BUILT: &str = "target/wasi/guests";

/// Targets, the packages that are built for each, and their files. Libraries do without WASI.
const RUST: [(&str, &str, &[&str]); 2] = [
    (
        "wasm32-unknown-unknown",
        "-p wasi-gpu-forest -p wasi-gpu-seed-rust",
        &["forest", "seed_rust"],
    ),
    (
        "wasm32-wasip2",
        "-p wasi-gpu-forest-cli -p wasi-gpu-hostile -p wasi-gpu-language -p wasi-gpu-timings",
        &["forest-cli", "hostile", "language", "timings"],
    ),
];

/// Debian's names; the linker and the libc are rustup's.
const CLANG: &str =
    "clang-19 wasi-libc libc++-19-dev-wasm32 libc++abi-19-dev-wasm32 libclang-rt-19-dev-wasm32";

/// Flags of a browser's module: random numbers come from the browser.
const BROWSER: &str = r#"--cfg getrandom_backend="wasm_js""#;

/// The guests, and what runs them.
pub fn ahead() -> Result<(), String> {
    guests()?;
    tests("--no-run")?.run()
}

/// Guests train forests on the CPU and on WebGPU as scikit-learn does, and hostile ones get nowhere. The kernels run on CUDA as well, on a
/// card or on the emulator, and compile for browsers.
pub fn wasi() -> Result<String, String> {
    for workspace in [HOST, GUESTS] {
        cargo("fmt", workspace, "--all --check")?.run()?;
    }
    guests()?;
    cargo(
        "clippy",
        HOST,
        "--workspace --all-targets --features webgpu,llm -- -D warnings",
    )?
    .run()?;
    in_a_browser()?;
    // Mesa says so on standard error, which the tests of the program read, where there is no folder for a Wayland socket.
    let runtime_dir = EmptyDir::new()?;
    let run = tests("--no-fail-fast -- --skip ::cuda")?
        .env("XDG_RUNTIME_DIR", runtime_dir.0.display().to_string());
    let tally = testing::tally(&run, "wasi")?;
    match (tally.passed, tally.webgpu) {
        (_, 0) => Err(format!("{run}\n  ran no test on WebGPU")),
        (passed, webgpu) => Ok(format!(
            "{passed} passed, {webgpu} of them on WebGPU; {}",
            on_cuda()?
        )),
    }
}

/// The kernels' tests on CUDA. The build is that of the other tests.
fn on_cuda() -> Result<String, String> {
    let (env, place) = cuda::environment()?;
    let mut run = tests("--test kernels --no-fail-fast -- ::cuda")?;
    for (name, value) in env {
        run = run.env(&name, value);
    }
    match testing::tally(&run, "wasi")?.cuda {
        0 => Err(format!("{run}\n  ran no test on CUDA")),
        passed => Ok(format!("{passed} kernels' tests on CUDA, {place}")),
    }
}

/// The kernels compile for a page.
fn in_a_browser() -> Result<(), String> {
    const TARGET: &str = "wasm32-unknown-unknown";
    targets::add(TARGET)?;
    let args = format!("--target {TARGET} -p candle-wasi-gpu --features webgpu");
    cargo("check", HOST, &args)?
        .env("RUSTFLAGS", BROWSER.to_string())
        .run()
}

fn cargo(command: &str, workspace: &str, args: &str) -> Result<Cmd, String> {
    let line = format!("cargo {command} --manifest-path {workspace}/Cargo.toml {args}");
    Ok(cmd(&line).env("CARGO_TARGET_DIR", absolute(TARGET)?))
}

fn tests(args: &str) -> Result<Cmd, String> {
    let tests = cargo(
        "test",
        HOST,
        &format!("--workspace --features webgpu,llm {args}"),
    )?;
    Ok(tests
        .env("CANDLE_WEBGPU_CHECKS", "1")
        .env("WASI_GPU_GUESTS", absolute(BUILT)?))
}

fn absolute(path: &str) -> Result<String, String> {
    Ok(files::absolute(path)?.display().to_string())
}

/// Every guest, in one folder.
fn guests() -> Result<(), String> {
    let failed = |err: std::io::Error| format!("{BUILT}: {err}");
    std::fs::create_dir_all(BUILT).map_err(failed)?;
    for (target, packages, files) in RUST {
        targets::add(target)?;
        // Cargo reads a folder's configuration only where it is started there.
        let args =
            format!("--release --config {GUESTS}/.cargo/config.toml --target {target} {packages}");
        cargo("build", GUESTS, &args)?.run()?;
        for file in files {
            let name = format!("{file}.wasm");
            let built = Path::new(TARGET).join(target).join("release").join(&name);
            std::fs::copy(&built, Path::new(BUILT).join(name))
                .map_err(|err| format!("{}: {err}", built.display()))?;
        }
    }
    let clang = install::program(
        "clang 19 with its WebAssembly libraries",
        &["clang++-19"],
        CLANG,
    )?;
    cmd(&format!("sh {GUESTS}/build-cpp.sh {BUILT}"))
        .env("CLANG", clang)
        .run()
}
