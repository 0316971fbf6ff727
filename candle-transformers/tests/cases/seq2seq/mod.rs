//! Models that read one thing and write another, each with tiny weights that depend on their names alone.

mod blip;
mod every;
mod marian;
mod t5;
mod trocr;
mod writer;

use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;

use super::made::Made;
use super::support::{assert_close, Numbers};
use writer::{in_pieces, Loaded, Model, OfPicture, Writer};

const VOCAB: usize = 64;
const HIDDEN: usize = 32;
/// The size of what is read, where it is an image.
const PICTURE: usize = 24;
/// The longest text, where there is one.
const LIMIT: usize = 40;
/// f32 sums in another order.
const F32_TOLERANCE: f32 = 2e-5;

fn config<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T> {
    serde_json::from_value(json.clone()).map_err(candle_core::Error::wrap)
}

/// `json` with these fields replaced.
fn with(mut json: Value, fields: Value) -> Value {
    let (Value::Object(all), Value::Object(fields)) = (&mut json, fields) else {
        panic!("not objects")
    };
    all.extend(fields);
    json
}

/// Ids of `b` texts of `t` tokens, different for each `seed`.
fn ids(b: usize, t: usize, seed: usize, device: &Device) -> Result<Tensor> {
    let id = |i: usize| ((i * 17 + seed * 29 + 3) % (VOCAB - 2) + 1) as u32;
    Tensor::from_vec((0..b * t).map(id).collect::<Vec<_>>(), (b, t), device)
}

fn last(logits: Tensor) -> Result<Tensor> {
    logits.narrow(1, logits.dim(1)? - 1, 1)?.squeeze(1)
}

/// Vectors for an image, which depend on the ids.
fn picture(ids: &Tensor, dtype: DType) -> Result<Tensor> {
    let (b, t) = ids.dims2()?;
    let sum: u32 = ids.flatten_all()?.to_vec1::<u32>()?.iter().sum();
    let vectors = Numbers::new(sum.into()).tensor(&[b, t, PICTURE], 1., &Device::Cpu)?;
    vectors.to_dtype(dtype)?.to_device(ids.device())
}

/// Added to scores, the rule that a token of `t` sees what is before it.
fn causal(t: usize, device: &Device) -> Result<Tensor> {
    let hidden = |i: usize| if i % t > i / t { f32::NEG_INFINITY } else { 0. };
    Tensor::from_vec((0..t * t).map(hidden).collect::<Vec<_>>(), (t, t), device)
}

#[track_caller]
fn assert_error<T>(result: Result<T>, parts: &[&str]) {
    let Err(error) = result else {
        panic!("no error, {parts:?} are expected in one")
    };
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{error}: without {part:?}");
    }
}
