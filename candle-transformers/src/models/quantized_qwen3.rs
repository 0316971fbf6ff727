//! Qwen3 with quantised weights, from GGUF files of the architecture `qwen3`. The model is [`super::qwen3`]'s.

use candle_core::Result;
use candle_nn::ops::GatedActivation;

use crate::blocks::{
    layers, DecoderSpec, GgufFamily, GgufLm, GgufMetadata, LayerSpec, QkNorm, RotaryPairs,
};
pub use crate::compat::quantized_qwen3::{Gguf, RotaryEmbedding};

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["qwen3"])?;
    let (mut attention, norm) = (file.attention()?, file.rms_norm()?);
    attention.qk_norm = Some(QkNorm::Head(norm));
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let mlp = file.gated_mlp(GatedActivation::Silu)?;
    let layer = LayerSpec::pre_norm(attention, mlp, norm);
    let layers = layers(file.layers()?, |_| Ok(layer.clone()))?;
    file.decoder("qwen3", vec![rotary], layers, norm)
}

/// The family, of [`ModelWeights`].
#[derive(Debug, Clone, Copy)]
pub struct Qwen3;

impl GgufFamily for Qwen3 {
    fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
        spec(file)
    }
}

/// A quantised Qwen3 and the sequence that it has seen. Activations are f32.
pub type ModelWeights = GgufLm<Qwen3>;
