//! The steps that a change needs: files changed since the merge base → crates, and their dependents → steps.

use std::collections::BTreeSet;

use crate::command::cmd;
use crate::steps::{Step, When, STEPS};

/// Crates and the crates whose tests can tell that they changed.
const DEPENDENTS: &[(&str, &[&str])] = &[
    (
        "candle-core",
        &[
            "candle-conformance",
            "candle-nn",
            "candle-transformers",
            "candle-engine",
            "candle-openai",
            "candle-cli",
            "candle-dvm",
        ],
    ),
    (
        "candle-nn",
        &[
            "candle-transformers",
            "candle-engine",
            "candle-openai",
            "candle-cli",
            "candle-dvm",
        ],
    ),
    (
        "candle-transformers",
        &["candle-engine", "candle-openai", "candle-cli", "candle-dvm"],
    ),
    (
        "candle-engine",
        &["candle-openai", "candle-cli", "candle-dvm"],
    ),
    (
        "candle-grammar",
        &["candle-engine", "candle-openai", "candle-cli", "candle-dvm"],
    ),
    ("candle-openai", &["candle-cli", "candle-dvm"]),
    ("candle-cli", &["candle-dvm"]),
    ("candle-dvm", &[]),
    ("candle-cuda-emulator", &[]),
    ("candle-mkl", &[]),
    ("candle-wasm-tokenizers", &[]),
    ("candle-conformance", &["candle-core"]),
    ("xtask", &[]),
];

/// Folders of crates, those within another before it.
const FOLDERS: &[(&str, &str)] = &[
    ("candle-core/conformance/", "candle-conformance"),
    ("candle-core/cuda-emulator/", "candle-cuda-emulator"),
    ("candle-core/mkl/", "candle-mkl"),
    ("candle-core/wasm-tokenizers/", "candle-wasm-tokenizers"),
    ("candle-core/", "candle-core"),
    ("candle-nn/", "candle-nn"),
    ("candle-transformers/engine/grammar/", "candle-grammar"),
    ("candle-transformers/engine/openai/", "candle-openai"),
    ("candle-transformers/engine/cli/", "candle-cli"),
    ("candle-transformers/engine/", "candle-engine"),
    ("candle-transformers/", "candle-transformers"),
    ("candle-dvm/", "candle-dvm"),
    ("xtask/", "xtask"),
];

/// The parts that a change affects.
#[derive(Debug, Default, PartialEq)]
pub struct Change {
    pub files: Vec<String>,
    /// The packages whose tests run.
    pub packages: BTreeSet<String>,
    /// Whether a file concerns every step: a manifest of the workspace, the toolchain.
    everything: bool,
}

/// The change from the merge base with the main branch to the working tree.
///
/// # Errors
/// When git knows neither `origin/main` nor `main`.
pub fn change() -> Result<Change, String> {
    let merge_base = |branch: &&str| cmd(&format!("git merge-base HEAD {branch}")).stdout();
    let base = ["origin/main", "main"]
        .iter()
        .find_map(merge_base)
        .ok_or("git finds no merge base with origin/main or main")?;
    let list = |line: String| {
        let failed = format!("`{line}` failed");
        cmd(&line).stdout().ok_or(failed)
    };
    let mut files = list(format!("git diff --name-only {}", base.trim()))?;
    files.push_str(&list(
        "git ls-files --others --exclude-standard".to_string(),
    )?);
    Ok(Change::of(files.lines()))
}

impl Change {
    fn of<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        let mut change = Self::default();
        for file in files {
            change.files.push(file.to_string());
            change.everything |=
                matches!(file, "Cargo.toml" | "Cargo.lock") || file.starts_with(".ci/");
            let Some((_, package)) = FOLDERS.iter().find(|(folder, _)| file.starts_with(folder))
            else {
                continue;
            };
            change.packages.insert(package.to_string());
            let of = DEPENDENTS.iter().filter(|(name, _)| name == package);
            let dependents = of.flat_map(|(_, dependents)| dependents.iter());
            change
                .packages
                .extend(dependents.map(|name| name.to_string()));
        }
        // The tests of candle-core read the texts of the repository.
        if change.files.iter().any(|file| file.ends_with(".md")) {
            change.packages.insert("candle-core".to_string());
        }
        change
    }

    fn needs(&self, step: &Step) -> bool {
        let concerns = |file: &String| step.paths.iter().any(|path| file.starts_with(path));
        let concerned = || self.files.iter().any(concerns);
        match step.when {
            When::Default => self.everything || step.paths.is_empty() || concerned(),
            When::Changed => self.everything || concerned(),
            When::All => false,
        }
    }

    /// The steps that can tell the difference.
    pub fn steps(&self) -> Vec<&'static Step> {
        STEPS.iter().filter(|step| self.needs(step)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(change: &Change) -> Vec<&'static str> {
        change.steps().iter().map(|step| step.name).collect()
    }

    #[test]
    fn a_change_of_the_service_leaves_the_kernels_alone() {
        let change = Change::of(["candle-dvm/src/service/work.rs"].into_iter());
        assert_eq!(change.packages, BTreeSet::from(["candle-dvm".to_string()]));
        let names = names(&change);
        for step in ["fmt", "clippy", "test", "nostr"] {
            assert!(names.contains(&step), "{step} is missing in {names:?}");
        }
        for step in ["cuda", "oracle", "wasi", "shaders", "upstream"] {
            assert!(!names.contains(&step), "{step} is in {names:?}");
        }
    }

    #[test]
    fn a_change_of_the_core_needs_every_step() {
        let change = Change::of(["candle-core/src/tensor.rs"].into_iter());
        let names = names(&change);
        for step in STEPS.iter().filter(|step| step.when == When::Default) {
            assert!(names.contains(&step.name), "{}", step.name);
        }
        assert!(names.contains(&"wasi") && !names.contains(&"fuzz"));
        assert!(change.packages.contains("candle-transformers"));
    }

    #[test]
    fn a_manifest_of_the_workspace_needs_every_step() {
        let change = Change::of(["Cargo.lock"].into_iter());
        assert!(names(&change).contains(&"oracle"));
    }
}
