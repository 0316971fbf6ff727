//! The shaders of the step `test`, translated to what Metal and DX12 get.

use std::path::{Path, PathBuf};

use crate::command::cmd;

const MANIFEST: &str = "xtask/shaders/Cargo.toml";

/// The folder of the shaders from the step `test`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/shaders")
}

/// Translates each shader to MSL and HLSL, in a package outside the workspace. Its naga has to be the one that wgpu is built with.
pub fn shaders() -> Result<String, String> {
    let (ours, its) = (naga("Cargo.lock")?, naga("xtask/shaders/Cargo.lock")?);
    if ours != its {
        return Err(format!(
            "Cargo.lock has naga {ours}, xtask/shaders/Cargo.lock has {its}: `cargo update --manifest-path {MANIFEST} naga --precise {ours}`"
        ));
    }
    let folder = folder();
    if !folder.is_dir() {
        return Err(format!(
            "{} does not exist: the step `test` writes the shaders there, run it first",
            folder.display()
        ));
    }
    cmd(&format!("cargo fmt --manifest-path {MANIFEST} --check")).run()?;
    let cargo = |words: &str| {
        format!("cargo {words} --locked --manifest-path {MANIFEST} --target-dir target")
    };
    cmd(&cargo("test")).run()?;
    let mut lines = Vec::new();
    cmd(&format!("{} -- {}", cargo("run"), folder.display())).run_lines(|line| {
        println!("{line}");
        lines.push(line.to_string());
    })?;
    Ok(lines.join("; "))
}

/// The version of naga that a lockfile names.
fn naga(lockfile: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(lockfile).map_err(|err| format!("{lockfile}: {err}"))?;
    version(&text, "naga")
        .map(str::to_string)
        .ok_or_else(|| format!("{lockfile} does not list naga"))
}

fn version<'a>(lockfile: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = {package:?}");
    let mut lines = lockfile.lines();
    lines.find(|line| *line == name)?;
    let version = lines.next()?.strip_prefix("version = ")?;
    Some(version.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lockfile_tells_a_packages_version() {
        let text = "[[package]]\nname = \"naga-types\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"naga\"\nversion = \"30.0.1\"\n";
        assert_eq!(version(text, "naga"), Some("30.0.1"));
        assert_eq!(version(text, "wgpu"), None);
    }
}
