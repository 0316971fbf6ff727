//! Qwen3 with quantised weights, from GGUF files of the architecture `qwen3`. The model is [`super::qwen3`]'s.

use std::collections::HashMap;
use std::io::{Read, Seek};

use candle_core::quantized::{gguf_file, QTensor};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::GatedActivation;
use candle_nn::rotary_emb::rope;

use super::with_tracing::QMatMul;
use crate::blocks::{
    inverse_frequencies, layers, DecoderSpec, GgufFamily, GgufLm, GgufMetadata, LayerSpec, QkNorm,
    RotaryPairs,
};
use crate::quantized_nn::RmsNorm;

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

/// A GGUF file from which tensors are read by name onto a device. Part of upstream's interface; models here read files by
/// [`crate::blocks::GgufReader`].
pub struct Gguf<R: Read + Seek> {
    content: gguf_file::Content,
    reader: R,
    device: Device,
}

impl<R: Read + Seek> Gguf<R> {
    /// The file with the header `ct`, which was read from `reader`.
    pub fn new(ct: gguf_file::Content, reader: R, device: Device) -> Self {
        Self {
            content: ct,
            reader,
            device,
        }
    }

    /// The linear layer whose weight, `(out_dim, in_dim)`, has this name.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn qmatmul(&mut self, name: &str) -> Result<QMatMul> {
        QMatMul::from_weights(self.tensor(name)?.into())
    }

    /// The norm whose weight has this name.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn rms_norm(&mut self, name: &str, eps: f64) -> Result<RmsNorm> {
        RmsNorm::from_qtensor(self.tensor(name)?, eps)
    }

    /// The metadata of the header.
    pub fn metadata(&self) -> &HashMap<String, gguf_file::Value> {
        &self.content.metadata
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn tensor(&mut self, name: &str) -> Result<QTensor> {
        self.content.tensor(&mut self.reader, name, &self.device)
    }
}

/// Cosines and sines of all positions. Part of upstream's interface; models here have [`crate::blocks::RotaryTables`].
#[derive(Debug, Clone)]
pub struct RotaryEmbedding {
    cos: Tensor,
    sin: Tensor,
    host_cos: Vec<f32>,
    host_sin: Vec<f32>,
    pairs: usize,
}

impl RotaryEmbedding {
    /// Tables of `dtype` for heads of `head_dim` elements and `max_position_embeddings` positions. Angles are f32 whatever the dtype is.
    ///
    /// # Errors
    /// If the device cannot allocate the memory.
    pub fn new(
        dtype: DType,
        head_dim: usize,
        max_position_embeddings: usize,
        rope_theta: f64,
        dev: &Device,
    ) -> Result<Self> {
        let frequencies = inverse_frequencies(rope_theta, head_dim);
        let pairs = frequencies.len();
        let angles = (0..max_position_embeddings)
            .flat_map(|position| frequencies.iter().map(move |f| position as f32 * f));
        let (host_sin, host_cos): (Vec<f32>, Vec<f32>) = angles.map(f32::sin_cos).unzip();
        let shape = (max_position_embeddings, pairs);
        let table = |values: &[f32]| Tensor::from_slice(values, shape, dev)?.to_dtype(dtype);
        Ok(Self {
            cos: table(&host_cos)?,
            sin: table(&host_sin)?,
            host_cos,
            host_sin,
            pairs,
        })
    }

    /// Queries and keys, `(b, heads, t, head_dim)`, rotated as at the positions from `offset` on.
    ///
    /// # Errors
    /// If there are fewer positions, or the shapes do not fit.
    pub fn apply(&self, q: &Tensor, k: &Tensor, offset: usize) -> Result<(Tensor, Tensor)> {
        let (_, _, t, _) = q.dims4()?;
        let cos = self.cos.narrow(0, offset, t)?.to_dtype(q.dtype())?;
        let sin = self.sin.narrow(0, offset, t)?.to_dtype(q.dtype())?;
        let rotated = |xs: &Tensor| rope(&xs.contiguous()?, &cos, &sin);
        Ok((rotated(q)?, rotated(k)?))
    }

    /// The cosines and sines of a position, `head_dim / 2` each in f32; none of a position that has none.
    pub fn cos_sin_at(&self, pos: usize) -> (&[f32], &[f32]) {
        let start = pos.saturating_mul(self.pairs);
        let row = start..start.saturating_add(self.pairs);
        (
            self.host_cos.get(row.clone()).unwrap_or(&[]),
            self.host_sin.get(row).unwrap_or(&[]),
        )
    }
}
