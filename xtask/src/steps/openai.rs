//! `candle-dvm api` with OpenAI's own packages as clients.

use std::path::Path;
use std::process::Command;

use super::weights;
use crate::command::cmd;
use crate::files::{absolute, create};
use crate::install;
use crate::services::{pip, wait_for_port, Process};

const PYTHON: &str = "openai==3.57.0";
const JAVASCRIPT: &str = "openai@6.49.0";
const PORT: u16 = 16971;
const MODEL: &str = "smollm2";
/// How long 64 clients ask at once.
const SECONDS: &str = "60";

/// Installs the packages (PyPI, npm) under `target/openai`, and has them ask a trained model, on the CPU and on WebGPU.
pub fn openai() -> Result<String, String> {
    let folder = absolute("target/openai")?;
    create(&folder)?;
    install::alone(|| install(&folder))?;
    let model = weights::chat_model()?;
    cmd("cargo build --release -p candle-dvm").run()?;
    let url = format!("http://127.0.0.1:{PORT}/v1");
    let python = folder.join("venv/bin/python");
    for device in ["cpu", "webgpu"] {
        let mut server = Command::new("target/release/candle-dvm");
        server
            .args(["api", "--name", MODEL, "--device", device])
            .args(["--listen", &format!("127.0.0.1:{PORT}"), "--model"])
            .arg(&model);
        let _server = Process::start(&mut server, &folder.join(format!("api-{device}.log")))?;
        wait_for_port(PORT)?;
        // Many at once on the CPU alone: a software adapter takes minutes for what a GPU takes seconds.
        let seconds = if device == "cpu" { SECONDS } else { "" };
        cmd(&format!(
            "{} xtask/openai/client.py {url} {MODEL} {seconds}",
            python.display()
        ))
        .run()?;
        cmd(&format!(
            "node xtask/openai/client.mjs {} {url} {MODEL}",
            folder.display()
        ))
        .run()?;
    }
    Ok(format!(
        "{PYTHON} and {JAVASCRIPT} have their answers, 64 clients at once for {SECONDS} s those that each has alone"
    ))
}

fn install(folder: &Path) -> Result<(), String> {
    let venv = folder.join("venv").display().to_string();
    if !cmd(&format!("{venv}/bin/pip show openai")).succeeds() {
        cmd(&format!("python3 -m venv {venv}")).run()?;
        pip(folder, PYTHON)?;
    }
    if !folder.join("node_modules").is_dir() {
        cmd(&format!(
            "npm install --no-audit --no-fund --prefix {} {JAVASCRIPT}",
            folder.display()
        ))
        .run()?;
    }
    Ok(())
}
