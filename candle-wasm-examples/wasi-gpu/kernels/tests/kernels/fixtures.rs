//! Numbers of NumPy and scikit-learn, which `tests/oracle.py` wrote.

use candle_core::{test_device, Device};
use candle_wasi_gpu::{BatchPredictParams, FindSplitParams, Result};
use serde::de::DeserializeOwned;
use serde::Deserialize;

use crate::support::{open, Calls};

#[derive(Deserialize)]
struct Cases<T> {
    cases: Vec<T>,
}

fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");
    let text = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let cases: Cases<T> = serde_json::from_str(&text).unwrap();
    assert!(!cases.cases.is_empty());
    cases.cases
}

#[derive(Deserialize)]
struct Split {
    what: String,
    n_features: u32,
    feature_idx: u32,
    /// `null` is NaN.
    data: Vec<Option<f32>>,
    labels: Vec<f32>,
    indices: Vec<u32>,
    thresholds: Vec<f32>,
    /// The node's squared error, to which errors of scores are relative.
    node: f64,
    /// `null` is infinity.
    scores: Vec<Option<f64>>,
}

fn scores_are_numpys(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    for case in cases::<Split>("find-split.json") {
        let data: Vec<f32> = case.data.iter().map(|x| x.unwrap_or(f32::NAN)).collect();
        let data = gpu.floats(&data)?;
        let labels = gpu.floats(&case.labels)?;
        let indices = gpu.words(&case.indices)?;
        let thresholds = gpu.floats(&case.thresholds)?;
        let scores = gpu.empty(4 * case.scores.len() as u64)?;
        let params = FindSplitParams {
            n_samples: case.indices.len() as u32,
            n_features: case.n_features,
            feature_idx: case.feature_idx,
            n_thresholds: case.thresholds.len() as u32,
        };
        gpu.kernel_find_split(params, data, labels, indices, thresholds, scores)?;
        let got = gpu.read_floats(scores, case.scores.len())?;
        for (i, (got, want)) in got.into_iter().zip(case.scores).enumerate() {
            match want {
                None => assert_eq!(got, f32::INFINITY, "{}, threshold {i}", case.what),
                Some(want) => assert!(
                    (f64::from(got) - want).abs() <= 1e-5 * case.node,
                    "{}, threshold {i}: {got}, not {want}",
                    case.what
                ),
            }
        }
        for buffer in [data, labels, indices, thresholds, scores] {
            gpu.buffer_destroy(buffer)?;
        }
    }
    Ok(())
}
test_device!(scores_are_numpys);

#[derive(Deserialize)]
struct Data {
    rows: u32,
    features: u32,
    data: Vec<f32>,
}

#[derive(Deserialize)]
struct Forest {
    /// The file of the samples.
    data: String,
    trees: u32,
    max_depth: u32,
    offsets: Vec<u32>,
    /// Feature, threshold or value, left, right.
    nodes: Vec<(u32, f32, u32, u32)>,
    expected: Vec<f32>,
}

fn predictions_are_scikit_learns(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    for forest in cases::<Forest>("predict.json") {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");
        let text = std::fs::read_to_string(format!("{folder}/{}", forest.data)).unwrap();
        let data: Data = serde_json::from_str(&text).unwrap();
        let nodes = forest.nodes.iter();
        let nodes: Vec<u32> = nodes.flat_map(|n| [n.0, n.1.to_bits(), n.2, n.3]).collect();
        let samples = gpu.floats(&data.data)?;
        let nodes = gpu.words(&nodes)?;
        let offsets = gpu.words(&forest.offsets)?;
        let output = gpu.empty(4 * u64::from(data.rows))?;
        let params = BatchPredictParams {
            batch_size: data.rows,
            n_features: data.features,
            n_trees: forest.trees,
            max_depth: forest.max_depth,
        };
        gpu.kernel_batch_predict(params, samples, nodes, offsets, output)?;
        let got = gpu.read_floats(output, forest.expected.len())?;
        let largest = forest
            .expected
            .iter()
            .fold(0f32, |most, x| most.max(x.abs()));
        for (row, (got, want)) in got.iter().zip(&forest.expected).enumerate() {
            assert!(
                (got - want).abs() <= 1e-6 * largest,
                "{}, row {row}: {got}, not {want}",
                forest.data
            );
        }
        for buffer in [samples, nodes, offsets, output] {
            gpu.buffer_destroy(buffer)?;
        }
    }
    Ok(())
}
test_device!(predictions_are_scikit_learns);
