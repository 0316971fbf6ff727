//! Qwen2 and Qwen3 with experts and quantised weights, from GGUF files of the architectures `qwen2moe` and `qwen3moe`. The models are
//! those of [`super::qwen2_moe`] and [`super::qwen3_moe`].

use std::io::{Read, Seek};

use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::GatedActivation;

use crate::blocks::{
    layers, CausalLm, DecoderSpec, GgufMetadata, LayerSpec, QkNorm, RotaryPairs, Routing,
};
pub use crate::compat::quantized_qwen3::QuantizedAttention;

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["qwen2moe", "qwen3moe"])?;
    let third = file.architecture() == "qwen3moe";
    let (mut attention, norm) = (file.attention()?, file.rms_norm()?);
    attention.qk_norm = third.then_some(QkNorm::Head(norm));
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let experts = file.experts(GatedActivation::Silu, Routing::softmax(0, third))?;
    let experts = file.required("expert_count", experts)?;
    let layer = LayerSpec::pre_norm(attention, experts, norm);
    let layers = layers(file.layers()?, |_| Ok(layer.clone()))?;
    let family = if third { "qwen3_moe" } else { "qwen2_moe" };
    file.decoder(family, vec![rotary], layers, norm)
}

/// A quantised Qwen with experts and the sequence that it has seen. Activations are f32.
#[derive(Debug, Clone)]
pub struct GGUFQWenMoE {
    lm: CausalLm,
}

impl GGUFQWenMoE {
    /// The model of a GGUF file. `reader` is the stream that `ct` was read from. `dtype` is the one that upstream computes attention in,
    /// of no effect here: activations are f32.
    ///
    /// # Errors
    /// If metadata or a tensor is missing or does not fit; by name.
    pub fn from_gguf<R: Seek + Read>(
        ct: gguf_file::Content,
        reader: &mut R,
        device: &Device,
        dtype: DType,
    ) -> Result<Self> {
        let _ = dtype;
        CausalLm::from_gguf(spec, ct, reader, device).map(|lm| Self { lm })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `x`, `(b, t)`, which are at the positions from `offset`
    /// on. At position 0 a new sequence begins; elsewhere `x` continues the one before.
    ///
    /// # Errors
    /// If there are no ids, or more than fit below the model's positions.
    pub fn forward(&mut self, x: &Tensor, offset: usize) -> Result<Tensor> {
        let logits = self.lm.forward(x, offset)?.last_logits()?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
