//! Phi-2 with quantised weights, from GGUF files of the architecture `phi2`. The model is [`super::phi`]'s.

use candle_core::Result;
use candle_nn::Activation;

use crate::blocks::{
    layers, DecoderSpec, GgufFamily, GgufLm, GgufMetadata, LayerSpec, RotaryPairs, Wiring,
};

/// The longest sequence where a file does not say.
pub const MAX_SEQ_LEN: usize = 4096;

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["phi2"])?;
    let (attention, norm) = (file.attention()?, file.layer_norm()?);
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let mlp = file.plain_mlp(Activation::NewGelu)?;
    let layer = LayerSpec {
        wiring: Wiring::Parallel,
        ..LayerSpec::pre_norm(attention, mlp, norm)
    };
    let layers = layers(file.layers()?, |_| Ok(layer.clone()))?;
    file.decoder("phi2", vec![rotary], layers, norm)
}

/// The family, of [`ModelWeights`].
#[derive(Debug, Clone, Copy)]
pub struct Phi;

impl GgufFamily for Phi {
    fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
        spec(file)
    }
}

/// A quantised Phi-2 and the sequence that it has seen. Activations are f32.
pub type ModelWeights = GgufLm<Phi>;
