//! Ours held against crates.io's candle, in packages outside the workspace with lockfiles of their own.

use std::path::PathBuf;

use crate::command::{cmd, Cmd};
use crate::steps::{EmptyDir, Tally};

/// Cases of a family of ops in the default run.
const CASES: &str = "64";
const PACKAGES: [&str; 5] = [
    "ops",
    "models/upstream",
    "models/ours",
    "families/upstream",
    "families/ours",
];

/// Op by op, and through crates.io's unmodified `candle-transformers`.
pub fn oracle() -> Result<String, String> {
    for package in PACKAGES {
        cargo("fmt", package, "--check")?.run()?;
    }
    only_core_and_nn_are_patched()?;
    let families = ops(Some(CASES))?;
    models("models")?;
    models("families")?;
    Ok(format!(
        "{families} families of ops agree in {CASES} cases each; crates.io's models over ours, and our own, on the CPU and on WebGPU"
    ))
}

/// Op by op, with all cases.
pub fn long() -> Result<String, String> {
    let families = ops(None)?;
    Ok(format!("{families} families agree"))
}

/// Where the workspace is built: packages outside it that are built there too share its third-party crates.
pub fn target_dir() -> Result<String, String> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from("target"),
    };
    std::path::absolute(&target)
        .map(|path| path.display().to_string())
        .map_err(|err| format!("{}: {err}", target.display()))
}

fn cargo(words: &str, package: &str, args: &str) -> Result<Cmd, String> {
    let manifest = format!("--manifest-path candle-core/oracle/{package}/Cargo.toml");
    Ok(cmd(&format!("cargo {words} {manifest} {args}")).env("CARGO_TARGET_DIR", target_dir()?))
}

/// A patch that fits no requirement is a warning alone, and then upstream would be compared with itself.
fn only_core_and_nn_are_patched() -> Result<(), String> {
    let tree = cargo("tree --locked --prefix none", "models/ours", "")?;
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
    Ok(())
}

/// How many families of ops agree, in `cases` or else in as many as they have by default.
fn ops(cases: Option<&str>) -> Result<usize, String> {
    let mut tests = cargo("test --locked --no-fail-fast", "ops", "")?;
    // Who asks for another number gets it.
    if let (Some(cases), None) = (cases, std::env::var_os("ORACLE_CASES")) {
        tests = tests.env("ORACLE_CASES", cases);
    }
    let mut tally = Tally::default();
    tests.run_lines(|line| {
        println!("{line}");
        tally.add(line);
    })?;
    match tally.passed {
        0 => Err(format!("{tests}\n  ran no test")),
        passed => Ok(passed),
    }
}

/// The programs in a folder: upstream's writes what its models return, ours compares.
fn models(programs: &str) -> Result<(), String> {
    let outputs = EmptyDir::new()?;
    let folder = outputs.0.display();
    cargo(
        "run --locked",
        &format!("{programs}/upstream"),
        &format!("-- {folder}"),
    )?
    .run()?;
    for how in ["--compare", "--webgpu"] {
        let run = cargo(
            "run --locked",
            &format!("{programs}/ours"),
            &format!("-- {folder} {how}"),
        )?;
        let mut run = run.env("CANDLE_WEBGPU_CHECKS", "1");
        // As in `run_tests`; any folder will do.
        if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
            run = run.env("XDG_RUNTIME_DIR", folder.to_string());
        }
        run.run()?;
    }
    Ok(())
}
