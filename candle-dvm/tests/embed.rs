//! `candle-dvm embed`, over folders with tiny models as they come from sentence-transformers.

use crate::cli::{program, run, stdout};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_engine::embed::EncoderFiles;
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::embed::{EncoderConfig, Options, Pooling};
use serde_json::{json, Value as Json};
use std::path::Path;
use tempfile::TempDir;

pub const HIDDEN: usize = 24;
pub const LIMIT: usize = 20;

/// Weights that depend on their names and indices alone.
fn fill(weights: &VarMap) {
    for (name, var) in weights.data().lock().unwrap().iter() {
        let seed = name
            .bytes()
            .fold(0u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        let middle = f32::from(u8::from(name.ends_with("weight") && var.rank() == 1));
        let value = |i: u32| {
            let mixed = (seed ^ i.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
            middle + (mixed >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let values: Vec<f32> = (0..var.elem_count() as u32).map(value).collect();
        let values = Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap();
        var.set(&values).unwrap();
    }
}

/// Words of one letter, between [CLS] and [SEP].
fn tokenizer() -> Json {
    let letters = ('a'..='z').map(|letter| letter.to_string());
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(String::from);
    let words = words.into_iter().chain(letters).enumerate();
    let vocab: serde_json::Map<_, _> = words.map(|(id, word)| (word, json!(id))).collect();
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "decoder": null,
        // Both are for other programs.
        "truncation": { "max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right" },
        "padding": { "strategy": { "Fixed": 30 }, "direction": "Left", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]" },
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]" }
    })
}

pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self::of(
            json!({"model_type": "bert", "vocab_size": 30, "hidden_size": HIDDEN, "num_hidden_layers": 2,
            "num_attention_heads": 2, "intermediate_size": 40, "max_position_embeddings": LIMIT}),
        )
    }

    fn of(config: Json) -> Self {
        Self::with(&config, |vb| {
            let encoder = EncoderConfig::parse(&config.to_string());
            encoder.unwrap().load(vb).unwrap();
        })
    }

    /// With the weights that `load` asks for.
    pub fn with(config: &Json, load: impl FnOnce(VarBuilder)) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let weights = VarMap::new();
        load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu));
        fill(&weights);
        weights
            .save(folder.path().join("model.safetensors"))
            .unwrap();
        folder.write("config.json", config);
        folder.write("tokenizer.json", &tokenizer());
        folder
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn name(&self) -> &str {
        self.path().to_str().unwrap()
    }

    pub fn write(&self, name: &str, json: &Json) {
        let file = self.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, json.to_string()).unwrap();
    }

    /// The output of the command.
    fn embed(&self, args: &[&str]) -> String {
        stdout(&run(&[&["embed", "--model", self.name()], args].concat()))
    }

    /// The lines of `--json`.
    fn lines(&self, args: &[&str]) -> Vec<Json> {
        let text = self.embed(&[&["--json"], args].concat());
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn vectors(&self, args: &[&str]) -> Vec<Vec<f64>> {
        self.lines(args).iter().map(vector).collect()
    }

    /// The one line of an error.
    fn problem(&self, args: &[&str]) -> String {
        problem(&[&["embed", "--model", self.name(), "--device", "cpu"], args].concat())
    }
}

