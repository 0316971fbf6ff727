//! Adapters over the embedded model: added to dense weights, and applied separately to those of GGUF files. The expected results come from
//! weights that were merged by loops in f64.

use crate::gguf_model::in_format;
use crate::support::{
    choice, golden, model_dir, on_each_device, registry, runs_fewer, ModelFolder,
};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use candle_engine::model::LoraSource;
use candle_engine::{CandleBackend, DeviceKind, ModelFiles, ModelSource};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

on_each_device!(dense, beside_a_gguf_file);

const RANK: usize = 3;
const ALPHA: f64 = 6.;

/// Numbers in -1..1 that differ from name to name.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let seed = name
        .bytes()
        .fold(17u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
    let number = |i: u32| {
        let mut h = seed ^ i.wrapping_mul(0x9E37_79B9);
        h ^= h >> 16;
        h = h.wrapping_mul(0x85EB_CA6B);
        h ^= h >> 13;
        (h >> 8) as f32 / (1 << 23) as f32 - 1.
    };
    (0..count as u32).map(number).collect()
}

fn base() -> HashMap<String, Tensor> {
    candle_core::safetensors::load(model_dir().join("model.safetensors"), &Device::Cpu).unwrap()
}

/// The modules of the adapters: all projections of some layers.
fn modules(base: &HashMap<String, Tensor>) -> Vec<(String, [usize; 2])> {
    let matrices = base.iter().filter(|(name, weight)| {
        let layer = [0, 2, 5]
            .iter()
            .any(|i| name.contains(&format!("layers.{i}.")));
        weight.rank() == 2 && layer
    });
    let module = |(name, weight): (&String, &Tensor)| {
        let (rows, columns) = weight.dims2().unwrap();
        (
            name.trim_end_matches(".weight").to_string(),
            [rows, columns],
        )
    };
    matrices.map(module).collect()
}

/// An adapter over those modules, `large` as weights go; `edit` changes its tensors.
fn adapter(large: f64, edit: impl FnOnce(&mut HashMap<String, Tensor>)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors = HashMap::new();
    for (module, [rows, columns]) in modules(&base()) {
        for (part, shape) in [("lora_A", [RANK, columns]), ("lora_B", [rows, RANK])] {
            let name = format!("base_model.model.{module}.{part}.weight");
            let values = numbers(&name, shape[0] * shape[1]);
            let tensor = Tensor::from_vec(values, &shape, &Device::Cpu).unwrap();
            tensors.insert(name, (tensor * large).unwrap());
        }
    }
    edit(&mut tensors);
    candle_core::safetensors::save(&tensors, dir.path().join("adapter_model.safetensors")).unwrap();
    let config = serde_json::json!({
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "base_model_name_or_path": "us/demo", "bias": "none",
        "target_modules": ["q_proj"], "fan_in_fan_out": false, "use_rslora": false, "use_dora": false
    });
    std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    dir
}

/// The model with the adapter's products added to its weights, times `scale`.
fn merged_by_hand(adapter: &Path, scale: f64) -> ModelFolder {
    let folder = ModelFolder::new();
    let file = adapter.join("adapter_model.safetensors");
    let tensors = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
    let rows = |tensor: &Tensor| -> Vec<Vec<f64>> {
        tensor.to_dtype(DType::F64).unwrap().to_vec2().unwrap()
    };
    let mut weights = base();
    for (module, _) in modules(&base()) {
        let a = rows(&tensors[&format!("base_model.model.{module}.lora_A.weight")]);
        let b = rows(&tensors[&format!("base_model.model.{module}.lora_B.weight")]);
        let name = format!("{module}.weight");
        let mut weight = rows(&weights[&name]);
        for (row, b) in weight.iter_mut().zip(&b) {
            for (column, value) in row.iter_mut().enumerate() {
                for (b, a) in b.iter().zip(&a) {
                    *value += scale * ALPHA / RANK as f64 * b * a[column];
                }
            }
        }
        let weight = Tensor::new(weight, &Device::Cpu).unwrap();
        weights.insert(name, weight.to_dtype(DType::F32).unwrap());
    }
    candle_core::safetensors::save(&weights, folder.file("model.safetensors")).unwrap();
    folder
}

fn lora(folder: &TempDir, scale: f64) -> LoraSource {
    LoraSource {
        path: folder.path().to_path_buf(),
        scale,
    }
}

