//! The programs under `examples/` of each package, as a reader would start them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::cmd;
use crate::files::{built_for_oracle, oracle_target_dir, EmptyDir};
use crate::testing::{self, compiling_quickly, example, with_runtime_dir};

/// Examples that need what only their reader has, and where they are run instead.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "bert_similarity",
        "takes a model's folder; the step `web` runs it",
    ),
    (
        "cuda_consumer",
        "takes no device, being for CUDA; this step runs it apart",
    ),
    (
        "classify",
        "takes a model's weights and a picture; the step `weights` runs it",
    ),
    (
        "clip",
        "takes a model's folder, which no package here carries",
    ),
    (
        "depth",
        "takes Depth Anything V2's weights, which no package here carries",
    ),
    (
        "detect",
        "takes YOLO's weights, which no package here carries; the tests of candle-transformers run its networks",
    ),
    (
        "splade",
        "takes a model's folder; the step `weights` runs it",
    ),
    (
        "forward_speed",
        "measures models in full size, for which it has to be optimised",
    ),
    (
        "segment",
        "takes Segment Anything's weights, which no package here carries",
    ),
    ("quantized_products", "measures a GPU's memory"),
    ("attention_speed", "measures a GPU's memory"),
];

/// Examples with a tiny model, and the file that they write.
const TINY: &[(&str, &str, &str)] = &[
    (
        "text_to_image",
        "--tiny --steps 2 --width 64 --height 64",
        "image.png",
    ),
    ("text_to_speech", "--tiny --seconds 0.03", "speech.wav"),
];

/// Builds what this step alone runs.
pub fn ahead() -> Result<(), String> {
    ported().map(|_| ())
}

/// Builds all examples and runs each on the CPU, and that of a user of upstream, whose ops are in all others too, on WebGPU.
pub fn examples() -> Result<String, String> {
    let programs = programs()?;
    for program in &programs {
        run("cpu", program)?;
    }
    if let Some(ported) = programs.last() {
        run("webgpu", ported)?;
    }
    cmd(&format!(
        "{} if-present",
        example("cuda_consumer")?.display()
    ))
    .run()?;
    Ok(format!(
        "{} programs on the CPU, one of them on WebGPU, and one for CUDA",
        programs.len()
    ))
}

/// Runs each example on WebGPU.
pub fn long() -> Result<String, String> {
    let programs = programs()?;
    for program in &programs {
        run("webgpu", program)?;
    }
    Ok(format!("{} programs on WebGPU", programs.len()))
}

/// Builds all examples; the last is the package outside the workspace.
fn programs() -> Result<Vec<PathBuf>, String> {
    let all = names()?;
    for (name, _) in ELSEWHERE {
        if !all.iter().any(|known| known == name) {
            return Err(format!(
                "there is no example {name}, which the step leaves out"
            ));
        }
    }
    testing::build_workspace()?;
    let ported = ported()?;
    let is_run = |name: &&String| ELSEWHERE.iter().all(|(other, _)| other != name);
    let programs = all.iter().filter(is_run).map(|name| example(name));
    programs.chain([Ok(ported)]).collect()
}

/// An example's first argument says where it runs. A file that it is to write must have something in it.
fn run(device: &str, program: &Path) -> Result<(), String> {
    let runtime = EmptyDir::new()?;
    let name = program.file_stem().unwrap_or_default();
    let tiny = TINY.iter().find(|(example, ..)| name == *example);
    let mut line = format!("{} {device}", program.display());
    let mut written = None;
    if let Some((_, args, file)) = tiny {
        let path = runtime.0.join(file);
        line = format!("{line} {args} --out {}", path.display());
        written = Some(path);
    }
    let command = compiling_quickly(cmd(&line).env("CANDLE_WEBGPU_CHECKS", "1"));
    with_runtime_dir(command, &runtime).run()?;
    let Some(path) = written else { return Ok(()) };
    match path.metadata().map(|file| file.len()) {
        Ok(1..) => Ok(()),
        found => Err(format!("{line}\n  {}: {found:?}", path.display())),
    }
}

/// Builds the example that is a package outside the workspace: it patches crates.io's packages, as its readers will. It shares what the step
/// `oracle` compiles.
fn ported() -> Result<PathBuf, String> {
    let folder = "candle-core/examples/ported";
    cmd(&format!(
        "cargo build --locked --manifest-path {folder}/Cargo.toml --config {folder}/profile.toml"
    ))
    .env(
        "CARGO_TARGET_DIR",
        oracle_target_dir()?.display().to_string(),
    )
    .run()?;
    built_for_oracle("ported")
}

/// The examples of the workspace.
fn names() -> Result<Vec<String>, String> {
    let metadata = cmd("cargo metadata --no-deps --format-version 1");
    let text = metadata
        .stdout()
        .ok_or_else(|| format!("{metadata}\n  failed"))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|err| format!("cargo metadata: {err}"))?;
    Ok(named(&metadata))
}

fn named(metadata: &Value) -> Vec<String> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let packages = list(metadata, "packages");
    let targets = packages.iter().flat_map(|package| list(package, "targets"));
    let examples = targets.filter(|target| list(target, "kind").contains(&"example".into()));
    let mut names: Vec<String> = examples
        .filter_map(|target| Some(target["name"].as_str()?.to_string()))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_examples_are_listed() {
        let metadata = serde_json::json!({"packages": [
            {"targets": [{"kind": ["lib"], "name": "a"}, {"kind": ["example"], "name": "train"}]},
            {"targets": [{"kind": ["example"], "name": "first"}, {"kind": ["test"], "name": "b"}]},
        ]});
        assert_eq!(named(&metadata), ["first", "train"]);
    }
}
