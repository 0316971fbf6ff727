//! `candle-dvm transcribe` over a folder with a tiny Parakeet of random weights, on the recordings of the tests of Moonshine.

use crate::moonshine::{fill, WORDS};
use crate::transcribe::Folder;
use candle_transformers::models::parakeet::Parakeet;
use serde_json::{json, Value};

fn folder() -> Folder {
    let folder = Folder::empty();
    let config = json!({"model_type": "parakeet_ctc", "vocab_size": WORDS, "pad_token_id": 0, "encoder_config": {"hidden_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, "subsampling_conv_channels": 4, "num_mel_bins": 16}});
    folder.add_weights(|vb| {
        Parakeet::new(&serde_json::from_value(config.clone()).unwrap(), vb).map(|_| ())
    });
    folder.write("config.json", &config);
    fill(&folder);
    folder
}

#[test]
fn windows_and_refusals() {
    let folder = folder();
    let json = folder.hear(&["--json", "--device", "cpu"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let segments = json["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 2, "{json}");
    assert_eq!(segments[0]["end"], segments[1]["start"]);
    let texts: Vec<_> = segments
        .iter()
        .map(|s| s["text"].as_str().unwrap())
        .collect();
    assert!(texts.iter().all(|text| text.starts_with(" w")), "{json}");
    assert_eq!(json["text"], texts.concat().trim());
    let plain = folder.hear(&["--device", "webgpu", "--dtype", "f32"]);
    assert_eq!(plain.lines().count(), 2, "{plain}");

    let line = folder.fail("tone.wav", &["--words"]);
    for part in ["parakeet_ctc", "\"words\"", "Whisper"] {
        assert!(line.contains(part), "{line}: {part}");
    }
}
