//! The guests of `guests/`, run on every device and held against scikit-learn, whose results `tests/oracle.py` wrote to `tests/fixtures`.
//!
//! `cargo xtask test --only wasi` builds them and names their folder in `WASI_GPU_GUESTS`.

mod examples;
mod forests;
mod hostile;
#[cfg(feature = "llm")]
mod language;
mod timings;
mod trees;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Deserialize;
use wasi_gpu::{DeviceChoice, Devices, Guest, Limits, Runner, Val, WasiCtx, WasiCtxBuilder};

/// A test on every device that this build has.
macro_rules! on_devices {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn cpu() {
                super::$name(wasi_gpu::DeviceChoice::Cpu).await;
            }

            #[cfg(feature = "webgpu")]
            #[tokio::test]
            async fn webgpu() {
                super::$name(wasi_gpu::DeviceChoice::WebGpu(0)).await;
            }
        }
    )+};
}
pub(crate) use on_devices;

fn guest_path(name: &str) -> PathBuf {
    let Some(folder) = std::env::var_os("WASI_GPU_GUESTS") else {
        panic!("WASI_GPU_GUESTS names no folder with guests: `cargo xtask test --only wasi` builds them and runs these tests");
    };
    PathBuf::from(folder).join(format!("{name}.wasm"))
}

/// The bytes of a guest.
fn guest_file(name: &str) -> Vec<u8> {
    let path = guest_path(name);
    std::fs::read(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

fn limits() -> Limits {
    Limits {
        // Software adapters are slow, and tests share the processor.
        timeout: Some(Duration::from_secs(600)),
        ..Limits::default()
    }
}

/// One runner for all tests with the usual limits.
fn runner() -> &'static Runner {
    static RUNNER: OnceLock<Runner> = OnceLock::new();
    RUNNER.get_or_init(|| Runner::new(limits()).unwrap())
}

/// A guest on a device that is its alone.
async fn start_on(runner: &Runner, name: &str, choice: DeviceChoice, wasi: WasiCtx) -> Guest {
    let program = runner.load(&guest_file(name)).unwrap();
    let device = Devices::choose(choice).unwrap().open().unwrap();
    runner.start(&program, &device, wasi).await.unwrap()
}

async fn start(name: &str, choice: DeviceChoice) -> Guest {
    start_on(runner(), name, choice, WasiCtxBuilder::new().build()).await
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn fixture<T: DeserializeOwned>(name: &str) -> T {
    let path = fixtures().join(name);
    let text =
        std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// A data set.
#[derive(Deserialize)]
struct Data {
    rows: usize,
    features: usize,
    /// 1, or the number of classes.
    outputs: usize,
    data: Vec<f32>,
    labels: Vec<f32>,
}

impl Data {
    fn load(name: &str) -> Self {
        fixture(name)
    }

    /// These rows.
    fn rows(&self, which: impl Iterator<Item = usize>) -> Self {
        let which: Vec<usize> = which.collect();
        let row = |row: &usize| self.data[row * self.features..][..self.features].to_vec();
        Self {
            rows: which.len(),
            features: self.features,
            outputs: self.outputs,
            data: which.iter().flat_map(row).collect(),
            labels: which.iter().map(|row| self.labels[*row]).collect(),
        }
    }
}

/// The parameters of the training by the guest `forest`.
#[derive(Clone, Copy)]
struct Params {
    trees: u32,
    max_depth: u32,
    max_features: u32,
    bootstrap: bool,
    seed: u32,
}

fn floats(values: &[f32]) -> Val {
    Val::List(values.iter().map(|value| Val::Float32(*value)).collect())
}

/// The value of `ok`.
fn ok(result: &Val) -> &Val {
    match result {
        Val::Result(Ok(Some(value))) => value,
        other => panic!("{other:?}"),
    }
}

fn field<'a>(record: &'a Val, name: &str) -> &'a Val {
    let Val::Record(fields) = record else {
        panic!("{record:?}")
    };
    let found = fields.iter().find(|(field, _)| field == name);
    &found.unwrap_or_else(|| panic!("no {name} in {record:?}")).1
}

/// The model, and how often the guest waited for the device.
async fn train(guest: &mut Guest, params: Params, data: &Data) -> (Val, u32) {
    let task = match data.outputs {
        1 => "regression",
        _ => "classification",
    };
    let record = Val::Record(vec![
        ("task".into(), Val::Enum(task.into())),
        ("trees".into(), Val::U32(params.trees)),
        ("max-depth".into(), Val::U32(params.max_depth)),
        ("max-features".into(), Val::U32(params.max_features)),
        ("max-thresholds".into(), Val::U32(0)),
        ("bootstrap".into(), Val::Bool(params.bootstrap)),
        ("seed".into(), Val::U32(params.seed)),
    ]);
    let args = [
        record,
        Val::U32(data.features as u32),
        floats(&data.data),
        floats(&data.labels),
    ];
    let results = guest.call("train", &args).await.unwrap();
    let trained = ok(&results[0]);
    let Val::U32(reads) = field(trained, "reads") else {
        panic!("{trained:?}")
    };
    (field(trained, "model").clone(), *reads)
}

/// `(rows, outputs)`; `how` is the export.
async fn predict(guest: &mut Guest, how: &str, model: &Val, data: &Data) -> Vec<f32> {
    let args = [model.clone(), floats(&data.data)];
    let results = guest.call(how, &args).await.unwrap();
    let Val::List(values) = ok(&results[0]) else {
        panic!("{results:?}")
    };
    let value = |value: &Val| match value {
        Val::Float32(value) => *value,
        other => panic!("{other:?}"),
    };
    values.iter().map(value).collect()
}

/// The largest difference, relative to the largest of `expected`.
fn difference(values: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(values.len(), expected.len());
    let largest = expected
        .iter()
        .fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
    let differs = values.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differs.fold(
        0.,
        |most: f32, d| if d.is_nan() { f32::NAN } else { most.max(d) },
    ) / largest
}
