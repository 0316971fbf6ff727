//! The pages for browsers, which the tool of their own workspace builds and serves.

use crate::command::{cmd, Cmd};

/// `cargo xtask web`.
pub fn build(only: Option<&str>) -> Result<(), String> {
    match only {
        None => tool("build").run(),
        Some(only) => tool(&format!("build --only {only}")).run(),
    }
}

/// `cargo xtask serve`.
pub fn serve(port: u16) -> Result<(), String> {
    tool(&format!("serve --port {port}")).run()
}

/// What it builds lies apart from the native builds, whose flags differ.
fn tool(args: &str) -> Cmd {
    cmd(&format!(
        "cargo run --quiet --manifest-path candle-wasm-examples/Cargo.toml --package web-tool --target-dir target/web -- {args}"
    ))
}