pub fn problem(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

fn vector(line: &Json) -> Vec<f64> {
    let elements = line["embedding"].as_array().unwrap().iter();
    elements.map(|element| element.as_f64().unwrap()).collect()
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn unit(vector: &[f64]) -> Vec<f64> {
    let length = length(vector);
    vector.iter().map(|x| x / length).collect()
}

#[track_caller]
fn close(found: &[f64], wanted: &[f64], most: f64) {
    assert_eq!(found.len(), wanted.len());
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!(
            (found - wanted).abs() < most,
            "element {i}: {found}, expected {wanted}"
        );
    }
}

#[test]
fn vectors_are_the_librarys_on_each_device() {
    let folder = Folder::new();
    let texts = ["a b c", "x", "q r s t u v w", "b a"];
    let files = EncoderFiles::open(folder.path(), None).unwrap();
    let tokens = texts.map(|text| files.tokens(text, "", text).unwrap());
    assert_eq!(tokens[0].ids, [2, 4, 5, 6, 3]);
    let wanted = files
        .load(&Device::Cpu)
        .unwrap()
        .embed(&tokens, &Options::default());
    let wanted = wanted
        .unwrap()
        .to_dtype(DType::F64)
        .unwrap()
        .to_vec2::<f64>()
        .unwrap();
    for device in ["cpu", "webgpu"] {
        let device = ["--device", device];
        let lines = folder.lines(&[&device[..], &texts].concat());
        for (((line, text), tokens), wanted) in lines.iter().zip(texts).zip(&tokens).zip(&wanted) {
            assert_eq!(line["text"], text);
            assert_eq!(line["tokens"], tokens.ids.len());
            assert_eq!(line["cut"], false);
            close(&vector(line), wanted, 1e-5);
        }
        assert_eq!(lines.len(), texts.len());
        // Alone, and two at a time.
        for (text, wanted) in texts.iter().zip(&wanted) {
            close(
                &folder.vectors(&[&device[..], &[text]].concat())[0],
                wanted,
                1e-5,
            );
        }
        let two = folder.vectors(&[&device[..], &["--batch", "2"], &texts].concat());
        two.iter()
            .zip(&wanted)
            .for_each(|(found, wanted)| close(found, wanted, 1e-5));
    }
}

#[test]
fn the_table_has_the_cosines() {
    let folder = Folder::new();
    let file = folder.path().join("texts.txt");
    std::fs::write(&file, "q r s t\na b c\n").unwrap();
    let args = ["--device", "cpu", "a b c", "--file", file.to_str().unwrap()];
    let units: Vec<_> = folder.vectors(&args).iter().map(|v| unit(v)).collect();
    let table = folder.embed(&args);
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert_eq!(
        rows[0].split_whitespace().collect::<Vec<_>>(),
        ["1", "2", "3"]
    );
    for (i, (row, text)) in rows[1..]
        .iter()
        .zip(["a b c", "q r s t", "a b c"])
        .enumerate()
    {
        assert!(row.ends_with(&format!("  {text}")), "{table}");
        let cells: Vec<f64> = row
            .split_whitespace()
            .skip(1)
            .take(3)
            .map(|cell| cell.parse().unwrap())
            .collect();
        let cosine = |other: &Vec<f64>| units[i].iter().zip(other).map(|(a, b)| a * b).sum();
        let wanted: Vec<f64> = units.iter().map(cosine).collect();
        close(&cells, &wanted, 6e-4);
        assert!((cells[i] - 1.).abs() < 1e-9, "{table}");
    }
}

#[test]
fn flags_and_the_folders_files_say_how() {
    let folder = Folder::new();
    let plain = folder.vectors(&["a b c"]).remove(0);
    assert!(
        (length(&plain) - 1.).abs() > 1e-2,
        "the length is not 1 by chance"
    );
    let first = folder.vectors(&["--pooling", "cls", "a b c"]).remove(0);
    let last = folder.vectors(&["--pooling", "last", "a b c"]).remove(0);
    assert!(first != plain && last != plain && first != last);
    close(
        &folder.vectors(&["--normalize", "a b c"])[0],
        &unit(&plain),
        1e-5,
    );
    close(
        &folder.vectors(&["--dim", "5", "a b c"])[0],
        &unit(&plain[..5]),
        1e-5,
    );
    let cut = folder.vectors(&["--dim", "5", "--no-normalize", "a b c"]);
    close(&cut[0], &plain[..5], 1e-6);
    let prefixed = folder.vectors(&["--prefix", "q ", "a b c"]);
    close(&prefixed[0], &folder.vectors(&["q a b c"])[0], 1e-6);

    let module = |kind: &str, path| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    folder.write(
        "modules.json",
        &json!([
            module("Transformer", ""),
            module("Pooling", "1_Pooling"),
            module("Normalize", "2_Normalize")
        ]),
    );
    folder.write(
        "1_Pooling/config.json",
        &json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}),
    );
    close(&folder.vectors(&["a b c"])[0], &unit(&first), 1e-5);
    close(
        &folder.vectors(&["--no-normalize", "a b c"])[0],
        &first,
        1e-6,
    );
    close(
        &folder.vectors(&["--pooling", "mean", "a b c"])[0],
        &unit(&plain),
        1e-5,
    );
    folder.write(
        "1_Pooling/config.json",
        &json!({"pooling_mode_max_tokens": true}),
    );
    let max = folder.problem(&["a"]);
    assert!(
        max.contains("1_Pooling/config.json") && max.contains("max_tokens"),
        "{max}"
    );
    folder.write(
        "1_Pooling/config.json",
        &json!({"pooling_mode_mean_tokens": true, "include_prompt": false}),
    );
    let prefix = folder.problem(&["--prefix", "q ", "a"]);
    assert!(prefix.contains("prefix"), "{prefix}");
}

