//! `candle-dvm api` with OpenAI's own packages, LangChain and Vercel's AI SDK as clients.

use std::path::Path;
use std::process::Command;

use super::weights;
use crate::command::cmd;
use crate::files::{absolute, create};
use crate::install;
use crate::services::{pip, wait_for_port, Process};

const PYTHON: &str = "openai==3.57.0 langchain-openai==1.7.4";
const JAVASCRIPT: &str = "openai@6.49.0 ai@6.0.326 @ai-sdk/openai@3.0.141 zod@4.6.7";
const PORT: u16 = 16971;
const MODEL: &str = "smollm2";
/// Seconds for which 64 clients send requests at once.
const SECONDS: &str = "60";
/// Number of answers that have to keep to a schema.
const DOCUMENTS: &str = "200";

/// Installs the packages (PyPI, npm) under `target/openai`, and has them ask trained models, on the CPU and on WebGPU.
pub fn openai() -> Result<String, String> {
    let folder = absolute("target/openai")?;
    create(&folder)?;
    install::alone(|| install(&folder))?;
    let model = weights::chat_model()?;
    cmd("cargo build --release -p candle-dvm").run()?;
    let url = format!("http://127.0.0.1:{PORT}/v1");
    let python = folder.join("venv/bin/python");
    let served = |device: &str, more: &[&Path]| {
        let mut server = Command::new("target/release/candle-dvm");
        server
            .args(["api", "--name", MODEL, "--device", device])
            .args(["--listen", &format!("127.0.0.1:{PORT}"), "--model"])
            .arg(&model)
            .args(more);
        server
    };
    for device in ["cpu", "webgpu"] {
        let mut server = served(device, &[]);
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
        if device == "cpu" {
            cmd(&format!(
                "{} xtask/openai/documents.py {url} {MODEL} {DOCUMENTS}",
                python.display()
            ))
            .run()?;
        }
    }
    let [whisper, recording] = weights::speech_model()?;
    let vectors = weights::vector_model()?;
    let flags = [
        Path::new("--embedding-model"),
        &vectors,
        Path::new("--embedding-name"),
        Path::new("vectors"),
        Path::new("--speech-model"),
        &whisper,
        Path::new("--speech-name"),
        Path::new("whisper"),
    ];
    let mut server = served("cpu", &flags);
    // Otherwise the CPU multiplies by activations of 8 bits, and without a system message the capital of France is a near tie.
    server.env("CANDLE_DEQUANTIZE_ALL", "1");
    let _server = Process::start(&mut server, &folder.join("api-agents.log"))?;
    wait_for_port(PORT)?;
    cmd(&format!(
        "{} xtask/openai/agents.py {url} {MODEL} vectors whisper {}",
        python.display(),
        recording.display()
    ))
    .run()?;
    cmd(&format!(
        "node xtask/openai/agents.mjs {} {url} {MODEL}",
        folder.display()
    ))
    .run()?;
    Ok(format!(
        "{PYTHON} and {JAVASCRIPT} have their answers, {DOCUMENTS} documents are valid, 64 clients at once for {SECONDS} s have the texts that each \
         has alone"
    ))
}

fn install(folder: &Path) -> Result<(), String> {
    let venv = folder.join("venv").display().to_string();
    if !cmd(&format!("{venv}/bin/pip show langchain-openai")).succeeds() {
        cmd(&format!("python3 -m venv {venv}")).run()?;
        pip(folder, PYTHON)?;
    }
    if !folder.join("node_modules/ai").is_dir() {
        cmd(&format!(
            "npm install --no-audit --no-fund --prefix {} {JAVASCRIPT}",
            folder.display()
        ))
        .run()?;
    }
    Ok(())
}
