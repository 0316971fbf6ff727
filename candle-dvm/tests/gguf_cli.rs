//! GGUF files through the program: what it prints, and what it says about bad ones.

use crate::cli::{assert_one_line, run, stdout};
use crate::gguf_model::{in_format, GgufModel};
use crate::support::golden;
use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use serde_json::{json, Value as Json};
use std::path::Path;

fn generate(path: &Path) -> [&str; 5] {
    [
        "generate",
        "--prompt",
        "fn main",
        "--model",
        path.to_str().unwrap(),
    ]
}

#[test]
fn the_report_names_formats() {
    let prompt = &golden().prompts[0];
    let file = in_format(GgmlDType::Q8_0);
    let args = [
        "generate",
        "--model",
        file.to_str().unwrap(),
        "--prompt",
        &prompt.text,
        "--max-tokens",
        "4",
        "--device",
        "cpu",
        "--json",
    ];
    let output = run(&args);
    let json: Json = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["token_ids"], json!(prompt.greedy_ids[..4]));
    assert_eq!(
        (&json["weights"], &json["dtype"]),
        (&json!("q8_0"), &json!("f32"))
    );
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("of q8_0") && stderr.contains("f32 on cpu"),
        "{stderr}"
    );
}

/// A way to break a file.
type Break = fn(&mut GgufModel);

fn zeros(dims: &[usize], format: GgmlDType) -> QTensor {
    let zeros = Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    QTensor::quantize(&zeros, format).unwrap()
}

fn set(model: &mut GgufModel, key: &str, value: Value) {
    model
        .metadata
        .insert(key.to_string(), value)
        .expect("a key that is there");
}

fn lose(model: &mut GgufModel, key: &str) {
    let key = model.metadata.remove(key);
    key.expect("a key that is there");
}

#[test]
fn bad_files() {
    let cases: &[(Break, &[&str])] = &[
        (
            |m| lose(m, "llama.block_count"),
            &["llama.block_count", "missing"],
        ),
        (
            |m| set(m, "llama.block_count", Value::U32(2_000_000_000)),
            &["llama.block_count", "2000000000", "4096"],
        ),
        (
            |m| set(m, "llama.block_count", Value::U32(7)),
            &["blk.6.attn_norm.weight", "missing"],
        ),
        (
            |m| set(m, "general.architecture", Value::String("mamba".into())),
            &["general.architecture", "mamba", "llama"],
        ),
        (
            |m| set(m, "llama.context_length", Value::U64(1 << 60)),
            &["llama.context_length"],
        ),
        (
            |m| lose(m, "tokenizer.ggml.model"),
            &["tokenizer.ggml.model", "missing"],
        ),
        (
            |m| set(m, "tokenizer.ggml.model", Value::String("rwkv".into())),
            &["tokenizer.ggml.model", "rwkv", "gpt2"],
        ),
        (
            |m| set(m, "tokenizer.ggml.pre", Value::String("klingon".into())),
            &["tokenizer.ggml.pre", "klingon", "llama-bpe"],
        ),
        (
            |m| lose(m, "tokenizer.ggml.merges"),
            &["tokenizer.ggml.merges", "missing"],
        ),
        (
            |m| set(m, "tokenizer.ggml.eos_token_id", Value::U32(4096)),
            &["tokenizer.ggml.eos_token_id", "4096"],
        ),
        (
            |m| {
                let key = "tokenizer.ggml.eot_token_id".to_string();
                m.metadata.insert(key, Value::String("end".into()));
            },
            &["tokenizer.ggml.eot_token_id"],
        ),
        (
            |m| drop(m.tensors.remove("blk.3.ffn_up.weight")),
            &["blk.3.ffn_up.weight", "missing"],
        ),
        (
            |m| {
                let tensor = zeros(&[256, 256], GgmlDType::Q4_0);
                m.tensors.insert("blk.3.attn_v.weight".into(), tensor);
            },
            &["blk.3.attn_v.weight", "[256, 256]", "[128, 256]"],
        ),
        (
            |m| {
                let tensor = zeros(&[64], GgmlDType::F32);
                m.tensors.insert("blk.3.attn_q_norm.weight".into(), tensor);
            },
            &["blk.3.attn_q_norm.weight", "no such tensor"],
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (i, (change, parts)) in cases.iter().enumerate() {
        let mut model = GgufModel::new(|_| GgmlDType::F16);
        change(&mut model);
        let path = dir.path().join(format!("{i}.gguf"));
        model.write(&path);
        let named = [&[path.to_str().unwrap()], *parts].concat();
        assert_one_line(&generate(&path), &named);
    }
}

#[test]
fn cut_short() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(in_format(GgmlDType::Q8_0)).unwrap();
    let path = dir.path().join("cut.gguf");
    let name = path.to_str().unwrap().to_string();
    // In the head, in the metadata, in the tensors.
    for (len, part) in [
        (0, ""),
        (3, ""),
        (2_000, "metadata"),
        (bytes.len() - 1_000, "tensor"),
        (bytes.len() / 2, "tensor"),
    ] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert_one_line(&generate(&path), &[&name, part]);
    }
    std::fs::write(&path, b"{\"not\": \"a GGUF file\"}").unwrap();
    assert_one_line(&generate(&path), &[&name, "GGUF"]);
}

