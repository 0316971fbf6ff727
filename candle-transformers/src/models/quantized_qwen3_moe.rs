//! Qwen2 and Qwen3 with experts and quantised weights, from GGUF files of the architectures `qwen2moe` and `qwen3moe`. The models are
//! those of [`super::qwen2_moe`] and [`super::qwen3_moe`].

use std::io::{Read, Seek};
use std::sync::Arc;

use candle_core::quantized::gguf_file;
use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, GatedActivation, SdpaOptions};

use super::quantized_qwen3::{Gguf, RotaryEmbedding};
use super::with_tracing::QMatMul;
use crate::blocks::{
    layers, CausalLm, DecoderSpec, GgufMetadata, GrowingKvCache, LayerSpec, QkNorm, RotaryPairs,
    Routing,
};
use crate::quantized_nn::RmsNorm;

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

/// Attention over the weights of a GGUF file, with the keys and values that it has seen. Part of upstream's interface; models here have
/// [`crate::blocks::Attention`].
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
