//! `fermyon:spin/llm`: a guest runs the host's models. The text model is the one that comes with candle-engine, with its reference outputs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use candle_core::{Device, Tensor};
use candle_engine::{CandleBackend, CompletionRequest, InferenceBackend, ModelFiles, ModelSource};
use serde::Deserialize;
use serde_json::json;
use wasi_gpu::{DeviceChoice, Devices, Models, Runner, WasiCtxBuilder};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;

use crate::{guest_file, guest_path, limits, on_devices};

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    text: String,
    ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_text: String,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../candle-transformers/engine/model")
}

fn prompt() -> Prompt {
    let text = std::fs::read_to_string(folder().join("golden.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    golden.prompts.into_iter().next().unwrap()
}

fn models(choice: DeviceChoice) -> Models {
    let device = Devices::choose(choice).unwrap().open().unwrap();
    let mut models = Models::new();
    models.load("tiny", &folder(), &device).unwrap();
    models
}

/// The text of 48 tokens and how many they are. On the CPU the reference's; a GPU's activations may be shorter than f32, so there it is what
/// the engine makes without a guest.
fn expected(choice: DeviceChoice, prompt: &Prompt) -> (String, usize) {
    if choice == DeviceChoice::Cpu {
        return (prompt.greedy_text.clone(), prompt.greedy_ids.len());
    }
    let device = Devices::choose(choice).unwrap().open().unwrap();
    let files = ModelFiles::open(&ModelSource::Folder(folder())).unwrap();
    let dtype = files.default_dtype(&device);
    let model = CandleBackend::load(files, "test", &device, dtype, &|_| ()).unwrap();
    let request = CompletionRequest {
        prompt: prompt.text.clone(),
        max_tokens: 48,
        ..CompletionRequest::default()
    };
    let completion = model.complete(&request).unwrap();
    (completion.text, completion.token_ids.len())
}

/// The guest's exit code, standard output and standard error.
async fn ask(choice: DeviceChoice, models: &Models, args: &[&str]) -> (i32, String, String) {
    let runner = Runner::new(limits()).unwrap().with_models(models.clone());
    let program = runner.load(&guest_file("language")).unwrap();
    let device = Devices::choose(choice).unwrap().open().unwrap();
    let (stdout, stderr) = (
        MemoryOutputPipe::new(1 << 20),
        MemoryOutputPipe::new(1 << 20),
    );
    let mut wasi = WasiCtxBuilder::new();
    wasi.stdout(stdout.clone()).stderr(stderr.clone());
    wasi.arg("language").args(args);
    let mut guest = runner.start(&program, &device, wasi.build()).await.unwrap();
    let code = guest.run().await.unwrap();
    let text = |pipe: MemoryOutputPipe| String::from_utf8(pipe.contents().to_vec()).unwrap();
    (code, text(stdout), text(stderr))
}

/// The likeliest token each time, no penalty.
const GREEDY: [&str; 7] = ["with", "48", "1", "64", "0", "0", "1"];

async fn text_of_the_host_s_model(choice: DeviceChoice) {
    let prompt = prompt();
    let mut args = vec!["infer", "tiny", &prompt.text];
    args.extend(GREEDY);
    let (code, stdout, stderr) = ask(choice, &models(choice), &args).await;
    assert_eq!(code, 0, "{stderr}");
    let (text, made) = expected(choice, &prompt);
    assert_eq!(stdout, format!("{text}\n"));
    let counts = format!("tokens: {} of the prompt, {made} made\n", prompt.ids.len());
    assert_eq!(stderr, counts);
}

on_devices!(text_of_the_host_s_model);

#[tokio::test]
async fn a_guest_without_parameters_gets_those_of_spin() {
    let choice = DeviceChoice::Cpu;
    let (code, _, stderr) = ask(choice, &models(choice), &["infer", "tiny", "fn main() {"]).await;
    assert_eq!(code, 0, "{stderr}");
    let made = stderr.rsplit(", ").next().unwrap();
    let made: usize = made.strip_suffix(" made\n").unwrap().parse().unwrap();
    assert!((1..=100).contains(&made), "{stderr}");
}

#[tokio::test]
async fn what_the_model_cannot_take_is_an_error() {
    let choice = DeviceChoice::Cpu;
    let models = models(choice);
    let long = "fn main ".repeat(2000);
    for (args, want) in [
        (vec!["infer", "other", "x"], "model-not-supported"),
        (vec!["embed", "tiny", "x"], "model-not-supported"),
        (
            vec!["infer", "tiny", "x", "with", "0", "1", "64", "0", "0", "1"],
            "invalid-input: max_tokens 0",
        ),
        (
            vec![
                "infer", "tiny", "x", "with", "9", "1", "64", "NaN", "0", "1",
            ],
            "invalid-input: temperature NaN",
        ),
        (
            vec!["infer", "tiny", ""],
            "invalid-input: prompt has no tokens",
        ),
        (vec!["infer", "tiny", &long], "invalid-input: prompt has "),
    ] {
        let (code, stdout, stderr) = ask(choice, &models, &args).await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{want}: {stderr}");
        assert!(stderr.starts_with(want), "{want:?}: {stderr}");
    }
    let (code, _, stderr) = ask(choice, &Models::new(), &["infer", "tiny", "x"]).await;
    assert!(
        code == 1 && stderr.starts_with("model-not-supported"),
        "{stderr}"
    );
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let mut models = Models::new();
    let absent = Path::new("/absent/model");
    for done in [
        models.load("x", absent, &Device::Cpu),
        models.load_embeddings("x", absent, &Device::Cpu),
    ] {
        let text = done.unwrap_err().to_string();
        assert!(
            text.contains("the model x") && text.contains("/absent/model"),
            "{text}"
        );
    }
    assert!(models.names().is_empty());
}

/// By the program, under a name that Spin's components ask for.
#[test]
fn the_program_has_models() {
    let prompt = prompt();
    let named = format!("llama2-chat={}", folder().display());
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_wasi-gpu"))
            .args(["run", "--device", "cpu", "--timeout", "600s"])
            .args(args)
            .arg(guest_path("language"))
            .args(["--", "infer", "llama2-chat", &prompt.text])
            .args(GREEDY)
            .output()
            .unwrap()
    };
    let output = run(&["--model", &named]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout, format!("{}\n", prompt.greedy_text));
    let output = run(&["--model", "llama2-chat=absent"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("error: the model llama2-chat"), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
}

/// A BERT with words of one letter and weights of no meaning.
fn tiny_bert(folder: &Path) {
    const HIDDEN: usize = 16;
    let letters = ('a'..='z').map(|letter| letter.to_string());
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(String::from);
    let vocab: serde_json::Map<_, _> = words
        .into_iter()
        .chain(letters)
        .enumerate()
        .map(|(id, word)| (word, json!(id)))
        .collect();
    let config = json!({
        "model_type": "bert", "vocab_size": vocab.len(), "hidden_size": HIDDEN, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 32, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
        "max_position_embeddings": 12, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
        "pad_token_id": 0, "position_embedding_type": "absolute", "use_cache": true, "classifier_dropout": null
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "added_tokens": [], "normalizer": null,
        "padding": {
            "strategy": { "Fixed": 30 }, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"
        },
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" }
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut weights: HashMap<String, Tensor> = HashMap::new();
    let mut put = |name: String, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let at = weights.len() as f32;
        let middle = f32::from(u8::from(name.ends_with("LayerNorm.weight")));
        let values: Vec<f32> = (0..count)
            .map(|i| middle + ((i as f32) * 1.7 + at).sin() * 0.3)
            .collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        weights.insert(name, tensor);
    };
    let norm = |put: &mut dyn FnMut(String, &[usize]), name: &str| {
        put(format!("{name}.weight"), &[HIDDEN]);
        put(format!("{name}.bias"), &[HIDDEN]);
    };
    for (name, rows) in [("word", 30), ("position", 12), ("token_type", 2)] {
        put(
            format!("embeddings.{name}_embeddings.weight"),
            &[rows, HIDDEN],
        );
    }
    norm(&mut put, "embeddings.LayerNorm");
    for layer in 0..2 {
        let layer = format!("encoder.layer.{layer}");
        for (name, to, from) in [
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", 32, HIDDEN),
            ("output.dense", HIDDEN, 32),
        ] {
            put(format!("{layer}.{name}.weight"), &[to, from]);
            put(format!("{layer}.{name}.bias"), &[to]);
        }
        norm(&mut put, &format!("{layer}.attention.output.LayerNorm"));
        norm(&mut put, &format!("{layer}.output.LayerNorm"));
    }
    candle_core::safetensors::save(&weights, folder.join("model.safetensors")).unwrap();
}

/// Each has length 1, is what it is without the others, and the same on every device.
async fn vectors_of_texts(choice: DeviceChoice) {
    let dir = tempfile::tempdir().unwrap();
    tiny_bert(dir.path());
    let device = Devices::choose(choice).unwrap().open().unwrap();
    let mut models = Models::new();
    models
        .load_embeddings("minilm", dir.path(), &device)
        .unwrap();
    let mut on_cpu = Models::new();
    on_cpu
        .load_embeddings("minilm", dir.path(), &Device::Cpu)
        .unwrap();

    let all = ["embed", "minilm", "a b c", "x", "q r s t u v"];
    let vectors = |text: &str| -> Vec<Vec<f32>> { serde_json::from_str(text).unwrap() };
    let (code, stdout, stderr) = ask(choice, &models, &all).await;
    assert_eq!(code, 0, "{stderr}");
    // [CLS] and [SEP] are around each.
    assert_eq!(stderr, "tokens: 16\n");
    let made = vectors(&stdout);
    let (_, stdout, _) = ask(choice, &on_cpu, &all).await;
    let expected = vectors(&stdout);
    for (i, text) in all[2..].iter().enumerate() {
        let (_, stdout, _) = ask(choice, &models, &["embed", "minilm", text]).await;
        let alone = vectors(&stdout).remove(0);
        assert_eq!(alone.len(), 16);
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(near(&alone, &made[i]), "{alone:?} {made:?}");
        assert!(near(&made[i], &expected[i]), "{made:?} {expected:?}");
        let length: f32 = alone.iter().map(|x| x * x).sum();
        assert!((length - 1.).abs() < 1e-4, "{length}");
    }
    let angle: f32 = made[0].iter().zip(&made[2]).map(|(a, b)| a * b).sum();
    assert!(angle < 0.9999, "{made:?}");
    let long = "a ".repeat(11);
    let (code, _, stderr) = ask(choice, &models, &["embed", "minilm", "a", &long]).await;
    let want = "invalid-input: text 2 has more tokens than the model takes, 12\n";
    assert_eq!((code, stderr.as_str()), (1, want));
}

on_devices!(vectors_of_texts);