fn load(source: &ModelSource, loras: &[LoraSource], kind: DeviceKind) -> CandleBackend {
    let files = ModelFiles::open_with(source, loras).unwrap();
    let entry = registry().select(choice(kind)).unwrap();
    entry.load(files, Some(DType::F32), &|_| ()).unwrap()
}

fn logits(backend: &CandleBackend) -> Vec<f32> {
    let ids = &golden().prompts[0].ids;
    backend.session().forward(ids).unwrap().to_vec1().unwrap()
}

fn difference(lhs: &[f32], rhs: &[f32]) -> f32 {
    assert_eq!(lhs.len(), rhs.len());
    assert!(lhs.iter().chain(rhs).all(|value| value.is_finite()));
    let pairs = lhs.iter().zip(rhs);
    pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs()))
}

fn embedded() -> ModelSource {
    ModelSource::Folder(model_dir())
}

fn dense(kind: DeviceKind) {
    let adapter = adapter(0.1, |_| ());
    let plain = logits(&load(&embedded(), &[], kind));
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    let scales = [1., -0.5];
    for &scale in if runs_fewer(device) {
        &scales[1..]
    } else {
        &scales
    } {
        let hand = merged_by_hand(adapter.path(), scale);
        let hand = logits(&load(&ModelSource::Folder(hand.path().into()), &[], kind));
        let found = logits(&load(&embedded(), &[lora(&adapter, scale)], kind));
        let (off, effect) = (difference(&found, &hand), difference(&found, &plain));
        println!("{kind:?} {scale}: off by {off}, effect {effect}");
        assert!(off < 1e-3 && effect > 1., "{off} of {effect}");
    }
    // Halves add up.
    let halves = [lora(&adapter, 0.25), lora(&adapter, 0.75)];
    let one = logits(&load(&embedded(), &[lora(&adapter, 1.)], kind));
    let off = difference(&logits(&load(&embedded(), &halves, kind)), &one);
    assert!(off < 1e-3, "{off}");
    let none = logits(&load(&embedded(), &[lora(&adapter, 0.)], kind));
    assert!(difference(&none, &plain) < 1e-5);
}

/// The converter permutes the heads of queries and keys, and so are the rows of their `lora_B`.
fn beside_a_gguf_file(kind: DeviceKind) {
    let adapter = adapter(0.1, |_| ());
    let hand = merged_by_hand(adapter.path(), 1.);
    let hand = logits(&load(&ModelSource::Folder(hand.path().into()), &[], kind));
    // Products of blocks round activations to 8 bits, as they do without an adapter (`gguf::eight_bits`); and a sum in another order rounds
    // some of them to another step.
    let device = registry().select(choice(kind)).unwrap().open().unwrap();
    for (format, tolerance, same) in [(GgmlDType::F32, 2e-3, 1e-3), (GgmlDType::Q8_0, 1., 0.3)] {
        if runs_fewer(device) && format == GgmlDType::F32 {
            continue;
        }
        let file = ModelSource::Gguf(in_format(format));
        let plain = logits(&load(&file, &[], kind));
        let found = logits(&load(&file, &[lora(&adapter, 1.)], kind));
        let (off, effect) = (difference(&found, &hand), difference(&found, &plain));
        println!("{kind:?} {format:?}: off by {off}, effect {effect}");
        assert!(
            off < tolerance && effect > 10.,
            "{format:?}: {off} of {effect}"
        );
        let halves = [lora(&adapter, 0.25), lora(&adapter, 0.75)];
        let off = difference(&logits(&load(&file, &halves, kind)), &found);
        assert!(off < same, "{format:?}: {off}");
    }
}

/// An adapter of the output layer, which is the table of tokens in the file: the table stays as it is.
#[test]
fn the_output_layer_apart_from_the_table() {
    let (module, shape) = ("base_model.model.lm_head", [4096, 256]);
    let folder = adapter(0.1, |tensors| {
        tensors.clear();
        for (part, shape) in [("lora_A", [RANK, shape[1]]), ("lora_B", [shape[0], RANK])] {
            let name = format!("{module}.{part}.weight");
            let tensor =
                Tensor::from_vec(numbers(&name, shape[0] * shape[1]), &shape, &Device::Cpu);
            tensors.insert(name, (tensor.unwrap() * 0.1).unwrap());
        }
    });
    let loras = [lora(&folder, 1.)];
    let dense = logits(&load(&embedded(), &loras, DeviceKind::Cpu));
    let file = ModelSource::Gguf(in_format(GgmlDType::F32));
    let beside = logits(&load(&file, &loras, DeviceKind::Cpu));
    let plain = logits(&load(&embedded(), &[], DeviceKind::Cpu));
    assert!(difference(&dense, &beside) < 2e-3);
    assert!(difference(&dense, &plain) > 1.);
}

