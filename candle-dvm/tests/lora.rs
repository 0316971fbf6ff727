//! `--lora` through the program, and adapters on the Hub.

use crate::cli::{assert_one_line, run, stdout};
use crate::hub_server::{Served, Server};
use crate::support::{golden, model_dir};
use candle_core::{DType, Device, Tensor};
use candle_engine::model::{Hub, LoraSource, ModelFiles, ModelSource};
use std::collections::HashMap;
use tempfile::TempDir;

const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// An adapter over one projection, which is large enough for other tokens.
fn adapter() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let module = "base_model.model.model.layers.1.mlp.down_proj";
    let numbers = |rows, columns, by: f64| {
        let flat = Tensor::arange(0f32, (rows * columns) as f32, &Device::Cpu).unwrap();
        let waves = ((flat * by).unwrap().sin().unwrap() * 0.3).unwrap();
        waves.reshape((rows, columns)).unwrap()
    };
    let tensors = HashMap::from([
        (format!("{module}.lora_A.weight"), numbers(2, 768, 0.7)),
        (format!("{module}.lora_B.weight"), numbers(256, 2, 1.3)),
    ]);
    candle_core::safetensors::save(&tensors, dir.path().join(FILES[1])).unwrap();
    let config =
        r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["down_proj"]}"#;
    std::fs::write(dir.path().join(FILES[0]), config).unwrap();
    dir
}

#[test]
fn the_line_of_what_is_loaded_names_adapters() {
    let (dir, model, prompt) = (adapter(), model_dir(), &golden().prompts[0]);
    let (path, model) = (dir.path().to_str().unwrap(), model.to_str().unwrap());
    let generate = |lora: &str| {
        let args = ["--max-tokens", "12", "--device", "cpu", "--lora", lora];
        let first = ["generate", "--model", model, "--prompt", &prompt.text];
        run(&[&first[..], &args[..]].concat())
    };
    let (whole, none) = (generate(path), generate(&format!("{path}:0")));
    let stderr = String::from_utf8(whole.stderr.clone()).unwrap();
    assert!(
        stderr.contains(&format!("with LoRA {path}: loaded")),
        "{stderr}"
    );
    let stderr = String::from_utf8(none.stderr.clone()).unwrap();
    assert!(
        stderr.contains(&format!("with LoRA {path}:0: loaded")),
        "{stderr}"
    );
    let none = stdout(&none);
    assert!(prompt.greedy_text.starts_with(none.trim_end()), "{none}");
    assert_ne!(stdout(&whole), none);
}

#[test]
fn what_cannot_work_is_one_line() {
    let (dir, model) = (adapter(), model_dir());
    let (path, model) = (dir.path().to_str().unwrap(), model.to_str().unwrap());
    let base = ["generate", "--prompt", "fn", "--model", model, "--lora"];
    let with = |lora| [&base[..], &[lora]].concat();
    assert_one_line(&with(model), &["adapter_config.json", model]);
    assert_one_line(
        &with("no/where/at/all"),
        &["no/where/at/all", "adapter_config.json"],
    );
    let as_model = ["generate", "--prompt", "fn", "--model", path];
    assert_one_line(&as_model, &["LoRA adapter", "--lora"]);
    #[cfg(feature = "api")]
    let two = ["api", "--model", model, "--model", model, "--lora", path];
    #[cfg(feature = "api")]
    assert_one_line(&two, &["lora", "one --model"]);
}

#[test]
fn an_adapter_on_the_hub() {
    let (server, cache, dir) = (Server::start(), tempfile::tempdir().unwrap(), adapter());
    let files = FILES.map(|file| (file, std::fs::read(dir.path().join(file)).unwrap()));
    server.put("us/adapter", Served::new("c0ffee7", files));
    server.put("us/other", Served::new("c0ffee8", [("README.md", vec![1])]));
    let hub = |offline| Hub {
        endpoint: server.address(),
        cache: cache.path().to_path_buf(),
        token: None,
        offline,
    };
    let name = candle_engine::model::HubModel::parse("us/adapter").unwrap();
    assert!(hub(true).fetch_adapter(&name).is_err());
    let folder = hub(false).fetch_adapter(&name).unwrap();
    assert_eq!(hub(true).fetch_adapter(&name).unwrap(), folder);
    let lora = LoraSource {
        path: folder,
        scale: 1.,
    };
    let files = ModelFiles::open_with(&ModelSource::Embedded, &[lora]).unwrap();
    let cpu = candle_engine::BackendRegistry::detect();
    let cpu = cpu.select(candle_engine::DeviceChoice::Cpu).unwrap();
    cpu.load(files, Some(DType::F32), &|_| ()).unwrap();
    let other = candle_engine::model::HubModel::parse("us/other").unwrap();
    let err = hub(false).fetch_adapter(&other).unwrap_err().one_line();
    assert!(
        err.contains("us/other") && err.contains("adapter_config.json"),
        "{err}"
    );
}
