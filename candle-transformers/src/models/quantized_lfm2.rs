//! LFM2 with quantised weights, from GGUF files of the architecture `lfm2`. The model is [`super::lfm2`]'s.

use candle_core::Result;
use candle_nn::ops::GatedActivation;

use crate::blocks::{
    layers, DecoderSpec, FeedForwardSpec, GgufFamily, GgufLm, GgufMetadata, LayerSpec, MixerSpec,
    MlpSpec, Names, QkNorm, RotaryPairs, ShortConvSpec,
};

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["lfm2"])?;
    let (mut attention, norm) = (file.attention()?, file.rms_norm()?);
    attention.qk_norm = Some(QkNorm::Head(norm));
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let inner = match file.shape("blk.0.ffn_down.weight") {
        Some(shape) => shape.dims2()?.1,
        None => file.required_size("feed_forward_length")?,
    };
    let mlp = FeedForwardSpec::Gated(MlpSpec::new(inner, GatedActivation::Silu));
    let count = file.layers()?;
    // Layers without key heads are convolutions.
    let kv_heads = file.per_layer("attention.head_count_kv", count)?;
    let kv_heads = file.required("attention.head_count_kv", kv_heads)?;
    let conv = ShortConvSpec {
        channels: file.hidden()?,
        kernel: file.required_size("shortconv.l_cache")?,
        bias: false,
    };
    let layers = layers(count, |i| {
        let mixer: MixerSpec = match kv_heads[i] {
            0 => conv.clone().into(),
            _ => attention.clone().into(),
        };
        Ok(LayerSpec::pre_norm(mixer, mlp.clone(), norm))
    })?;
    let spec = file.decoder("lfm2", vec![rotary], layers, norm)?;
    // Files have the last norm by its own name, or by that of a norm of the embeddings, which the model lacks.
    let final_norm = match file.shape("output_norm.weight") {
        Some(_) => Names::GGUF.final_norm,
        None => Names::GGUF.embedding_norm,
    };
    Ok(DecoderSpec {
        names: Names {
            final_norm,
            ..Names::GGUF
        },
        ..spec
    })
}

/// The family, of [`ModelWeights`].
#[derive(Debug, Clone, Copy)]
pub struct Lfm2;

impl GgufFamily for Lfm2 {
    fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
        spec(file)
    }
}

/// A quantised LFM2 and the sequence that it has seen. Activations are f32.
pub type ModelWeights = GgufLm<Lfm2>;
