//! Qwen2 with quantised weights, from GGUF files of the architecture `qwen2`. The model is [`super::qwen2`]'s.

use candle_core::Result;
use candle_nn::ops::GatedActivation;

use crate::blocks::{
    layers, DecoderSpec, GgufFamily, GgufLm, GgufMetadata, LayerSpec, RotaryPairs,
};

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["qwen2"])?;
    let (attention, norm) = (file.attention()?, file.rms_norm()?);
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let mlp = file.gated_mlp(GatedActivation::Silu)?;
    let layer = LayerSpec::pre_norm(attention, mlp, norm);
    let layers = layers(file.layers()?, |_| Ok(layer.clone()))?;
    file.decoder("qwen2", vec![rotary], layers, norm)
}

/// The family, of [`ModelWeights`].
#[derive(Debug, Clone, Copy)]
pub struct Qwen2;

impl GgufFamily for Qwen2 {
    fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
        spec(file)
    }
}

/// A quantised Qwen2 and the sequence that it has seen. Activations are f32.
pub type ModelWeights = GgufLm<Qwen2>;