/// Each rank gets its part of the changes, merged or separate.
#[test]
fn over_several_devices() {
    let adapter = adapter(0.1, |_| ());
    for source in [embedded(), ModelSource::Gguf(in_format(GgmlDType::F32))] {
        let loras = [lora(&adapter, 1.)];
        let one = logits(&load(&source, &loras, DeviceKind::Cpu));
        let files = ModelFiles::open_with(&source, &loras).unwrap();
        let entry = registry().select(choice(DeviceKind::Cpu)).unwrap();
        let shared = entry.load_shared(files, 2, Some(DType::F32), &|_| ());
        let off = difference(&logits(&shared.unwrap()), &one);
        assert!(off < 2e-3, "{source:?}: {off}");
    }
}

fn refused(source: &ModelSource, folder: &Path, parts: &[&str]) {
    let lora = LoraSource {
        path: PathBuf::from(folder),
        scale: 1.,
    };
    let Err(err) = ModelFiles::open_with(source, &[lora]) else {
        panic!("{folder:?} was taken; expected {parts:?}")
    };
    let err = err.one_line();
    for part in parts {
        assert!(err.contains(part), "{err:?} does not say {part:?}");
    }
}

/// Errors name what the adapter has and what the model has.
#[test]
fn what_does_not_fit() {
    let (dense, file) = (embedded(), ModelSource::Gguf(in_format(GgmlDType::Q8_0)));
    let q = "base_model.model.model.layers.0.self_attn.q_proj";
    let zeros = |shape: [usize; 2]| Tensor::zeros(&shape, DType::F32, &Device::Cpu).unwrap();
    let far = adapter(0.1, |tensors| {
        let far = q.replace("layers.0", "layers.9");
        tensors.insert(format!("{far}.lora_A.weight"), zeros([RANK, 256]));
        tensors.insert(format!("{far}.lora_B.weight"), zeros([256, RANK]));
    });
    for source in [&dense, &file] {
        let parts = ["layers.9.self_attn.q_proj", "6 layers", "us/demo", "llama"];
        refused(source, far.path(), &parts);
    }
    let wide = adapter(0.1, |tensors| {
        tensors.insert(format!("{q}.lora_A.weight"), zeros([RANK, 128]));
    });
    let parts = ["layers.0.self_attn.q_proj", "[256, 128]", "[256, 256]"];
    refused(&dense, wide.path(), &parts);
    refused(&file, wide.path(), &["blk.0.attn_q.weight", "[256, 128]"]);
    let half = adapter(0.1, |tensors| {
        tensors.remove(&format!("{q}.lora_B.weight"));
    });
    refused(
        &dense,
        half.path(),
        &["layers.0.self_attn.q_proj", "lora_B"],
    );
    let norm = adapter(0.1, |tensors| {
        let ones = Tensor::ones(256, DType::F32, &Device::Cpu).unwrap();
        tensors.insert("base_model.model.model.norm.weight".into(), ones);
    });
    refused(
        &file,
        norm.path(),
        &["model.norm.weight", "GGUF", "safetensors"],
    );
    let table = adapter(0.1, |tensors| {
        let name = "base_model.model.model.embed_tokens.lora_embedding_";
        tensors.insert(format!("{name}A"), zeros([RANK, 4096]));
        tensors.insert(format!("{name}B"), zeros([256, RANK]));
    });
    refused(
        &file,
        table.path(),
        &["embed_tokens", "GGUF", "safetensors"],
    );
    let config = |dir: &TempDir, key: &str, value: serde_json::Value| {
        let file = dir.path().join("adapter_config.json");
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        json[key] = value;
        std::fs::write(file, json.to_string()).unwrap();
    };
    let other = adapter(0.1, |_| ());
    config(&other, "peft_type", "VERA".into());
    refused(&dense, other.path(), &["VERA", "LORA"]);
    let dora = adapter(0.1, |_| ());
    config(&dora, "use_dora", true.into());
    refused(&dense, dora.path(), &["use_dora", "lora_magnitude_vector"]);
    let none = tempfile::tempdir().unwrap();
    refused(&dense, none.path(), &["adapter_config.json", "peft"]);
}
