//! Copies the tests of docs/upstream.md, parts 1 to 4, into a file that `tests/faults.rs` includes once for each implementation.

use std::path::Path;

const PAGE: &str = "../../../docs/upstream.md";
/// The first heading after the tests of candle-core and candle-nn.
const END: &str = "\n## 5. Models\n";

fn main() {
    println!("cargo::rerun-if-changed={PAGE}");
    let page = std::fs::read_to_string(PAGE).unwrap_or_else(|err| panic!("{PAGE}: {err}"));
    let (page, _) = page
        .split_once(END)
        .unwrap_or_else(|| panic!("{PAGE} has no heading {END:?}"));
    let blocks = page.split("```rust\n").skip(1);
    let code: String = blocks.filter_map(|rest| rest.split("```").next()).collect();
    let signature = |line: &&str| line.starts_with("fn ") && line.ends_with("() -> Result<()> {");
    let names = code.lines().filter(signature);
    let names = names.filter_map(|line| line["fn ".len()..].split('(').next());
    let table: String = names
        .map(|name| format!("(\"{name}\", {name}),\n"))
        .collect();
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let text = format!("{code}\npub const TESTS: &[(&str, fn() -> Result<()>)] = &[{table}];\n");
    std::fs::write(Path::new(&out).join("faults.rs"), text).expect("OUT_DIR is writable");
}
