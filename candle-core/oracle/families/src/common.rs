//! Shared code of the runs.

use crate::weights::{weight, Place};
use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Error, Result, Shape, Tensor};
use candle_transformers::quantized_var_builder;
use serde::de::DeserializeOwned;
use std::fs::File;

/// Vocabulary size of every model.
pub const VOCABULARY: usize = 128;

/// A configuration from its JSON text.
pub fn config<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(Error::wrap)
}

/// A prompt of nine tokens and, with the cache that it fills, two single ones: `forward` receives the ids and the position.
pub fn steps(
    place: &Place,
    name: &str,
    mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let prompt = place.tokens(name, 9, VOCABULARY as u64)?;
    let mut outputs = vec![forward(&prompt, 0)?];
    for position in 9..11 {
        outputs.push(forward(&prompt.narrow(1, position - 6, 1)?, position)?);
    }
    Ok(outputs)
}

/// A GGUF file with this metadata and the tensors of these names and shapes; matrices whose rows are multiples of 32 are Q8_0.
pub fn gguf(
    place: &Place,
    name: &str,
    metadata: &[(&str, Value)],
    tensors: &[(String, Vec<usize>)],
) -> Result<(Content, File)> {
    let made = tensors.iter().map(|(name, dims)| {
        let plain = weight(name, &Shape::from(dims.as_slice()))?;
        let format = match dims.as_slice() {
            [.., k] if dims.len() > 1 && k.is_multiple_of(32) => GgmlDType::Q8_0,
            _ => GgmlDType::F32,
        };
        Ok((name.as_str(), QTensor::quantize(&plain, format)?))
    });
    let made: Vec<(&str, QTensor)> = made.collect::<Result<_>>()?;
    let tensors: Vec<(&str, &QTensor)> = made.iter().map(|(name, t)| (*name, t)).collect();
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, v)| (*key, v)).collect();
    let path = place.folder.join(format!("{name}.gguf"));
    gguf_file::write(&mut File::create(&path)?, &metadata, &tensors)?;
    let mut file = File::open(&path)?;
    Ok((Content::read(&mut file)?, file))
}

/// The weights of a decoder with this many layers of these parts, 128 tokens and a stream of size 64, in a GGUF file with the names of
/// Hugging Face's checkpoints; and vectors of that size in addition to the layers.
pub fn hugging_face(
    place: &Place,
    name: &str,
    layers: usize,
    parts: &[(&str, &[usize])],
    vectors: &[&str],
) -> Result<quantized_var_builder::VarBuilder> {
    let mut tensors = vec![
        (
            "model.embed_tokens.weight".to_string(),
            vec![VOCABULARY, 64],
        ),
        ("model.norm.weight".to_string(), vec![64]),
        ("lm_head.weight".to_string(), vec![VOCABULARY, 64]),
    ];
    tensors.extend(vectors.iter().map(|name| (name.to_string(), vec![64])));
    for layer in 0..layers {
        let named = |(part, dims): &(&str, &[usize])| {
            (format!("model.layers.{layer}.{part}"), dims.to_vec())
        };
        tensors.extend(parts.iter().map(named));
    }
    gguf(place, name, &[], &tensors)?;
    let path = place.folder.join(format!("{name}.gguf"));
    quantized_var_builder::VarBuilder::from_gguf(path, &place.device)
}