/// The layers after the pooling are in folders next to the model.
#[test]
fn layers_of_other_folders_follow() {
    let folder = Folder::new();
    let plain = folder.vectors(&["a b c"]).remove(0);
    let module = |kind: &str, path| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    folder.write(
        "modules.json",
        &json!([
            module("Transformer", ""),
            module("Pooling", "1_Pooling"),
            module("Dense", "2_Dense"),
            module("Normalize", "3_Normalize")
        ]),
    );
    folder.write("1_Pooling/config.json", &json!({"pooling_mode": "mean"}));
    let config = |takes| {
        json!({"in_features": takes, "out_features": 3, "bias": false,
        "activation_function": "torch.nn.modules.linear.Identity"})
    };
    folder.write("2_Dense/config.json", &config(HIDDEN));
    let missing = folder.problem(&["a"]);
    assert!(missing.contains("2_Dense"), "{missing}");
    let weight = |i: usize, j: usize| ((7 * i + 3 * j) % 5) as f32 - 2.;
    let rows: Vec<f32> = (0..3 * HIDDEN)
        .map(|k| weight(k / HIDDEN, k % HIDDEN))
        .collect();
    let rows = Tensor::from_vec(rows, (3, HIDDEN), &Device::Cpu).unwrap();
    let weights = std::collections::HashMap::from([("linear.weight", rows)]);
    let file = folder.path().join("2_Dense/model.safetensors");
    candle_core::safetensors::save(&weights, file).unwrap();
    let row = |i| {
        plain
            .iter()
            .enumerate()
            .map(move |(j, x)| x * f64::from(weight(i, j)))
            .sum()
    };
    let wanted: Vec<f64> = (0..3).map(row).collect();
    close(&folder.vectors(&["a b c"])[0], &unit(&wanted), 1e-5);
    folder.write("2_Dense/config.json", &config(HIDDEN + 1));
    let shape = folder.problem(&["a"]);
    assert!(shape.contains("2_Dense"), "{shape}");
}

/// A decoder computes vectors if its folder or the command line says how.
#[test]
fn embedding_decoders_differ_from_models_that_write() {
    let folder = Folder::of(
        json!({"model_type": "qwen3", "vocab_size": 30, "hidden_size": HIDDEN, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 40,
        "max_position_embeddings": LIMIT}),
    );
    let none = folder.problem(&["a"]);
    assert!(
        none.contains("modules.json") && none.contains("--pooling"),
        "{none}"
    );
    let last = folder.vectors(&["--pooling", "last", "a b"]).remove(0);
    folder.write("modules.json", &json!([]));
    folder.write(
        "1_Pooling/config.json",
        &json!({"pooling_mode": "lasttoken"}),
    );
    for device in ["cpu", "webgpu"] {
        let both = folder.vectors(&["--device", device, "a b", "c d e f g"]);
        close(&both[0], &last, 1e-5);
    }
}

#[test]
fn long_texts_are_cut_and_said_so() {
    let folder = Folder::new();
    let long = vec!["a"; 50].join(" ");
    for (limit, kept) in [(None, LIMIT), (Some(9), 9), (Some(99), LIMIT)] {
        if let Some(limit) = limit {
            folder.write(
                "sentence_bert_config.json",
                &json!({"max_seq_length": limit, "do_lower_case": true}),
            );
        }
        let shorter = vec!["a"; kept - 2].join(" ");
        let output = program(&["embed", "--model", folder.name(), "--json", &long, &shorter])
            .output()
            .unwrap();
        let lines: Vec<Json> = stdout(&output)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!([&lines[0]["cut"], &lines[1]["cut"]], [true, false]);
        assert_eq!(lines[0]["tokens"], kept);
        close(&vector(&lines[0]), &vector(&lines[1]), 1e-6);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.contains("text 1") && stderr.contains(&format!("truncated to {kept} tokens")),
            "{stderr}"
        );
        assert!(!stderr.contains("text 2"), "{stderr}");
    }
    // The last of these files asks for lower case.
    close(
        &folder.vectors(&["A B"])[0],
        &folder.vectors(&["a b"])[0],
        1e-9,
    );
    folder.write("sentence_bert_config.json", &json!({"max_seq_length": 2}));
    let none = folder.problem(&["a"]);
    assert!(
        none.contains("tokenizer.json") && none.contains("special tokens"),
        "{none}"
    );
}

