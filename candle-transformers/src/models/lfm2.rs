//! LFM2 ([Liquid AI](https://huggingface.co/collections/LiquidAI/lfm2)): short convolutions, and attention in a few layers.

use candle_core::{bail, Result};
use candle_nn::ops::GatedActivation;
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, CachedLm, DecoderConfig, DecoderSpec, FeedForwardSpec, Head, LayerSpec,
    MixerSpec, MlpSpec, Names, NormSpec, QkNorm, Rotary, RotaryPairs, SequenceCache, ShortConvSpec,
};
use crate::serde_default_fn;

const NAMES: Names = Names {
    final_norm: "model.embedding_norm",
    attn_norm: "operator_norm",
    o: "self_attn.out_proj",
    q_norm: "self_attn.q_layernorm",
    k_norm: "self_attn.k_layernorm",
    mlp_norm: "ffn_norm",
    gate: "feed_forward.w1",
    up: "feed_forward.w3",
    down: "feed_forward.w2",
    ..Names::HUGGING_FACE
};

/// The token mixer of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// Attention.
    FullAttention,
    /// A short convolution.
    Conv,
}

serde_default_fn!(usize, kv_heads, 8);
serde_default_fn!(f64, eps, 1e-5);
serde_default_fn!(f32, theta, 1e6);
serde_default_fn!(usize, positions, 128_000);
serde_default_fn!(usize, kernel, 3);
serde_default_fn!(f32, one, 1.);
serde_default_fn!(usize, multiple, 256);

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Lfm2Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    #[serde(default = "kv_heads")]
    pub num_key_value_heads: usize,
    /// RMS norm epsilon, added to the mean square.
    #[serde(default = "eps")]
    pub norm_eps: f64,
    /// Base of the rotary frequencies.
    #[serde(default = "theta")]
    pub rope_theta: f32,
    /// Maximum sequence length, in tokens.
    #[serde(default = "positions")]
    pub max_position_embeddings: usize,
    /// Kernel size of the convolutions, in positions.
    #[serde(default = "kernel", alias = "conv_L_cache")]
    pub conv_l_cache: usize,
    /// Whether convolutions and their projections have biases.
    #[serde(default)]
    pub conv_bias: bool,
    /// The token mixer by layer.
    pub layer_types: Vec<LayerType>,
    /// Whether the output layer shares the token table's weight.
    #[serde(default)]
    pub tie_embedding: bool,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<u32>,
    /// Factor of the MLP's inner size.
    #[serde(default = "one")]
    pub block_ffn_dim_multiplier: f32,
    /// Number of which the MLP's inner size is a multiple.
    #[serde(default = "multiple")]
    pub block_multiple_of: usize,
}

impl Lfm2Config {
    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    /// The model's parameters. The MLP's inner size is upstream's: four times the stream's and the factor, rounded up to the multiple. If a
    /// checkpoint has another, set it in the result, or use [`crate::auto`], which reads it. `use_flash_attn` has no effect.
    pub fn into_config(self, use_flash_attn: bool) -> Config {
        let inner = self.hidden_size as f32 * 4. * self.block_ffn_dim_multiplier;
        Config {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: (inner as usize).next_multiple_of(self.block_multiple_of.max(1)),
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            norm_eps: self.norm_eps,
            rope_theta: self.rope_theta,
            max_position_embeddings: self.max_position_embeddings,
            conv_l_cache: self.conv_l_cache,
            conv_bias: self.conv_bias,
            layer_types: self.layer_types,
            tie_embedding: self.tie_embedding,
            bos_token_id: self.bos_token_id,
            eos_token_id: self.eos_token_id,
            use_flash_attn,
        }
    }
}

/// The parameters of a model.
#[derive(Debug, Clone)]
pub struct Config {
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
    /// RMS norm epsilon, added to the mean square.
    pub norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Kernel size of the convolutions, in positions.
    pub conv_l_cache: usize,
    /// Whether convolutions and their projections have biases.
    pub conv_bias: bool,
    /// The token mixer by layer; attention beyond the end of the list.
    pub layer_types: Vec<LayerType>,
    /// Whether the output layer shares the token table's weight.
    pub tie_embedding: bool,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<u32>,
    /// Part of upstream's interface, without effect: attention is one fused op on every device.
    pub use_flash_attn: bool,
}

impl Config {
    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        if self.layer_types.len() > self.num_hidden_layers {
            bail!(
                "lfm2 config: layer_types has {} values, but num_hidden_layers is {}",
                self.layer_types.len(),
                self.num_hidden_layers
            )
        }
        let norm = NormSpec::rms(self.norm_eps);
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::Head(norm)),
            ..AttentionSpec::new(self.hidden_size, heads, kv_heads)
        };
        let conv = ShortConvSpec {
            channels: self.hidden_size,
            kernel: self.conv_l_cache,
            bias: self.conv_bias,
        };
        let theta = f64::from(self.rope_theta);
        let rotary = Rotary::new(RotaryPairs::Halves, theta, attention.head_dim);
        let mlp = MlpSpec::new(self.intermediate_size, GatedActivation::Silu);
        let layers = layers(self.num_hidden_layers, |i| {
            let mixer: MixerSpec = match self.layer_types.get(i) {
                Some(LayerType::Conv) => conv.clone().into(),
                Some(LayerType::FullAttention) | None => attention.clone().into(),
            };
            let mlp = FeedForwardSpec::Gated(mlp.clone());
            Ok(LayerSpec::pre_norm(mixer, mlp, norm))
        })?;
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.max_position_embeddings,
        ];
        let spec = DecoderSpec {
            head: Head::tied(self.tie_embedding),
            names: NAMES,
            ..DecoderSpec::new("lfm2", sizes, vec![rotary], layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// State of a sequence between its steps.
pub type Cache = SequenceCache<Config>;

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type Model = CachedLm<Config>;
