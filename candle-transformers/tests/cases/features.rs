//! The features that the crates declare. Cargo refuses a whole graph of packages if one of them names a feature that is not declared,
//! whether it is enabled or not.

use candle_core::Result;

/// The features of the manifests of 0.11.1 on crates.io.
const PUBLISHED: &[(&str, &[&str])] = &[
    (
        "candle-core",
        &[
            "accelerate",
            "cuda",
            "cudarc",
            "cudnn",
            "cutile",
            "default",
            "metal",
            "metal-debug-labels",
            "mkl",
            "nccl",
        ],
    ),
    (
        "candle-nn",
        &[
            "accelerate",
            "cuda",
            "cudnn",
            "cutile",
            "default",
            "metal",
            "metal-debug-labels",
            "mkl",
        ],
    ),
    (
        "candle-transformers",
        &[
            "accelerate",
            "cuda",
            "cudnn",
            "default",
            "flash-attn",
            "metal",
            "metal-debug-labels",
            "mkl",
        ],
    ),
];

#[test]
#[cfg(not(target_arch = "wasm32"))]
fn published_features_are_declared() -> Result<()> {
    for (package, features) in PUBLISHED {
        let path = format!("{}/../{package}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
        let manifest = std::fs::read_to_string(&path)?;
        let section = manifest
            .split_once("\n[features]\n")
            .map(|(_, rest)| rest.split_once("\n[").map_or(rest, |(section, _)| section))
            .unwrap_or_default();
        let declared: Vec<&str> = section
            .lines()
            .filter_map(|line| line.split_once(" = [").map(|(name, _)| name.trim()))
            .collect();
        for feature in *features {
            assert!(
                declared.contains(feature),
                "{package} does not declare the feature {feature}, it declares {declared:?}"
            );
        }
    }
    Ok(())
}
