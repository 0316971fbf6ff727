//! What several tests need: the reference outputs, models loaded once, model folders to break.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device};
use candle_engine::{
    BackendRegistry, CandleBackend, DeviceChoice, DeviceKind, ModelFiles, ModelSource,
};
use safetensors::tensor::TensorView;
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// `golden.json`.
#[derive(Deserialize)]
pub struct Golden {
    pub prompts: Vec<GoldenPrompt>,
}

/// One prompt of it.
#[derive(Deserialize)]
pub struct GoldenPrompt {
    pub text: String,
    pub ids: Vec<u32>,
    pub greedy_ids: Vec<u32>,
    pub greedy_text: String,
    pub last_logits_top8: Vec<(usize, f32)>,
    pub last_logits_sum: f64,
    pub last_logits_norm: f64,
    pub nll_mean: f64,
}

/// The reference outputs of the embedded model.
pub fn golden() -> &'static Golden {
    static GOLDEN: OnceLock<Golden> = OnceLock::new();
    GOLDEN.get_or_init(|| {
        let bytes = std::fs::read(model_dir().join("golden.json")).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    })
}

/// The folder that the embedded model is built from; a model folder like any other.
pub fn model_dir() -> PathBuf {
    // candle-dvm's tests share this file.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    if package.ends_with("engine") {
        package.join("model")
    } else {
        package.join("../candle-transformers/engine/model")
    }
}

/// The one registry of the test process. An absent WebGPU adapter makes the tests that need it fail.
pub fn registry() -> &'static BackendRegistry {
    static REGISTRY: OnceLock<BackendRegistry> = OnceLock::new();
    REGISTRY.get_or_init(BackendRegistry::detect)
}

/// The value of `--device` for this kind.
pub fn choice(kind: DeviceKind) -> DeviceChoice {
    match kind {
        DeviceKind::Cpu => DeviceChoice::Cpu,
        DeviceKind::Cuda => DeviceChoice::Cuda,
        DeviceKind::Metal => DeviceChoice::Metal,
        DeviceKind::WebGpu => DeviceChoice::WebGpu,
    }
}

/// Loads a model onto a device.
pub fn load(source: &ModelSource, kind: DeviceKind, dtype: Option<DType>) -> CandleBackend {
    let entry = registry().select(choice(kind)).unwrap();
    let files = ModelFiles::open(source).unwrap();
    entry.load(files, dtype, &|_| ()).unwrap()
}

/// The embedded model in f32, loaded once for each device.
pub fn embedded(kind: DeviceKind) -> &'static CandleBackend {
    static CPU: OnceLock<CandleBackend> = OnceLock::new();
    static WEBGPU: OnceLock<CandleBackend> = OnceLock::new();
    let slot = match kind {
        DeviceKind::Cpu => &CPU,
        DeviceKind::WebGpu => &WEBGPU,
        other => panic!("no tests on {other:?}"),
    };
    slot.get_or_init(|| load(&ModelSource::Embedded, kind, None))
}

/// Whether a device runs fewer cases of a test than there are: a software adapter, which takes half a second for a token, unless
/// `CANDLE_EVERY_CASE=1` is set, as in nightly runs.
pub fn runs_fewer(device: &Device) -> bool {
    device.is_software_gpu() && std::env::var_os("CANDLE_EVERY_CASE").is_none()
}

/// The prompts that a device runs: all of them, or the first and the last where it [runs fewer](runs_fewer).
pub fn prompts(kind: DeviceKind) -> impl Iterator<Item = &'static GoldenPrompt> {
    let prompts = &golden().prompts;
    let last = prompts.len() - 1;
    let all = !runs_fewer(embedded(kind).device());
    let chosen = move |i: &usize| all || *i == 0 || *i == last;
    (0..prompts.len()).filter(chosen).map(|i| &prompts[i])
}

/// Makes a test on each device from one body that takes the device's kind.
macro_rules! on_each_device {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[test]
            fn cpu() {
                super::$name(candle_engine::DeviceKind::Cpu)
            }

            #[test]
            fn webgpu() {
                super::$name(candle_engine::DeviceKind::WebGpu)
            }
        }
    )*};
}
pub(crate) use on_each_device;

/// A copy of the embedded model's folder, to change.
pub struct ModelFolder {
    dir: TempDir,
}

impl ModelFolder {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "model.safetensors",
        ] {
            std::fs::copy(model_dir().join(name), dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).unwrap()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.file(name), bytes).unwrap()
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.file(name)).unwrap()
    }

    /// Changes a JSON file.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut json = serde_json::from_slice(&self.read(name)).unwrap();
        change(&mut json);
        self.write(name, json.to_string());
    }

    /// Rewrites the weights: `change` maps a tensor's name and shape to its new file and shape, or to `None` to leave it out.
    pub fn rewrite_weights(
        &self,
        change: impl Fn(&str, Vec<usize>) -> Option<(&'static str, Vec<usize>)>,
    ) {
        let bytes = self.read("model.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut files: BTreeMap<&str, Vec<(String, TensorView)>> = BTreeMap::new();
        for (name, view) in tensors.tensors() {
            let Some((file, shape)) = change(&name, view.shape().to_vec()) else {
                continue;
            };
            let view = TensorView::new(view.dtype(), shape, view.data()).unwrap();
            files.entry(file).or_default().push((name, view));
        }
        for (file, tensors) in files {
            self.write(file, safetensors::serialize(tensors, None).unwrap());
        }
    }

    /// Replaces each matrix by what is left of it after it was quantised.
    pub fn round_weights(&self, format: GgmlDType) {
        let file = self.file("model.safetensors");
        let mut weights = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
        for weight in weights.values_mut().filter(|weight| weight.rank() == 2) {
            let rounded = QTensor::quantize(weight, format).unwrap();
            *weight = rounded.dequantize(&Device::Cpu).unwrap();
        }
        candle_core::safetensors::save(&weights, file).unwrap();
    }

    /// Splits the weights into two shards with an index.
    pub fn shard(&self) {
        const SHARDS: [&str; 2] = ["part-1.safetensors", "part-2.safetensors"];
        let shard_of = |name: &str| SHARDS[usize::from(name.contains("layers"))];
        self.rewrite_weights(|name, shape| Some((shard_of(name), shape)));
        let bytes = self.read("model.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let map: BTreeMap<&str, &str> = tensors
            .names()
            .into_iter()
            .map(|name| (name, shard_of(name)))
            .collect();
        let index = serde_json::json!({ "metadata": {}, "weight_map": map });
        self.write("model.safetensors.index.json", index.to_string());
        self.remove("model.safetensors");
    }
}