#[test]
fn mistakes_are_one_line() {
    let folder = Folder::new();
    assert!(folder.problem(&[]).contains("no texts"));
    let empty = folder.problem(&["a", "  "]);
    assert!(
        empty.contains("text 2") && empty.contains("empty"),
        "{empty}"
    );
    let file = folder.path().join("texts.txt");
    std::fs::write(&file, "a b\n\nc\n").unwrap();
    let line = folder.problem(&["--file", file.to_str().unwrap()]);
    assert!(
        line.contains("texts.txt:2") && line.contains("empty"),
        "{line}"
    );
    std::fs::write(&file, [0xFF, 0xFE]).unwrap();
    assert!(folder
        .problem(&["--file", file.to_str().unwrap()])
        .contains("texts.txt"));
    assert!(folder
        .problem(&["--file", "/no/such/file"])
        .contains("/no/such/file"));
    assert!(folder.problem(&["--batch", "0", "a"]).contains("--batch 0"));
    for dim in ["0", "25"] {
        let text = folder.problem(&["--dim", dim, "a"]);
        assert!(
            text.contains(&format!("--dim {dim}")) && text.contains("1 to 24"),
            "{text}"
        );
    }
    assert!(folder.problem(&["--pooling", "max", "a"]).contains("max"));
    assert!(problem(&["embed", "--model", "/no/such/folder", "a"]).contains("/no/such/folder"));
    assert!(problem(&["embed", "--model", file.to_str().unwrap(), "a"]).contains("texts.txt"));

    type Change = fn(&Folder);
    let cases: [(Change, &[&str]); 6] = [
        (
            |folder| folder.write("config.json", &json!({"model_type": "t5"})),
            &["config.json", "t5", "modernbert"],
        ),
        (
            |folder| folder.write("config.json", &json!({"model_type": "llama"})),
            &["config.json", "llama", "text generation"],
        ),
        (
            |folder| std::fs::remove_file(folder.path().join("config.json")).unwrap(),
            &["config.json"],
        ),
        (
            |folder| std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap(),
            &["tokenizer.json", "vocab.txt"],
        ),
        (
            |folder| std::fs::remove_file(folder.path().join("model.safetensors")).unwrap(),
            &["model.safetensors"],
        ),
        (
            |folder| {
                let config = json!({"model_type": "bert", "vocab_size": 30, "hidden_size": HIDDEN, "num_hidden_layers": 3,
                    "num_attention_heads": 2, "intermediate_size": 40, "max_position_embeddings": LIMIT});
                folder.write("config.json", &config);
            },
            &["encoder.layer.2"],
        ),
    ];
    for (change, parts) in cases {
        let folder = Folder::new();
        change(&folder);
        let text = folder.problem(&["a"]);
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{parts:?}: {text}"
        );
    }
}

