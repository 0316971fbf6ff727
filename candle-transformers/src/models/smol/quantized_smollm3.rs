//! SmolLM3 with quantised weights, from GGUF files of the architecture `smollm3`. The model is [`super::smollm3`]'s.

use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{bail, Context, Device, Result, Tensor};
use candle_nn::ops::GatedActivation;

use crate::blocks::{layers, CausalLm, DecoderSpec, GgufMetadata, LayerSpec, RotaryPairs};
pub use crate::compat::quantized_smollm3::RotaryEmbedding;

/// The longest sequence where a file does not say.
const MAX_SEQ_LEN: usize = 4096;

/// Every layer whose number is a multiple of this has no rotation; files do not have the field.
const NO_ROPE_INTERVAL: usize = 4;

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["smollm3"])?;
    let (attention, norm) = (file.attention()?, file.rms_norm()?);
    // Files have the rows of queries and keys in the order of Llama's own checkpoints.
    let rotary = file.rotary(RotaryPairs::Neighbours, attention.head_dim)?;
    let mlp = file.gated_mlp(GatedActivation::Silu)?;
    let layers = layers(file.layers()?, |i| {
        let mut attention = attention.clone();
        attention.rotary = (!(i + 1).is_multiple_of(NO_ROPE_INTERVAL)).then_some(0);
        Ok(LayerSpec::pre_norm(attention, mlp.clone(), norm))
    })?;
    file.decoder("smollm3", vec![rotary], layers, norm)
}

/// The model's parameters in a file.
#[derive(Debug, Clone)]
pub struct QuantizedConfig {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Maximum sequence length, in tokens; default: 4096.
    pub max_position_embeddings: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Rotated elements of a head, which are all.
    pub rope_dimension_count: usize,
    /// Every layer whose number is a multiple of this has no rotation.
    pub no_rope_layer_interval: Option<usize>,
}

impl QuantizedConfig {
    /// From a file's metadata.
    ///
    /// # Errors
    /// Which key is missing, or has a value of another type.
    pub fn from_gguf(ct: &Content) -> Result<Self> {
        let value = |key: &str| -> Result<&Value> {
            match ct.metadata.get(key) {
                Some(value) => Ok(value),
                None => bail!("GGUF metadata {key} is missing"),
            }
        };
        let size = |key: &str| -> Result<usize> {
            let number = value(key)?.to_u32();
            Ok(number.with_context(|| format!("GGUF metadata {key}"))? as usize)
        };
        let float = |key: &str| -> Result<f64> {
            let number = value(key)?.to_f32();
            Ok(number
                .with_context(|| format!("GGUF metadata {key}"))?
                .into())
        };
        let positions = "smollm3.context_length";
        Ok(Self {
            vocab_size: size("smollm3.vocab_size")?,
            hidden_size: size("smollm3.embedding_length")?,
            intermediate_size: size("smollm3.feed_forward_length")?,
            num_hidden_layers: size("smollm3.block_count")?,
            num_attention_heads: size("smollm3.attention.head_count")?,
            num_key_value_heads: size("smollm3.attention.head_count_kv")?,
            max_position_embeddings: if ct.metadata.contains_key(positions) {
                size(positions)?
            } else {
                MAX_SEQ_LEN
            },
            rope_theta: float("smollm3.rope.freq_base")?,
            rms_norm_eps: float("smollm3.attention.layer_norm_rms_epsilon")?,
            rope_dimension_count: size("smollm3.rope.dimension_count")?,
            no_rope_layer_interval: Some(NO_ROPE_INTERVAL),
        })
    }

    /// Whether a layer rotates nothing.
    pub fn should_skip_rope(&self, layer_idx: usize) -> bool {
        let interval = self.no_rope_layer_interval;
        interval.is_some_and(|interval| (layer_idx + 1).is_multiple_of(interval))
    }

    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.rope_dimension_count
    }
}

/// The language model. Activations are f32.
#[derive(Debug, Clone)]
pub struct QuantizedModelForCausalLM {
    lm: CausalLm,
    config: QuantizedConfig,
}

impl QuantizedModelForCausalLM {
    /// The model of a file. Attention is one fused op on every device, with `use_flash_attn` or without.
    ///
    /// # Errors
    /// If the file cannot be read, or metadata or a tensor is missing or does not fit; by name.
    pub fn from_gguf<P: AsRef<Path>>(
        path: P,
        device: &Device,
        use_flash_attn: bool,
    ) -> Result<Self> {
        let _ = use_flash_attn;
        let path = path.as_ref();
        let read = || {
            let mut file = std::fs::File::open(path)?;
            let content = Content::read(&mut file)?;
            let config = QuantizedConfig::from_gguf(&content)?;
            let lm = CausalLm::from_gguf(spec, content, &mut file, device)?;
            Ok(Self { lm, config })
        };
        read().map_err(|err: candle_core::Error| err.with_path(path))
    }

    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in f32, for ids `(b, t)` at the positions from `offset` on;
    /// at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, offset: usize) -> Result<Tensor> {
        self.lm.forward(input_ids, offset)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }

    /// The model's parameters in the file.
    pub fn config(&self) -> &QuantizedConfig {
        &self.config
    }
}
