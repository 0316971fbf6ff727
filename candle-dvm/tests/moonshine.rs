//! `candle-dvm transcribe` and `api` over a folder with a tiny Moonshine of random weights. What a network computes is judged in candle-transformers.

use crate::cli::stdout;
use crate::transcribe::Folder;
use crate::wav::{wav, Form};
use candle_nn::VarBuilder;
use candle_transformers::models::moonshine::Moonshine;
use serde_json::{json, Value};

pub(crate) const WORDS: usize = 60;

/// Words ` w3` to ` w59` behind the special tokens, and a recording of 40 seconds that is silent from the 20th on for half a second.
pub(crate) fn folder() -> Folder {
    let folder = Folder::empty();
    let config = json!({"model_type": "moonshine", "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48,
        "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "encoder_num_attention_heads": 2,
        "decoder_num_attention_heads": 2, "max_position_embeddings": 12, "partial_rotary_factor": 0.9});
    folder.add_weights(|vb: VarBuilder| {
        Moonshine::new(&serde_json::from_value(config.clone()).unwrap(), vb).map(|_| ())
    });
    folder.write("config.json", &config);
    fill(&folder);
    folder
}

/// The tokenizer and the recordings.
pub(crate) fn fill(folder: &Folder) {
    let special = ["<unk>", "<s>", "</s>"];
    let words = (special.len()..WORDS).map(|i| (format!("▁w{i}"), json!(i)));
    let marks = special.iter().enumerate();
    let vocab = words.chain(
        marks
            .clone()
            .map(|(id, name)| (name.to_string(), json!(id))),
    );
    let vocab: serde_json::Map<_, _> = vocab.collect();
    let special = marks.map(|(id, name)| {
        json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    });
    folder.write(
        "tokenizer.json",
        &json!({"version": "1.0", "added_tokens": special.collect::<Vec<_>>(),
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}),
    );
    let tone = (0..640_000).map(|i| match i {
        320_000..328_000 => 0.,
        i => (f64::from(i) * 0.05).sin() * 0.5,
    });
    folder.write_bytes("tone.wav", &wav(Form::Whole(16), 16_000, 1, tone));
    let silence = wav(Form::Whole(16), 16_000, 1, vec![0.; 16_000]);
    folder.write_bytes("silence.wav", &silence);
}

#[test]
fn windows_are_cut_at_silence() {
    let folder = folder();
    let json = folder.hear(&["--json", "--device", "cpu"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["language"], &json["duration"]),
        (&json!("und"), &json!(40.))
    );
    let segments = json["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 2, "{json}");
    let [first, second] = [0, 1].map(|i| &segments[i]);
    let cut = first["end"].as_f64().unwrap();
    assert!((20. ..=20.5).contains(&cut), "{json}");
    assert_eq!(first["start"], 0.);
    assert_eq!(
        (&second["start"], &second["end"]),
        (&json!(cut), &json!(40.))
    );
    for segment in segments {
        let tokens = segment["tokens"].as_array().unwrap();
        assert!(!tokens.is_empty() && tokens.len() < 12, "{json}");
        assert!(segment["avg_logprob"].as_f64().unwrap() < 0., "{json}");
    }
    let texts: Vec<_> = segments
        .iter()
        .map(|s| s["text"].as_str().unwrap())
        .collect();
    assert!(texts.iter().all(|text| text.starts_with(" w")), "{json}");
    assert_eq!(json["text"], texts.concat().trim());

    let lines = |flags: &[&str]| folder.hear(flags);
    let timed = lines(&["--timestamps", "--device", "cpu"]);
    assert!(timed.starts_with("[00:00:00.000 --> 00:00:20."), "{timed}");
    let plain = lines(&["--device", "webgpu", "--dtype", "f32"]);
    let trimmed = texts.iter().map(|text| format!("{}\n", text.trim()));
    assert_eq!(plain, trimmed.collect::<String>());
}

#[test]
fn what_only_a_whisper_has_is_refused() {
    let folder = folder();
    let model = folder.path().display().to_string();
    for (flags, option) in [
        (&["--language", "en"][..], "language"),
        (&["--translate"], "translate"),
        (&["--words"], "words"),
        (&["--prompt", "w5"], "prompt"),
        (&["--temperature", "0.2"], "temperature"),
    ] {
        let line = folder.fail("tone.wav", flags);
        for part in [&model, "moonshine", &format!("{option:?}"), "Whisper"] {
            assert!(line.contains(part), "{line}: {part}");
        }
    }
    // One that changes nothing is taken, and nothing is heard in silence.
    let silence = folder.at("silence.wav");
    let args = ["transcribe", &silence, "--model", &model, "--device", "cpu"];
    let flags = ["--temperature", "0", "--no-context", "--json"];
    let json = stdout(&crate::cli::run(&[&args[..], &flags].concat()));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["segments"], &json["text"]), (&json!([]), &json!("")));
}

#[test]
fn mistakes_are_one_line() {
    let folder = folder();
    let fails = |parts: &[&str]| {
        let line = folder.fail("tone.wav", &["--device", "cpu"]);
        assert!(
            parts.iter().all(|part| line.contains(part)),
            "{line}: {parts:?}"
        );
    };
    let gguf = folder.path().join("model.gguf");
    std::fs::rename(folder.path().join("model.safetensors"), &gguf).unwrap();
    fails(&["moonshine", "GGUF", "model.safetensors"]);
    std::fs::rename(gguf, folder.path().join("model.safetensors")).unwrap();
    folder.write(
        "config.json",
        &json!({"model_type": "moonshine", "hidden_size": 30}),
    );
    fails(&["hidden_size 30", "encoder_num_attention_heads 8"]);
    folder.write("config.json", &json!({"model_type": "parakeet_tdt"}));
    fails(&[
        "\"parakeet_tdt\"",
        "\"whisper\"",
        "\"moonshine\"",
        "\"parakeet_ctc\"",
    ]);
}

/// The server says what the command says, and refuses what it refuses.
#[cfg(feature = "api")]
#[test]
fn over_http() {
    use crate::api::audio::{form, post};
    let folder = folder();
    let path = folder.path().display().to_string();
    let tone = std::fs::read(folder.at("tone.wav")).unwrap();
    let server =
        crate::api::Server::start(&["--speech-model", &path, "--speech-name", "moonshine"]);
    let ask = |to: &str, fields: &[(&str, &str)]| {
        let fields = [&[("model", "moonshine")], fields].concat();
        let (status, _, text) = post(&server, to, &form(Some(&tone), &fields));
        (status, text)
    };
    let (status, found) = ask("transcriptions", &[("response_format", "text")]);
    assert_eq!(status, 200, "{found}");
    let json: Value = serde_json::from_str(&folder.hear(&["--json", "--device", "cpu"])).unwrap();
    assert_eq!(found.trim(), json["text"].as_str().unwrap());
    for (to, fields, option) in [
        ("transcriptions", &[("language", "en")][..], "language"),
        ("translations", &[], "translate"),
    ] {
        let (status, text) = ask(to, fields);
        assert_eq!(status, 400, "{text}");
        assert!(
            text.contains("moonshine") && text.contains(option),
            "{text}"
        );
    }
}
