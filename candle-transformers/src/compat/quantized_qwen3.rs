//! Parts of Qwen3 over the weights of a GGUF file; the models are `DecoderSpec`s.

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::sync::Arc;

use candle_core::quantized::{gguf_file, QTensor};
use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::rotary_emb::rope;

use super::quantized_nn::RmsNorm;
use super::with_tracing::QMatMul;
use crate::blocks::{inverse_frequencies, GrowingKvCache};

/// A GGUF file from which tensors are read by name onto a device. Models here use
/// [`GgufReader`](crate::blocks::GgufReader).
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

/// Cosines and sines of all positions. Models here use [`RotaryTables`](crate::blocks::RotaryTables).
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

/// Attention over the weights of a GGUF file, with the keys and values that it has seen. Models here use
/// [`Attention`](crate::blocks::Attention).
pub struct QuantizedAttention {
    q: (QMatMul, Option<Tensor>),
    k: (QMatMul, Option<Tensor>),
    v: (QMatMul, Option<Tensor>),
    o: QMatMul,
    norms: [RmsNorm; 2],
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotary: Arc<RotaryEmbedding>,
    dtype: DType,
    cache: GrowingKvCache,
}

impl QuantizedAttention {
    /// The block of the layer whose weights' names start with `prefix`. Queries, keys and values are of `dtype`.
    ///
    /// # Errors
    /// If the heads do not fit each other, or a tensor other than a bias is missing or cannot be read.
    #[allow(clippy::too_many_arguments)]
    pub fn new<R: Seek + Read>(
        gg: &mut Gguf<R>,
        prefix: &str,
        dtype: DType,
        num_heads: usize,
        num_kv_heads: usize,
        head_dim: usize,
        rms_norm_eps: f64,
        device: &Device,
        rotary_emb: Arc<RotaryEmbedding>,
    ) -> Result<Self> {
        if num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            bail!("attention: {num_heads} query heads cannot be grouped over {num_kv_heads} key heads")
        }
        let mut layer = |name: &str| -> Result<(QMatMul, Option<Tensor>)> {
            let weight = gg.qmatmul(&format!("{prefix}.{name}.weight"))?;
            // Whether there is a bias, the header does not say otherwise than by its absence.
            let bias = gg.tensor(&format!("{prefix}.{name}.bias")).ok();
            let bias = bias.map(|bias| bias.dequantize(device)).transpose()?;
            Ok((weight, bias))
        };
        let (q, k, v) = (layer("attn_q")?, layer("attn_k")?, layer("attn_v")?);
        let (o, _) = layer("attn_output")?;
        let mut norm = |name: &str| gg.rms_norm(&format!("{prefix}.{name}.weight"), rms_norm_eps);
        Ok(Self {
            q,
            k,
            v,
            o,
            norms: [norm("attn_q_norm")?, norm("attn_k_norm")?],
            heads: num_heads,
            kv_heads: num_kv_heads,
            head_dim,
            rotary: rotary_emb,
            dtype,
            cache: GrowingKvCache::new(usize::MAX),
        })
    }

    /// The block's output for `x`, `(b, t, hidden_size)`, at the positions from `input_pos` on: of the same shape and dtype. Keys and
    /// values are added to those before. Every position sees all of them, unless `mask`, which is added to the scores `(b, heads, t,
    /// positions)`, says otherwise.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match, or there are too few positions.
    pub fn forward(
        &mut self,
        x: &Tensor,
        mask: Option<&Tensor>,
        input_pos: usize,
    ) -> Result<Tensor> {
        let (b, t, _) = x.dims3()?;
        let split = |(weight, bias): &(QMatMul, Option<Tensor>), heads: usize| {
            let ys = weight.forward(x)?;
            let ys = match bias {
                Some(bias) => ys.broadcast_add(bias)?,
                None => ys,
            };
            ys.reshape((b, t, heads, self.head_dim))
        };
        let in_heads = |ys: Tensor| ys.transpose(1, 2)?.to_dtype(self.dtype);
        let [q_norm, k_norm] = &self.norms;
        let q = in_heads(q_norm.forward(&split(&self.q, self.heads)?)?)?;
        let k = in_heads(k_norm.forward(&split(&self.k, self.kv_heads)?)?)?;
        let v = in_heads(split(&self.v, self.kv_heads)?)?;
        let (q, k) = self.rotary.apply(&q, &k, input_pos)?;
        let kv = self.cache.append(&Tensor::cat(&[&k, &v], 1)?)?;
        let k = kv.narrow(1, 0, self.kv_heads)?;
        let v = kv.narrow(1, self.kv_heads, self.kv_heads)?;
        let options = SdpaOptions {
            scale: 1. / (self.head_dim as f32).sqrt(),
            bias: mask,
            ..SdpaOptions::default()
        };
        let ys = sdpa_with(&q, &k, &v, &options)?;
        let ys = ys
            .transpose(1, 2)?
            .reshape((b, t, self.heads * self.head_dim))?;
        self.o.forward(&ys.to_dtype(x.dtype())?)
    }
}