/// A tokenizer of another model has tokens that this one does not.
#[test]
fn tokens_outside_the_vocabulary_are_errors() {
    let folder = Folder::of(
        json!({"model_type": "distilbert", "vocab_size": 10, "dim": HIDDEN, "n_layers": 1, "n_heads": 2,
        "hidden_dim": 40, "max_position_embeddings": LIMIT}),
    );
    assert_eq!(folder.vectors(&["a b"]).len(), 1);
    let output = run(&["embed", "--model", folder.name(), "--device", "cpu", "a z"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("token 29") && stderr.contains("vocabulary"),
        "{stderr}"
    );
}

#[test]
fn the_library_takes_a_pooling_of_choice() {
    let folder = Folder::new();
    let files = EncoderFiles::open(folder.path(), Some(Pooling::Last)).unwrap();
    assert_eq!(files.options().pooling, Pooling::Last);
    assert_eq!(
        (files.config().size, files.config().max_tokens),
        (HIDDEN, LIMIT)
    );
}

/// The folder's model as llama.cpp's converter writes it.
fn as_gguf(folder: &Folder) -> std::path::PathBuf {
    let weights =
        candle_core::safetensors::load(folder.path().join("model.safetensors"), &Device::Cpu);
    let mut tensors = Vec::new();
    for (name, tensor) in weights.unwrap() {
        let mut name = name.replace("encoder.layer.", "blk.");
        for (from, to) in [
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.position_embeddings", "position_embd"),
            ("embeddings.token_type_embeddings", "token_types"),
            ("embeddings.LayerNorm", "token_embd_norm"),
            ("attention.self.query", "attn_q"),
            ("attention.self.key", "attn_k"),
            ("attention.self.value", "attn_v"),
            ("attention.output.dense", "attn_output"),
            ("attention.output.LayerNorm", "attn_output_norm"),
            ("intermediate.dense", "ffn_up"),
            ("output.dense", "ffn_down"),
            ("output.LayerNorm", "layer_output_norm"),
        ] {
            name = name.replace(from, to);
        }
        tensors.push((name, QTensor::quantize(&tensor, GgmlDType::F32).unwrap()));
    }
    let text = |text: &str| Value::String(text.into());
    let letters = ('a'..='z').map(|letter| format!("\u{2581}{letter}"));
    let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        .map(String::from)
        .into_iter()
        .chain(letters);
    let n = |count: usize| Value::U32(count as u32);
    let metadata = [
        ("general.architecture", text("bert")),
        ("bert.block_count", n(2)),
        ("bert.context_length", n(LIMIT)),
        ("bert.embedding_length", n(HIDDEN)),
        ("bert.feed_forward_length", n(40)),
        ("bert.attention.head_count", n(2)),
        ("bert.attention.layer_norm_epsilon", Value::F32(1e-12)),
        ("bert.attention.causal", Value::Bool(false)),
        ("bert.pooling_type", n(2)),
        ("tokenizer.ggml.model", text("bert")),
        (
            "tokenizer.ggml.tokens",
            Value::Array(tokens.map(Value::String).collect()),
        ),
        ("tokenizer.ggml.cls_token_id", n(2)),
        ("tokenizer.ggml.seperator_token_id", n(3)),
        ("tokenizer.ggml.unknown_token_id", n(1)),
        ("tokenizer.ggml.padding_token_id", n(0)),
    ];
    let path = folder.path().join("bert.gguf");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    gguf_file::write(
        &mut std::fs::File::create(&path).unwrap(),
        &metadata,
        &tensors,
    )
    .unwrap();
    path
}

#[test]
fn a_gguf_file_has_the_folders_vectors() {
    let folder = Folder::new();
    let path = as_gguf(&folder);
    let texts = ["a b c", "Q r", "a !"];
    let line = |more: &[&str]| {
        let model = path.to_str().unwrap();
        let args = [
            &["embed", "--json", "--device", "cpu", "--model", model][..],
            more,
        ]
        .concat();
        let text = stdout(&run(&args));
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Json>(line).unwrap());
        lines.map(|line| vector(&line)).collect::<Vec<_>>()
    };
    // The file says CLS, and lower case follows from its vocabulary; the folder says neither.
    let wanted = folder.vectors(&["--device", "cpu", "--pooling", "cls", "a b c", "q r", "a !"]);
    for (found, wanted) in line(&texts).iter().zip(&wanted) {
        close(found, &unit(wanted), 1e-5);
    }
    let mean = folder.vectors(&["--device", "cpu", "--pooling", "mean", "a b c"]);
    close(
        &line(&["--pooling", "mean", "a b c"])[0],
        &unit(&mean[0]),
        1e-5,
    );
    let embedded = crate::gguf_model::in_format(GgmlDType::Q8_0);
    let error = problem(&[
        "embed",
        "--device",
        "cpu",
        "--model",
        embedded.to_str().unwrap(),
        "a",
    ]);
    assert!(
        error.contains("llama") && error.contains("embedding model"),
        "{error}"
    );
}
