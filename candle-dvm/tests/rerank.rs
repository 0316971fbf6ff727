//! `candle-dvm rerank`, over folders with tiny models.

use crate::cli::{program, run, stdout};
use crate::embed::{problem, Folder, HIDDEN, LIMIT};
use candle_core::Device;
use candle_engine::rerank::RerankerFiles;
use candle_transformers::rerank::{Answers, Options, RerankerConfig, Scale};
use serde_json::{json, Value};
use std::io::Write;
use std::process::Stdio;

pub fn config() -> Value {
    json!({"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"},
        "vocab_size": 30, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40,
        "max_position_embeddings": LIMIT})
}

/// A folder with a reranker.
pub fn folder() -> Folder {
    Folder::with(&config(), |vb| {
        let reranker = RerankerConfig::parse(&config().to_string());
        reranker.unwrap().load(vb).unwrap();
    })
}

pub const QUERY: &str = "a b c";
pub const DOCUMENTS: [&str; 5] = ["x y", "a b c d e f", "q", "r s t u v w x", "c b"];

/// The library's scores, or logits.
pub fn wanted(folder: &Folder, scale: Scale) -> Vec<f32> {
    let files = RerankerFiles::open(folder.path()).unwrap();
    let query = files.query("query", QUERY).unwrap();
    let pairs = DOCUMENTS.map(|document| files.pair("document", &query, document).unwrap());
    assert_eq!(pairs[0].pair.ids, [2, 4, 5, 6, 3, 27, 28, 3]);
    assert_eq!(pairs[0].pair.types, [0, 0, 0, 0, 0, 1, 1, 1]);
    let options = Options {
        scale,
        ..files.options()
    };
    let reranker = files.load(&Device::Cpu).unwrap();
    let scores = reranker.scores(&pairs, &options).unwrap();
    scores.to_vec1().unwrap()
}

