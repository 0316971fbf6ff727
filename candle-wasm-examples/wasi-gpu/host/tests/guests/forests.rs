//! Forests, which draw at random: as good as scikit-learn's, and the same in both languages.

use serde::Deserialize;
use wasi_gpu::{DeviceChoice, FsPerms, Val, WasiCtxBuilder};

use crate::{
    difference, fixture, fixtures, on_devices, predict, runner, start, start_on, train, Data,
    Params,
};

#[derive(Deserialize)]
struct Forests {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    data: String,
    /// Rows that the forest does not see.
    test: Vec<usize>,
    trees: u32,
    max_depth: u32,
    max_features: u32,
    /// `mse` or `accuracy`.
    score: String,
    /// From and to.
    accept: [f32; 2],
}

/// The mean squared error, or the share of rows whose class is the most probable.
fn score(name: &str, predictions: &[f32], data: &Data) -> f32 {
    let rows = predictions.chunks_exact(data.outputs).zip(&data.labels);
    let points = rows.map(|(row, label)| match name {
        "mse" => (row[0] - label).powi(2),
        "accuracy" => {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            f32::from(best.is_some_and(|(class, _)| class as f32 == *label))
        }
        other => panic!("no score {other:?}"),
    });
    points.sum::<f32>() / data.rows as f32
}

/// The case of a data set on a device: `(score, reads)`.
async fn as_good_as_scikit_learn(choice: DeviceChoice, name: &str, trees: Option<u32>) {
    let forests: Forests = fixture("forests.json");
    let case = forests
        .cases
        .into_iter()
        .find(|case| case.data == name)
        .unwrap();
    let data = Data::load(&case.data);
    let seen = data.rows((0..data.rows).filter(|row| !case.test.contains(row)));
    let unseen = data.rows(case.test.iter().copied());
    let params = Params {
        trees: trees.unwrap_or(case.trees),
        max_depth: case.max_depth,
        max_features: case.max_features,
        bootstrap: true,
        seed: 42,
    };
    let mut guest = start("forest", choice).await;
    let (model, reads) = train(&mut guest, params, &seen).await;
    // A wait for each level of all trees, not for each node.
    assert!(reads <= 80, "{name}: {reads} reads");
    let predictions = predict(&mut guest, "predict", &model, &unseen).await;
    let found = score(&case.score, &predictions, &unseen);
    let [from, to] = case.accept;
    assert!(
        (from..=to).contains(&found),
        "{name}: {} {found}, expected {from} to {to}",
        case.score
    );
    let walked = predict(&mut guest, "predict-by-average", &model, &unseen).await;
    let differs = difference(&walked, &predictions);
    assert!(
        differs <= 1e-5,
        "{name}: the two ways to predict differ by {differs}"
    );
}

async fn diabetes(choice: DeviceChoice) {
    as_good_as_scikit_learn(choice, "data-diabetes.json", trees_on(choice)).await;
}

async fn iris(choice: DeviceChoice) {
    as_good_as_scikit_learn(choice, "data-iris.json", trees_on(choice)).await;
}

async fn breast_cancer(choice: DeviceChoice) {
    as_good_as_scikit_learn(choice, "data-breast-cancer.json", trees_on(choice)).await;
}

/// On a software adapter a kernel is a hundred times as slow as a call: fewer trees are enough for the same score's range.
fn trees_on(choice: DeviceChoice) -> Option<u32> {
    (choice != DeviceChoice::Cpu).then_some(40)
}

on_devices!(diabetes, iris, breast_cancer);

/// The same numbers on every device. It is one forest: where two splits are equally good, rounding decides between them, so forests that
/// were trained on two devices may differ there.
#[cfg(feature = "webgpu")]
#[tokio::test]
async fn predictions_are_those_of_the_cpu_webgpu() {
    let data = Data::load("data-iris.json");
    let params = Params {
        trees: 8,
        max_depth: 6,
        max_features: 2,
        bootstrap: true,
        seed: 7,
    };
    let mut on_cpu = start("forest", DeviceChoice::Cpu).await;
    let (model, _) = train(&mut on_cpu, params, &data).await;
    let expected = predict(&mut on_cpu, "predict", &model, &data).await;
    let mut on_gpu = start("forest", DeviceChoice::WebGpu(0)).await;
    for how in ["predict", "predict-by-average"] {
        let differs = difference(&predict(&mut on_gpu, how, &model, &data).await, &expected);
        assert!(differs <= 1e-5, "{how}: {differs}");
    }
}

/// The library without libc makes the bytes that the one in Rust makes.
#[tokio::test]
async fn libraries_in_two_languages_make_one_forest() {
    let data = Data::load("data-iris.json");
    let params = Params {
        trees: 10,
        max_depth: 5,
        max_features: 2,
        bootstrap: true,
        seed: 3,
    };
    let mut models: Vec<Val> = Vec::new();
    for name in ["forest", "forest-free"] {
        let mut guest = start(name, DeviceChoice::Cpu).await;
        models.push(train(&mut guest, params, &data).await.0);
    }
    assert!(models[0] == models[1]);
}

/// The commands read a file, print one line of JSON, and agree on all that does not depend on time or language.
#[tokio::test]
async fn commands_in_two_languages_make_one_forest() {
    for more in [&[][..], &["--trees", "30", "--max-thresholds", "7"]] {
        let mut lines = Vec::new();
        for name in ["forest-cli", "forest-cpp"] {
            lines.push(command(name, more).await);
        }
        for field in ["hash", "reads", "kernels"] {
            assert!(!lines[0][field].is_null(), "{}", lines[0]);
            assert_eq!(lines[0][field], lines[1][field], "{field} {more:?}");
        }
    }
}

/// The line that a command prints.
async fn command(name: &str, more: &[&str]) -> serde_json::Value {
    let output = tempfile::NamedTempFile::new().unwrap();
    let stdout = wasmtime_wasi::cli::OutputFile::new(output.reopen().unwrap());
    let mut wasi = WasiCtxBuilder::new();
    wasi.stdout(stdout);
    wasi.args(&[name, "/diabetes.csv"]).args(more);
    wasi.preopened_dir(fixtures(), "/", FsPerms::ReadOnly)
        .unwrap();
    let mut guest = start_on(runner(), name, DeviceChoice::Cpu, wasi.build()).await;
    assert_eq!(guest.run().await.unwrap(), 0, "{name}");
    drop(guest);
    let text = std::fs::read_to_string(output.path()).unwrap();
    let line: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|err| panic!("{name}: {text:?}: {err}"));
    let mse = line["mse"].as_f64().unwrap();
    assert!((2400.0..3300.0).contains(&mse), "{name}: {line}");
    line
}
