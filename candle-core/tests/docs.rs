//! Checks statements in README.md and docs/ against the code.

use candle_conformance::table;
use candle_core::Result;

/// Returns the text of a file of the repository.
fn read(path: &str) -> Result<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    Ok(std::fs::read_to_string(format!("{root}/{path}"))?)
}

/// The table of ops equals the one that candle-conformance generates.
#[test]
fn ops_on_webgpu() -> Result<()> {
    let page = read("docs/webgpu-ops.md")?;
    let (begin, end) = ("<!-- ops on WebGPU -->\n", "<!-- end of ops -->");
    let section = page
        .split_once(begin)
        .and_then(|(_, rest)| rest.split_once(end));
    let table = table();
    assert!(
        section.is_some_and(|(section, _)| section == table),
        "docs/webgpu-ops.md: the table of ops is not the one of candle-conformance; between {begin:?} and {end:?} it must have\n{table}"
    );
    Ok(())
}

/// The README's three lines for switching contain the repository address of the manifests.
#[test]
fn the_address_is_the_same() -> Result<()> {
    let readme = read("README.md")?;
    let patch = format!("git = \"{}\"", env!("CARGO_PKG_REPOSITORY"));
    let lines = readme.lines().filter(|line| line.contains("git = "));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines.iter().all(|line| line.contains(&patch)),
        "README.md: {lines:?} must have {patch}, the repository of Cargo.toml"
    );
    Ok(())
}

/// The models that the README lists as compared with upstream are those that the oracle runs.
#[test]
fn models_compared_with_upstream() -> Result<()> {
    let readme = read("README.md")?;
    let (_, listed) = readme.split_once("<!-- compared models -->").unwrap();
    let (listed, _) = listed.split_once("<!-- end of models -->").unwrap();
    let mut listed: Vec<_> = listed.split('`').skip(1).step_by(2).collect();
    listed.sort();

    let oracle = read("candle-core/oracle/models/src/main.rs")?;
    let families = ["language::", "vision::", "audio::", "quantized::llama)"];
    let mut run: Vec<_> = oracle
        .lines()
        .filter(|line| families.iter().any(|family| line.contains(family)))
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next())
        .collect();
    run.sort();
    assert!(run.len() > 10, "{run:?}");
    assert_eq!(listed, run);
    Ok(())
}
