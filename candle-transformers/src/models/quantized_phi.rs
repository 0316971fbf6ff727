//! Phi-2 with quantised weights, from GGUF files of the architecture `phi2`. The model is [`super::phi`]'s.

use std::io::{Read, Seek};

use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::Activation;

use crate::blocks::{layers, CausalLm, DecoderSpec, GgufMetadata, LayerSpec, RotaryPairs, Wiring};

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

/// A quantised Phi-2 and the sequence that it has seen. Activations are f32.
#[derive(Debug, Clone)]
pub struct ModelWeights {
    lm: CausalLm,
}

impl ModelWeights {
    /// The model of a GGUF file. `reader` is the stream that `ct` was read from.
    ///
    /// # Errors
    /// If metadata or a tensor is missing or does not fit; by name.
    pub fn from_gguf<R: Seek + Read>(
        ct: gguf_file::Content,
        reader: &mut R,
        device: &Device,
    ) -> Result<Self> {
        CausalLm::from_gguf(spec, ct, reader, device).map(|lm| Self { lm })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `xs`, `(b, t)`, which are at the positions from
    /// `index_pos` on. At position 0 a new sequence begins; elsewhere `xs` continues the one before.
    ///
    /// # Errors
    /// If `xs` holds no ids, or more than fit below the model's positions.
    pub fn forward(&mut self, xs: &Tensor, index_pos: usize) -> Result<Tensor> {
        let logits = self.lm.forward(xs, index_pos)?.last_logits()?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
