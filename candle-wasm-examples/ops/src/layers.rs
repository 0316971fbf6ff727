//! Layers of candle-nn on the browser's GPU, at sizes that take several iterations of a kernel's loops. The list of `candle-conformance`
//! has single ops with few elements; all of these were right in a browser that computed attention to more than 32 keys wrongly.

use candle_conformance::{first_difference, Outcome, Tolerance};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops;
use serde::Serialize;

/// A layer over inputs of f32 on a device.
type Layer = fn(&Device) -> Result<Tensor>;

/// The layers, by name and size.
pub const LAYERS: [(&str, Layer); 13] = [
    ("sdpa, 1 query, 31 keys", |device| {
        sdpa(1, 31, 64, false, device)
    }),
    ("sdpa, 1 query, 100 keys", |device| {
        sdpa(1, 100, 64, false, device)
    }),
    ("sdpa, 1 query, 1,500 keys of f16", |device| {
        let [q, k, v] = heads(1, 1500, 64, device)?;
        let (k, v) = (k.to_dtype(DType::F16)?, v.to_dtype(DType::F16)?);
        ops::sdpa(&q, &k, &v, None, false, 0.125, 1.)
    }),
    ("sdpa, 48 queries and keys, causal", |device| {
        sdpa(48, 48, 64, true, device)
    }),
    ("sdpa, 70 queries, 200 keys of 128", |device| {
        sdpa(70, 200, 128, true, device)
    }),
    ("softmax of 5 x 5,000", |device| {
        ops::softmax_last_dim(&wave(&[5, 5000], 1, device)?)
    }),
    ("rms_norm of 5 x 3,001", |device| {
        let weight = wave(&[3001], 2, device)?;
        ops::rms_norm(&wave(&[5, 3001], 1, device)?, &weight, 1e-5)
    }),
    ("layer_norm of 5 x 3,001", |device| {
        let (weight, bias) = (wave(&[3001], 2, device)?, wave(&[3001], 3, device)?);
        ops::layer_norm(&wave(&[5, 3001], 1, device)?, &weight, &bias, 1e-5)
    }),
    ("rope of 70 positions", |device| {
        let (cos, sin) = (wave(&[70, 32], 2, device)?, wave(&[70, 32], 3, device)?);
        candle_nn::rotary_emb::rope(&wave(&[1, 4, 70, 64], 1, device)?, &cos, &sin)
    }),
    ("swiglu of 70 x 1,000", |device| {
        ops::swiglu(&wave(&[70, 1000], 1, device)?)
    }),
    ("matmul of 1 x 1,030 and 1,030 x 70", |device| {
        matmul(1, 1030, 70, device)
    }),
    ("matmul of 70 x 1,030 and 1,030 x 130", |device| {
        matmul(70, 1030, 130, device)
    }),
    ("conv1d of 80 x 300, kernel 3", |device| {
        let kernel = wave(&[64, 80, 3], 2, device)?;
        wave(&[1, 80, 300], 1, device)?.conv1d(&kernel, 1, 2, 1, 1)
    }),
];

/// Sums of thousands of terms, in another order.
const NEAR: Tolerance = Tolerance {
    relative: 1e-4,
    absolute: 1e-4,
};

/// A layer and what came of it.
#[derive(Serialize)]
pub struct Record {
    layer: &'static str,
    outcome: Outcome,
    milliseconds: f64,
}

/// Runs all layers on `device` and on the CPU.
pub async fn check(device: &Device, mut each: impl FnMut(Record)) {
    for (layer, run) in LAYERS {
        let begin = js_sys::Date::now();
        let outcome = match difference(run, device).await {
            Ok(None) => Outcome::Passed,
            Ok(Some(difference)) => Outcome::Failed(difference),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        let milliseconds = js_sys::Date::now() - begin;
        each(Record {
            layer,
            outcome,
            milliseconds,
        });
    }
}

async fn difference(run: Layer, device: &Device) -> Result<Option<String>> {
    first_difference(&run(device)?, &run(&Device::Cpu)?, Some(NEAR)).await
}

/// `(m, k)` by `(k, n)`.
fn matmul(m: usize, k: usize, n: usize, device: &Device) -> Result<Tensor> {
    wave(&[m, k], 1, device)?.matmul(&wave(&[k, n], 2, device)?)
}

fn sdpa(queries: usize, keys: usize, dim: usize, causal: bool, device: &Device) -> Result<Tensor> {
    let [q, k, v] = heads(queries, keys, dim, device)?;
    let scale = (dim as f32).powf(-0.5);
    ops::sdpa(&q, &k, &v, None, causal, scale, 1.)
}

/// Queries of four heads, and keys and values of two.
fn heads(queries: usize, keys: usize, dim: usize, device: &Device) -> Result<[Tensor; 3]> {
    Ok([
        wave(&[1, 4, queries, dim], 1, device)?,
        wave(&[1, 2, keys, dim], 2, device)?,
        wave(&[1, 2, keys, dim], 3, device)?,
    ])
}

/// Numbers from -1 to 1, the same on every device.
fn wave(shape: &[usize], seed: usize, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let numbers = (0..count).map(|i| ((i * 37 + seed * 101) % 509) as f32 / 254. - 1.);
    Tensor::from_iter(numbers, device)?.reshape(shape)
}