/// A folder around GGUF files, and a name that is none.
#[test]
fn paths_beside_the_file() {
    let file = in_format(GgmlDType::Q8_0);
    let (folder, name) = (file.parent().unwrap(), file.to_str().unwrap());
    assert_one_line(
        &generate(folder),
        &[folder.to_str().unwrap(), "config.json", name],
    );
    let mistyped = folder.join("Q8_00.gguf");
    let parts = [mistyped.to_str().unwrap(), "no such file or folder"];
    assert_one_line(&generate(&mistyped), &parts);
}

/// The model in `count` files, as `llama-gguf-split` writes them: the path of each.
pub fn in_parts(folder: &Path, count: usize) -> Vec<std::path::PathBuf> {
    let mut whole = GgufModel::new(|_| GgmlDType::Q8_0);
    let tensors = std::mem::take(&mut whole.tensors);
    let all = tensors.len();
    let mut tensors = tensors.into_iter();
    let mut paths = Vec::new();
    for no in 0..count {
        let mut part = GgufModel {
            metadata: Default::default(),
            tensors: tensors.by_ref().take(all.div_ceil(count)).collect(),
        };
        if no == 0 {
            part.metadata = std::mem::take(&mut whole.metadata);
        }
        let numbers = [
            ("split.no", Value::U16(no as u16)),
            ("split.count", Value::U16(count as u16)),
            ("split.tensors.count", Value::I32(all as i32)),
        ];
        let numbers = numbers.map(|(key, value)| (key.to_string(), value));
        part.metadata.extend(numbers);
        let path = folder.join(format!("demo-{:05}-of-{count:05}.gguf", no + 1));
        part.write(&path);
        paths.push(path);
    }
    paths
}

#[test]
fn models_in_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let paths = in_parts(folder.path(), 3);
    let prompt = &golden().prompts[0];
    let text = |path: &Path| {
        let path = path.to_str().unwrap();
        let more = ["--max-tokens", "4", "--device", "cpu"];
        let args = [
            &["generate", "--prompt", &prompt.text, "--model", path][..],
            &more,
        ]
        .concat();
        stdout(&run(&args))
    };
    let whole = text(&in_format(GgmlDType::Q8_0));
    assert_eq!(text(&paths[0]), whole);
    assert_eq!(text(&paths[2]), whole);
    // The folder names the first file alone.
    let args = [
        "generate",
        "--prompt",
        "a",
        "--model",
        folder.path().to_str().unwrap(),
    ];
    let error = String::from_utf8(run(&args).stderr).unwrap();
    assert!(
        error.contains("demo-00001-of-00003.gguf") && !error.contains("demo-00002"),
        "{error}"
    );
    std::fs::remove_file(&paths[1]).unwrap();
    assert_one_line(
        &generate(&paths[0]),
        &["demo-00002-of-00003.gguf", "part 2 of 3", "no such file"],
    );
}

/// Files and folders that are not what a command takes, and the way out that each error names.
#[test]
fn what_a_file_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let refused = |path: &Path, parts: &[&str]| assert_one_line(&generate(path), parts);
    let with = |key: &str, value: &str| {
        let mut model = GgufModel::new(|_| GgmlDType::Q8_0);
        model
            .metadata
            .insert(key.into(), Value::String(value.into()));
        model.write(&path("m.gguf"));
        path("m.gguf")
    };
    refused(
        &with("general.type", "adapter"),
        &["LoRA adapter", "llama-export-lora"],
    );
    refused(
        &with("general.type", "mmproj"),
        &["mmproj", "language model"],
    );
    refused(&with("general.architecture", "clip"), &["mmproj"]);
    refused(&with("general.architecture", "bert"), &["candle-dvm embed"]);
    for (name, bytes, parts) in [
        (
            "model.safetensors",
            &b"\x02\0\0\0\0\0\0\0{}"[..],
            &["pass the folder", "config.json"][..],
        ),
        (
            "adapter_model.safetensors",
            b"\x02\0\0\0\0\0\0\0{}",
            &["LoRA adapter"],
        ),
        (
            "pytorch_model.bin",
            b"PK\x03\x04",
            &["PyTorch", "save_pretrained"],
        ),
        (
            "big.gguf",
            b"version https://git-lfs.github.com/spec/v1\n",
            &["git lfs pull"],
        ),
        ("old.bin", b"lmgg", &["PyTorch"]),
        ("old.ggml", b"lmgg", &["GGML", "GGUF"]),
        ("config.json", b"{}", &["pass its folder"]),
        ("empty.gguf", b"", &["empty.gguf"]),
    ] {
        std::fs::write(path(name), bytes).unwrap();
        refused(&path(name), parts);
    }
    std::fs::remove_file(path("config.json")).unwrap();
    let inner = path("inner");
    std::fs::create_dir(&inner).unwrap();
    let write = |name: &str, text: &str| std::fs::write(inner.join(name), text).unwrap();
    write(
        "adapter_config.json",
        r#"{"base_model_name_or_path": "us/base"}"#,
    );
    refused(&inner, &["LoRA adapter", "us/base", "--lora"]);
    for name in ["tokenizer.json", "model.safetensors"] {
        std::fs::copy(crate::support::model_dir().join(name), inner.join(name)).unwrap();
    }
    write("config.json", r#"{"model_type": "whisper"}"#);
    refused(&inner, &["whisper", "candle-dvm transcribe"]);
    write(
        "config.json",
        r#"{"model_type": "bert", "vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 40, "max_position_embeddings": 20}"#,
    );
    refused(&inner, &["bert", "candle-dvm embed"]);
}
