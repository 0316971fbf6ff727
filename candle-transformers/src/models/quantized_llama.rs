//! Llama with quantised weights from GGUF or GGML files, after the
//! [GGUF specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The model itself is [`super::llama`]'s: the same
//! blocks over other weights.
//!
//! Taken are the architectures `llama` (with Mixtral's experts, Llama 3's `rope_freqs.weight` and scaled positions) and `qwen2`, which
//! is the same with biases.
//!
//! ```no_run
//! use candle_core::quantized::gguf_file;
//! use candle_core::{Device, Tensor};
//! use candle_transformers::models::quantized_llama::ModelWeights;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let mut file = std::fs::File::open("model.gguf")?;
//! let content = gguf_file::Content::read(&mut file)?;
//! let mut model = ModelWeights::from_gguf(content, &mut file, &device)?;
//! let logits = model.forward(&Tensor::new(&[[1u32, 15043]], &device)?, 0)?;
//! # Ok(())
//! # }
//! ```

use std::io::{Read, Seek};

use candle_core::quantized::ggml_file::{self, HParams};
use candle_core::quantized::gguf_file;
use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::ops::GatedActivation;

use crate::blocks::{
    layers, AttentionSpec, CausalLm, DecoderSpec, FeedForwardSpec, GgufMetadata, LayerSpec,
    MlpSpec, Names, NormSpec, Reading, Rotary, RotaryPairs, Routing, Stored, Wanted, WeightSource,
};

/// The longest sequence where a file does not say: [`ModelWeights::from_ggml`], or without `context_length`.
pub const MAX_SEQ_LEN: usize = 4096;

/// The decoder that a file of the architectures `llama` and `qwen2` describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    let pairs = match file.architecture() {
        "llama" => RotaryPairs::Neighbours,
        _ => RotaryPairs::Halves,
    };
    let (attention, norm) = (file.attention()?, file.rms_norm()?);
    let rotary = file.rotary(pairs, attention.head_dim)?;
    let feed_forward = match file.experts(GatedActivation::Silu, Routing::softmax(0, true))? {
        Some(experts) => experts,
        None => file.gated_mlp(GatedActivation::Silu)?,
    };
    let layer = LayerSpec::pre_norm(attention, feed_forward, norm);
    let layers = layers(file.layers()?, |_| Ok(layer.clone()))?;
    file.decoder("llama", vec![rotary], layers, norm)
}

/// A quantised Llama and the sequence that it has seen. Activations are f32.
#[derive(Debug, Clone)]
pub struct ModelWeights {
    lm: CausalLm,
}

impl ModelWeights {
    /// The model of a GGML file, on the device that its tensors were read to. `gqa` is how many query heads share a key and value
    /// head, which such files do not say: 1, or 8 for Llama 2 70B.
    ///
    /// # Errors
    /// If `gqa` does not divide the heads, or a tensor is missing or has another shape.
    pub fn from_ggml(ct: ggml_file::Content, gqa: usize) -> Result<Self> {
        let device = ct.device.clone();
        let mut source = GgmlTensors(ct);
        let spec = ggml_spec(&source, gqa)?;
        CausalLm::load(spec, &mut source, &device).map(|lm| Self { lm })
    }

    /// The model of a GGUF file. `reader` is the stream that `ct` was read from.
    ///
    /// # Errors
    /// If metadata or a tensor is missing or does not fit; by name.
    pub fn from_gguf<R: Seek + Read>(
        ct: gguf_file::Content,
        reader: &mut R,
        device: &Device,
    ) -> Result<Self> {
        let spec = |file: &GgufMetadata| {
            file.expect(&["llama", "qwen2"])?;
            spec(file)
        };
        CausalLm::from_gguf(spec, ct, reader, device).map(|lm| Self { lm })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `x`, `(b, t)` in u32, which are at the positions
    /// `index_pos .. index_pos + t`. At position 0 a new sequence begins; elsewhere `x` continues the one before.
    ///
    /// # Errors
    /// If `x` holds no ids, or more than fit below the model's positions: before any work is queued.
    pub fn forward(&mut self, x: &Tensor, index_pos: usize) -> Result<Tensor> {
        let logits = self.lm.forward(x, index_pos)?.last_logits()?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}

/// The decoder of a GGML file; `gqa` query heads share a key and value head.
fn ggml_spec(source: &GgmlTensors, gqa: usize) -> Result<DecoderSpec> {
    let HParams {
        n_vocab,
        n_embd,
        n_head,
        n_layer,
        ..
    } = source.0.hparams;
    let (hidden, heads) = (n_embd as usize, n_head as usize);
    if heads == 0 || gqa == 0 || !heads.is_multiple_of(gqa) || !hidden.is_multiple_of(2 * heads) {
        bail!("GGML hyperparameters: {hidden} wide with {heads} heads, of which {gqa} share keys and values")
    }
    let inner = source.shape("blk.0.ffn_down.weight");
    let inner = match inner.as_ref().map(Shape::dims) {
        Some([_, inner]) => *inner,
        _ => bail!("tensor \"layers.0.feed_forward.w2.weight\" is missing"),
    };
    let norm = NormSpec::rms(1e-5);
    let mlp = FeedForwardSpec::Gated(MlpSpec::new(inner, GatedActivation::Silu));
    let attention = AttentionSpec::new(hidden, heads, heads / gqa);
    let rotary = Rotary::new(RotaryPairs::Neighbours, 10_000., hidden / heads);
    let layer = LayerSpec::pre_norm(attention, mlp, norm);
    let sizes = [n_vocab as usize, hidden, MAX_SEQ_LEN];
    let layers = layers(n_layer as usize, |_| Ok(layer.clone()))?;
    Ok(DecoderSpec {
        names: Names::GGUF,
        ..DecoderSpec::new("llama", sizes, vec![rotary], layers, norm)
    })
}

/// A GGML file, which is older and has other names.
struct GgmlTensors(ggml_file::Content);

impl WeightSource for GgmlTensors {
    fn contains(&self, name: &str) -> bool {
        self.0.tensors.contains_key(&ggml_name(name))
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let tensor = self.0.tensors.get(&ggml_name(name))?;
        Some(tensor.shape().clone())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let tensor = self.0.remove(&ggml_name(wanted.name));
        Box::pin(std::future::ready(tensor.map(Stored::from)))
    }
}

/// The name that a GGML file has for a tensor of a GGUF file.
fn ggml_name(name: &str) -> String {
    let in_layer = || {
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let part = match part.strip_suffix(".weight")? {
            "attn_norm" => "attention_norm",
            "attn_q" => "attention.wq",
            "attn_k" => "attention.wk",
            "attn_v" => "attention.wv",
            "attn_output" => "attention.wo",
            "ffn_gate" => "feed_forward.w1",
            "ffn_down" => "feed_forward.w2",
            "ffn_up" => "feed_forward.w3",
            other => other,
        };
        Some(format!("layers.{layer}.{part}.weight"))
    };
    match name {
        "token_embd.weight" => "tok_embeddings.weight".into(),
        "output_norm.weight" => "norm.weight".into(),
        other => in_layer().unwrap_or_else(|| other.into()),
    }
}
