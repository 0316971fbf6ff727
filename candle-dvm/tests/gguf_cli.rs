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
            &["2000000000", "4096"],
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
