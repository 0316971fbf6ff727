//! The direction of dependencies: the engine does not depend on HTTP servers or Nostr, nor the protocol on the engine.

use std::path::{Path, PathBuf};

/// Folders or files, from the workspace, and what their sources do not name.
const RULES: &[(&str, &[&str])] = &[
    (
        "candle-transformers/engine/src",
        &[
            "candle_dvm",
            "candle_openai",
            "candle_cli",
            "nostr::",
            "axum::",
            "hyper",
            "tokio::",
        ],
    ),
    (
        "candle-transformers/engine/openai/src",
        &["candle_dvm", "candle_cli", "nostr::"],
    ),
    (
        "candle-transformers/engine/cli/src",
        &["candle_dvm", "nostr::", "axum::", "hyper"],
    ),
    (
        "candle-dvm/src/nip90",
        &[
            "candle_",
            "crate::service",
            "crate::cli",
            "tokio::",
            "redb::",
        ],
    ),
    (
        "candle-dvm/src/jobs",
        &[
            "candle_",
            "nostr::",
            "crate::service",
            "crate::cli",
            "crate::relay",
            "tokio::",
        ],
    ),
    (
        "candle-dvm/src/relay",
        &["candle_", "crate::service", "crate::cli", "crate::jobs"],
    ),
    (
        "candle-dvm/src/service",
        &["crate::cli", "candle_cli", "candle_openai"],
    ),
    ("candle-wasm-examples/browser/src", &["candle_dvm"]),
    ("candle-wasm-examples/embeddings/src", &["candle_dvm"]),
    (
        "candle-wasm-examples/candle-wasm/src/model.rs",
        &["candle_dvm"],
    ),
    ("candle-wasm-examples/wasi-gpu/host/src", &["candle_dvm"]),
];

fn sources(at: &Path, found: &mut Vec<PathBuf>) {
    if at.is_file() {
        found.push(at.to_path_buf());
        return;
    }
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() || path.extension().is_some_and(|end| end == "rs") {
            sources(&path, found);
        }
    }
}

/// The code of a line: what is before a comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn parts_use_only_what_is_below_them() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for (part, forbidden) in RULES {
        let mut files = Vec::new();
        sources(&workspace.join(part), &mut files);
        assert!(!files.is_empty(), "{part} has no sources");
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for (number, line) in text.lines().enumerate() {
                for name in *forbidden {
                    if code(line).contains(name) {
                        wrong.push(format!("{part}, line {}: {}", number + 1, line.trim()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
