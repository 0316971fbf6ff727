//! Compares this workspace with crates.io's candle, in packages outside the workspace with separate lockfiles.

use crate::command::{cmd, Cmd};
use crate::files::{built_for_oracle, oracle_target_dir, EmptyDir};
use crate::testing::{self, with_runtime_dir};

/// Cases of a family of ops, unless all run.
const CASES: &str = "64";
const PACKAGES: [&str; 5] = [
    "ops",
    "models/upstream",
    "models/ours",
    "families/upstream",
    "families/ours",
];

/// Op by op, and through crates.io's unmodified `candle-transformers`, on the CPU. The step `test` holds WebGPU against the CPU, with the
/// same families of models.
pub fn oracle() -> Result<String, String> {
    for package in PACKAGES {
        cargo("fmt", package, "--check")?.run()?;
    }
    only_core_and_nn_are_patched()?;
    let families = ops(Some(CASES))?;
    for programs in ["models", "families"] {
        models(programs, &["--compare"])?;
    }
    Ok(format!(
        "{families} families of ops agree in {CASES} cases each; crates.io's models over ours, and our own, on the CPU"
    ))
}

/// Op by op with all cases, and all models on WebGPU too.
pub fn long() -> Result<String, String> {
    let families = ops(None)?;
    for programs in ["models", "families"] {
        models(programs, &["--compare", "--webgpu"])?;
    }
    Ok(format!(
        "{families} families of ops agree; the models on the CPU and on WebGPU"
    ))
}

fn cargo(words: &str, package: &str, args: &str) -> Result<Cmd, String> {
    let manifest = format!("--manifest-path candle-core/oracle/{package}/Cargo.toml");
    Ok(cmd(&format!("cargo {words} {manifest} {args}")).env(
        "CARGO_TARGET_DIR",
        oracle_target_dir()?.display().to_string(),
    ))
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

/// Number of op families that agree, with `cases` cases each, or their default number.
fn ops(cases: Option<&str>) -> Result<usize, String> {
    let mut tests = cargo("test --locked --no-fail-fast", "ops", "")?;
    // A number from the environment takes precedence.
    if let (Some(cases), None) = (cases, std::env::var_os("ORACLE_CASES")) {
        tests = tests.env("ORACLE_CASES", cases);
    }
    Ok(testing::tally(&tests, "oracle")?.passed)
}

/// The programs in a folder: upstream's writes what its models return, ours compares.
fn models(programs: &str, how: &[&str]) -> Result<(), String> {
    let outputs = EmptyDir::new()?;
    let folder = outputs.0.display();
    for package in ["upstream", "ours"] {
        cargo("build --locked", &format!("{programs}/{package}"), "")?.run()?;
    }
    let program = |package: &str| built_for_oracle(&format!("{programs}-{package}"));
    cmd(&format!("{} {folder}", program("upstream")?.display())).run()?;
    for how in how {
        let run = cmd(&format!("{} {folder} {how}", program("ours")?.display()));
        with_runtime_dir(run.env("CANDLE_WEBGPU_CHECKS", "1"), &outputs).run()?;
    }
    Ok(())
}
