//! The checks of the Rust toolchain: format, lints, documentation, dependencies, the oldest compiler.

use std::collections::BTreeSet;
use std::path::Path;

use super::words;
use crate::command::cmd;
use crate::install;
use crate::testing::BACKENDS;

pub fn fmt() -> Result<String, String> {
    cmd("cargo fmt --all --check").run()?;
    words::check(Path::new("."))
}

/// The packages of candle-core's default build on Linux, candle-core among them: an upper bound.
const MOST_PACKAGES: usize = 118;

pub fn deps() -> Result<String, String> {
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
             MOST_PACKAGES in xtask/src/steps/rust.rs and say why"
        )),
        count => Ok(format!("{count} packages")),
    }
}

/// The lints over everything with all backends.
pub fn clippy() -> Result<String, String> {
    cmd(&format!(
        "cargo clippy --workspace --all-targets {BACKENDS} -- -D warnings"
    ))
    .run()?;
    Ok(String::new())
}

/// The lints over all targets without any feature.
pub fn clippy_long() -> Result<String, String> {
    // Separately: candle-dvm enables candle-core's tokenizers, and uses few models.
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

pub fn doc() -> Result<String, String> {
    cmd(&format!("cargo doc --workspace --no-deps {BACKENDS}"))
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Ok(String::new())
}

/// Checks the workspace with the compiler that `rust-version` in Cargo.toml names.
pub fn msrv() -> Result<String, String> {
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
        if !install::may_change_machine() {
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
