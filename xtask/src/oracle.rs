//! Ours held against crates.io's candle, in packages outside the workspace with lockfiles of their own.

use std::path::PathBuf;

use crate::command::cmd;
use crate::steps::{EmptyDir, Tally};

/// Op by op, and through crates.io's unmodified `candle-transformers`.
pub fn oracle() -> Result<String, String> {
    // Next to our own builds, which share the third-party crates.
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from("target"),
    };
    let target =
        std::path::absolute(&target).map_err(|err| format!("{}: {err}", target.display()))?;
    let cargo = |words: &str, package: &str, args: &str| {
        let manifest = format!("--manifest-path candle-core/oracle/{package}/Cargo.toml");
        cmd(&format!("cargo {words} {manifest} {args}"))
            .env("CARGO_TARGET_DIR", target.display().to_string())
    };
    let packages = ["ops", "models/upstream", "models/ours"];
    for package in packages {
        cargo("fmt", package, "--check").run()?;
    }
    // A patch that fits no requirement is a warning alone, and then upstream would be compared with itself.
    let tree = cargo("tree --locked --prefix none", "models/ours", "");
    let mut patched = Vec::new();
    tree.run_lines(|line| {
        let mut words = line.split(' ');
        if let (Some(name @ ("candle-core" | "candle-nn" | "candle-transformers")), Some(_), from) =
            (words.next(), words.next(), words.next())
        {
            // A path follows the version, unless the package is from crates.io; `(*)` is one seen before.
            if from.is_some_and(|from| from != "(*)") {
                patched.push(name.to_string());
            }
        }
    })?;
    patched.sort();
    patched.dedup();
    if patched != ["candle-core", "candle-nn"] {
        return Err(format!(
            "{tree}\n  takes {patched:?} from here, not candle-core and candle-nn alone"
        ));
    }
    let mut tally = Tally::default();
    let tests = cargo("test --locked --no-fail-fast", "ops", "");
    tests.run_lines(|line| {
        println!("{line}");
        tally.add(line);
    })?;
    let outputs = EmptyDir::new()?;
    let folder = outputs.0.display();
    cargo("run --locked", "models/upstream", &format!("-- {folder}")).run()?;
    for how in ["--compare", "--webgpu"] {
        let run = cargo("run --locked", "models/ours", &format!("-- {folder} {how}"));
        let mut run = run.env("CANDLE_WEBGPU_CHECKS", "1");
        // As in `run_tests`; any folder will do.
        if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
            run = run.env("XDG_RUNTIME_DIR", folder.to_string());
        }
        run.run()?;
    }
    Ok(format!(
        "{} families agree, and all models on the CPU and on WebGPU",
        tally.passed
    ))
}