/// The indices of numbers, the largest first.
pub fn order(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

fn lines(output: &str) -> Vec<Value> {
    let lines = output.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_best_documents_come_first_on_each_device() {
    let folder = folder();
    let args = ["rerank", "--model", folder.name(), "--query", QUERY];
    let rerank = |more: &[&str]| stdout(&run(&[&args[..], more, &DOCUMENTS].concat()));
    for (flags, scale) in [(&[][..], Scale::Sigmoid), (&["--logits"], Scale::Identity)] {
        let wanted = wanted(&folder, scale);
        let order = order(&wanted);
        assert_ne!(order, [0, 1, 2, 3, 4], "the order is not there by chance");
        for device in ["cpu", "webgpu"] {
            let all = [&["--json", "--device", device, "--batch", "2"], flags].concat();
            let found = lines(&rerank(&all));
            assert_eq!(found.len(), DOCUMENTS.len());
            for (line, place) in found.iter().zip(&order) {
                assert_eq!(line["index"], *place);
                assert_eq!(line["document"], DOCUMENTS[*place]);
                assert_eq!(line["cut"], false);
                let score = line["score"].as_f64().unwrap() as f32;
                let off = (score - wanted[*place]).abs();
                assert!(off < 1e-4, "{device} {place}: {score} {wanted:?}");
            }
        }
        let top = rerank(&[&["--device", "cpu", "--top", "2"], flags].concat());
        let shown = order[..2].iter();
        let shown: String = shown
            .map(|i| format!("{:>8.4}  {}\n", wanted[*i], DOCUMENTS[*i]))
            .collect();
        assert_eq!(top, shown);
    }
    // The model's files ask for logits.
    folder.write(
        "config_sentence_transformers.json",
        &json!({"activation_fn": "torch.nn.modules.linear.Identity"}),
    );
    let found = lines(&rerank(&["--json", "--device", "cpu", "--top", "1"]));
    let wanted = wanted(&folder, Scale::Identity);
    let best = wanted[order(&wanted)[0]];
    let score = found[0]["score"].as_f64().unwrap() as f32;
    assert!((score - best).abs() < 1e-5, "{score} {best}");
}

#[test]
fn documents_come_from_files_and_standard_input() {
    let folder = folder();
    let args = [
        "rerank",
        "--model",
        folder.name(),
        "--query",
        QUERY,
        "--device",
        "cpu",
    ];
    let wanted = stdout(&run(&[&args[..], &DOCUMENTS].concat()));
    let file = folder.path().join("documents.txt");
    std::fs::write(&file, DOCUMENTS[1..].join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let found = stdout(&run(&[&args[..], &["--file", file, DOCUMENTS[0]]].concat()));
    assert_eq!(found, wanted);
    for file in [&[][..], &["--file", "-"]] {
        let mut command = program(&[&args[..], file].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = DOCUMENTS.join("\n");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(lines.as_bytes()).unwrap();
        drop(stdin);
        assert_eq!(stdout(&child.wait_with_output().unwrap()), wanted);
    }
    // Long documents are cut, and the program says so.
    let long = ["a"; 50].join(" ");
    let output = run(&[&args[..], &["--json", "b", &long]].concat());
    let found = lines(&stdout(&output));
    let cut = found.iter().find(|line| line["index"] == 1).unwrap();
    assert_eq!((&cut["cut"], &cut["tokens"]), (&json!(true), &json!(LIMIT)));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("document 2") && stderr.contains("truncated to 20 tokens"),
        "{stderr}"
    );
}

/// A language model that answers yes or no, with a prompt around the two texts.
#[test]
fn a_language_model_answers() {
    let config = json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 30, "hidden_size": HIDDEN,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 40,
        "max_position_embeddings": 200, "tie_word_embeddings": false});
    let answers = Answers { yes: 28, no: 29 };
    let folder = Folder::with(&config, |vb| {
        let reranker = RerankerConfig::parse(&config.to_string()).unwrap();
        reranker.with_answers(answers).load(vb).unwrap();
    });
    let args = [
        "rerank",
        "--model",
        folder.name(),
        "--query",
        QUERY,
        "--json",
    ];
    let none = problem(&[&args[..], &["a"]].concat());
    assert!(
        none.contains("tokenizer.json") && none.contains("\"yes\""),
        "{none}"
    );
    // Its last letters become the answers.
    let tokenizer = std::fs::read_to_string(folder.path().join("tokenizer.json")).unwrap();
    let tokenizer = tokenizer
        .replace("\"y\"", "\"yes\"")
        .replace("\"z\"", "\"no\"");
    folder.write("tokenizer.json", &serde_json::from_str(&tokenizer).unwrap());
    let files = RerankerFiles::open(folder.path()).unwrap();
    let query = files.query("query", QUERY).unwrap();
    let pairs = DOCUMENTS.map(|document| files.pair("document", &query, document).unwrap());
    let reranker = files.load(&Device::Cpu).unwrap();
    let scores = reranker.scores(&pairs, &files.options()).unwrap();
    let wanted: Vec<f32> = scores.to_vec1().unwrap();
    for device in ["cpu", "webgpu"] {
        let found = stdout(&run(
            &[&args[..], &["--device", device], &DOCUMENTS].concat()
        ));
        for (line, place) in lines(&found).iter().zip(order(&wanted)) {
            assert_eq!(line["index"], place, "{device}");
            let score = line["score"].as_f64().unwrap() as f32;
            assert!(
                (score - wanted[place]).abs() < 1e-4,
                "{device}: {score} {wanted:?}"
            );
        }
    }
    let other = run(&[
        &args[..],
        &["--instruction", "q r s", "--device", "cpu", "c"],
    ]
    .concat());
    let plain = run(&[&args[..], &["--device", "cpu", "c"]].concat());
    assert_ne!(stdout(&other), stdout(&plain));
}

#[test]
fn mistakes_are_one_line() {
    let folder = folder();
    let args = [
        "rerank",
        "--device",
        "cpu",
        "--model",
        folder.name(),
        "--query",
    ];
    let wrong = |more: &[&str]| problem(&[&args[..], more].concat());
    assert!(wrong(&["a"]).contains("no documents"));
    let empty = wrong(&["a", "b", " "]);
    assert!(
        empty.contains("document 2") && empty.contains("empty"),
        "{empty}"
    );
    let query = wrong(&[" ", "b"]);
    assert!(
        query.contains("--query") && query.contains("empty"),
        "{query}"
    );
    let none = wrong(&["a", "b", "--top", "0"]);
    assert!(
        none.contains("top") && none.contains("at least 1"),
        "{none}"
    );
    let file = wrong(&["a", "--file", "/nowhere/documents.txt"]);
    assert!(file.contains("/nowhere/documents.txt"), "{file}");
    let task = wrong(&["a", "b", "--instruction", "c"]);
    assert!(task.contains("takes no instruction"), "{task}");
    folder.write("tokenizer_config.json", &json!({"model_max_length": 4}));
    let short = wrong(&["a", "b"]);
    assert!(short.contains("3 special tokens"), "{short}");
    // Each command names the one that takes the model.
    let generated = problem(&["generate", "--model", folder.name(), "--prompt", "a"]);
    assert!(generated.contains("candle-dvm rerank"), "{generated}");
    let encoder = Folder::new();
    let args = ["rerank", "--model", encoder.name(), "--query", "a", "b"];
    let encoder = problem(&args);
    assert!(
        encoder.contains("config.json") && encoder.contains("sequence classification"),
        "{encoder}"
    );
}
