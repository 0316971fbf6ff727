//! The CPU backend on processors that this machine need not have: AArch64 and x86-64 without AVX in an emulator, WebAssembly in Node.

use std::path::Path;

use crate::command::{cmd, Cmd};
use crate::install;
use crate::targets::{self, compiles_for};
use crate::testing::{self, BACKENDS};

const AARCH64: &str = "aarch64-unknown-linux-gnu";
const X86_64: &str = "x86_64-unknown-linux-gnu";
const WASI: &str = "wasm32-wasip1";
/// Build output for AArch64, whose compiler may differ.
const OUT: &str = "target/aarch64";

/// Tests that start their own program again, which only the emulator could.
const START_THEMSELVES: &[&str] = &[
    "gradients_of_gradients_by_environment",
    "errors_have_a_backtrace_where_the_environment_asks_for_one",
    "dense_weights_on_demand",
];

/// Runs candle-core's tests, those of its vector instructions among them, and the models' on AArch64; then candle-core's of the CPU, as
/// `cargo xtask test` builds them, on an x86-64 from before AVX; then those of its vectors and of the CPU's ops in WebAssembly with simd128,
/// which has 32 bits as well. Compiler, linker and emulator are installed where that is possible.
///
/// Not in the default run, for the time it takes. qemu-user 7.2 lets a load-acquire overtake the store-release before it; `BarrierPool` uses
/// swaps where that matters.
pub fn emulated() -> Result<String, String> {
    if cfg!(target_arch = "aarch64") {
        return Err("this machine is an AArch64: the step `test` tests it as it is".to_string());
    }
    let skipped = START_THEMSELVES.join(" --skip ");
    let arm = run(&on_aarch64(&format!("--no-fail-fast -- --skip {skipped}"))?)?;
    let old = run(&without_avx(&format!(
        "--no-fail-fast -- cpu quantized --skip webgpu --skip {skipped}"
    ))?)?;
    let wasm = run(&in_webassembly("-- k_quants ::cpu")?)?;
    Ok(format!(
        "{arm} passed on AArch64, {old} on x86-64 without AVX, {wasm} in WebAssembly"
    ))
}

/// Runs the tests; returns the number that passed.
fn run(tests: &Cmd) -> Result<usize, String> {
    Ok(testing::tally(tests, "emulated")?.passed)
}

fn on_aarch64(args: &str) -> Result<Cmd, String> {
    let rustc = install::found(
        &format!("a Rust compiler for AArch64 (with rustup: `rustup target add {AARCH64}`)"),
        "rustc-web libstd-rust-web-dev:arm64",
        compiler,
    )?;
    let linker = install::program(
        "a linker for AArch64",
        &["aarch64-linux-gnu-gcc"],
        "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    )?;
    let emulator = emulator(&["qemu-aarch64", "qemu-aarch64-static"])?;
    let tests = format!(
        "cargo test -p candle-core -p candle-transformers --lib --test core --test transformers \
         --target {AARCH64} {args}"
    );
    Ok(cmd(&tests)
        .env("RUSTC", rustc)
        .env("CARGO_TARGET_DIR", OUT)
        .env(&cargos("LINKER", AARCH64), linker)
        .env(&cargos("RUNNER", AARCH64), emulator))
}

fn without_avx(args: &str) -> Result<Cmd, String> {
    let emulator = emulator(&["qemu-x86_64", "qemu-x86_64-static"])?;
    let tests = format!("cargo test --workspace {BACKENDS} --lib --test core {args}");
    Ok(cmd(&tests).env(
        &cargos("RUNNER", X86_64),
        format!("{emulator} -cpu Nehalem"),
    ))
}

/// A panic ends the program there, and with it all tests that were to come.
fn in_webassembly(args: &str) -> Result<Cmd, String> {
    targets::add(WASI)?;
    let node = install::program("Node", &["node"], "nodejs")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/steps/wasi.mjs");
    let tests = format!("cargo test -p candle-core --lib --test core --target {WASI} {args}");
    Ok(cmd(&tests)
        .env(&cargos("RUSTFLAGS", WASI), "-Ctarget-feature=+simd128")
        .env(
            &cargos("RUNNER", WASI),
            format!("{node} --no-warnings {}", script.display()),
        ))
}

/// The compiler in use, or else Debian's, if it has a standard library for AArch64.
fn compiler() -> Option<&'static str> {
    let mut compilers = ["rustc", "/usr/bin/rustc"].into_iter();
    compilers.find(|rustc| compiles_for(rustc, AARCH64))
}

fn emulator(names: &[&'static str]) -> Result<&'static str, String> {
    install::program("an emulator of other processors", names, "qemu-user-static")
}

/// The environment variable for cargo's setting `what` of a target.
fn cargos(what: &str, target: &str) -> String {
    let target = target.to_uppercase().replace('-', "_");
    format!("CARGO_TARGET_{target}_{what}")
}
