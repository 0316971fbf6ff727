//! `candle-dvm transcribe`, over a folder with a tiny Whisper of English alone. What a trained one hears is the step `weights`'.

use crate::cli::{program, run, stdout};
use crate::wav::{wav, Form};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::whisper::model::Whisper;
use serde_json::{json, Value};
use std::path::Path;
use tempfile::TempDir;

/// Words ` w0` to ` w199`, the special tokens, 101 times.
const WORDS: usize = 200;
const SPECIAL: [&str; 8] = [
    "endoftext",
    "startoftranscript",
    "translate",
    "transcribe",
    "startoflm",
    "startofprev",
    "nospeech",
    "notimestamps",
];

pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// `model.safetensors` with the weights that `load` asks for, by a rule.
    pub(crate) fn add_weights(&self, load: impl FnOnce(VarBuilder) -> candle_core::Result<()>) {
        let weights = VarMap::new();
        load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu)).unwrap();
        for (name, var) in weights.data().lock().unwrap().iter() {
            let seed = name.bytes().map(f32::from).sum::<f32>();
            let values = (0..var.elem_count()).map(|i| (seed + 7.3 * i as f32).sin());
            // Variances are not negative.
            let least = name.ends_with("running_var").then_some(0.5);
            let values = values.map(|value| least.map_or(value, |least| value.abs() + least));
            let values = Tensor::from_iter(values, &Device::Cpu).unwrap();
            var.set(&values.reshape(var.shape()).unwrap()).unwrap();
        }
        weights.save(self.path().join("model.safetensors")).unwrap();
    }

    pub(crate) fn new() -> Self {
        let folder = Self::empty();
        let config = json!({"model_type": "whisper", "num_mel_bins": 80, "max_source_positions": 100, "d_model": 32,
            "encoder_attention_heads": 2, "encoder_layers": 1, "vocab_size": WORDS + SPECIAL.len() + 101,
            "max_target_positions": 24, "decoder_attention_heads": 2, "decoder_layers": 1, "suppress_tokens": [7]});
        folder.add_weights(|vb| {
            Whisper::load(&vb, serde_json::from_value(config.clone()).unwrap()).map(|_| ())
        });
        folder.write("config.json", &config);
        let words = (0..WORDS).map(|i| (format!("Ġw{i}"), json!(i)));
        let vocab: serde_json::Map<_, _> = words.collect();
        let special = SPECIAL.iter().enumerate().map(|(i, name)| {
            json!({"id": WORDS + i, "content": format!("<|{name}|>"), "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        });
        folder.write(
            "tokenizer.json",
            &json!({"version": "1.0", "added_tokens": special.collect::<Vec<_>>(), 
                "pre_tokenizer": {"type": "WhitespaceSplit"},
                "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
                "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "Ġw0"}}),
        );
        let tone = (0..48_000).map(|i| (f64::from(i) * 0.05).sin() * 0.5);
        let recording = wav(Form::Whole(16), 16_000, 1, tone);
        folder.write_bytes("tone.wav", &recording);
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, json: &Value) {
        self.write_bytes(name, json.to_string().as_bytes());
    }

    pub(crate) fn write_bytes(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path().join(name), bytes).unwrap();
    }

    /// The command over the tone, with these flags.
    fn args<'a>(&'a self, tone: &'a str, model: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["transcribe", tone, "--model", model];
        args.extend(flags);
        args
    }

    /// The output of the command.
    pub(crate) fn hear(&self, flags: &[&str]) -> String {
        let (tone, model) = (self.at("tone.wav"), self.path().display().to_string());
        stdout(&run(&self.args(&tone, &model, flags)))
    }

    /// The one line that the command fails with.
    pub(crate) fn fail(&self, file: &str, flags: &[&str]) -> String {
        let (file, model) = (self.at(file), self.path().display().to_string());
        let output = program(&self.args(&file, &model, flags)).output().unwrap();
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{output:?}"
        );
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }
}

/// The forms of the output say the same, on both devices.
#[test]
fn text_times_subtitles_and_json() {
    let folder = Folder::new();
    let json = folder.hear(&["--json", "--words", "--device", "cpu", "--temperature", "0"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["language"], &json["duration"]),
        (&json!("en"), &json!(3.0))
    );
    assert!(json["speed"].as_f64().unwrap() > 0.);
    let segments = json["segments"].as_array().unwrap();
    assert!(!segments.is_empty(), "{json}");
    let texts: Vec<_> = segments
        .iter()
        .map(|s| s["text"].as_str().unwrap().trim())
        .collect();
    assert!(
        segments
            .iter()
            .all(|s| !s["words"].as_array().unwrap().is_empty()),
        "{json}"
    );
    for device in ["cpu", "webgpu"] {
        let heard = |flags: &[&str]| {
            let all = [
                flags,
                &["--temperature", "0", "--dtype", "f32", "--device", device],
            ];
            folder.hear(&all.concat())
        };
        let plain = heard(&[]);
        assert_eq!(plain.lines().collect::<Vec<_>>(), texts, "{device}");
        let timed = heard(&["--timestamps"]);
        assert!(
            timed.starts_with("[00:00:0") && timed.contains(" --> 00:00:0"),
            "{timed}"
        );
        assert!(timed
            .lines()
            .zip(&texts)
            .all(|(line, text)| line.ends_with(text)));
        let subtitles = heard(&["--srt"]);
        assert!(
            subtitles.starts_with("1\n00:00:0") && subtitles.ends_with("\n\n"),
            "{subtitles}"
        );
        assert!(texts.iter().all(|text| subtitles.contains(text)));
    }
}

#[test]
fn mistakes_are_one_line() {
    let folder = Folder::new();
    let fails = |file, flags: &[&str], parts: &[&str]| {
        let line = folder.fail(file, flags);
        assert!(
            parts.iter().all(|part| line.contains(part)),
            "{line}: {parts:?}"
        );
    };
    fails("none.wav", &[], &["none.wav", "No such file"]);
    fails("config.json", &[], &["config.json", "expected WAV"]);
    fails(
        "tone.wav",
        &["--language", "de"],
        &["English-only", "\"de\""],
    );
    fails("tone.wav", &["--translate"], &["cannot translate"]);
    fails(
        "tone.wav",
        &["--temperature", "3"],
        &["--temperature 3", "0 to 2"],
    );
    fails("tone.wav", &["--json", "--srt"], &["--srt"]);
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    fails("tone.wav", &[], &["model.safetensors", "no such file"]);
    folder.write("config.json", &json!({"model_type": "llama"}));
    fails(
        "tone.wav",
        &[],
        &["model_type", "\"llama\"", "candle-dvm generate"],
    );
    let file = folder.at("tone.wav");
    let output = run(&["transcribe", &file, "--model", &file]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(
        line.contains("expected a folder") && line.lines().count() == 1,
        "{line}"
    );
}

/// A recording of a single sample.
#[test]
fn nothing_is_heard_in_nothing() {
    let folder = Folder::new();
    let short = wav(Form::Whole(16), 16_000, 1, [0.5]);
    std::fs::write(folder.path().join("short.wav"), short).unwrap();
    let (file, model) = (folder.at("short.wav"), folder.path().display().to_string());
    let json = stdout(&run(&folder.args(
        &file,
        &model,
        &["--json", "--device", "cpu"],
    )));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["segments"], &json["text"]), (&json!([]), &json!("")));
}
