//! Based: [arXiv 2402.18668](https://arxiv.org/abs/2402.18668). Layers of three kinds: a convolution with a gate, attention by a Taylor polynomial,
//! and attention within a small window.

use candle_core::Result;
use candle_nn::ops::GatedActivation;
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, DecoderConfig, DecoderSpec, FeedForwardSpec, Head, LayerSpec, Lm,
    MixerSpec, MlpSpec, Names, NormSpec, Order, RecurrentKind, RecurrentSpec, Rotary, RotaryPairs,
};

/// The longest sequence, which configurations do not say.
const MAX_SEQ_LEN: usize = 2048;

const NAMES: Names = Names {
    embedding: "lm_head",
    layers: "transformer.layers",
    final_norm: "transformer.ln_f",
    attn_norm: "norm1",
    qkv: "mixer.Wqkv",
    o: "mixer.out_proj",
    mlp_norm: "norm2",
    gate_up: "mlp.fc1",
    down: "mlp.fc2",
    ..Names::HUGGING_FACE
};

/// The feature map that turns queries and keys into the terms of a polynomial.
#[derive(Debug, Clone, Deserialize)]
pub struct LinearAttentionFeatureMapConfig {
    input_dim: usize,
}

/// Attention by a Taylor polynomial.
#[derive(Debug, Clone, Deserialize)]
pub struct LinearAttentionConfig {
    num_heads: usize,
    feature_dim: usize,
    feature_map: LinearAttentionFeatureMapConfig,
}

/// Attention within a window.
#[derive(Debug, Clone, Deserialize)]
pub struct SlidingWindowAttentionConfig {
    num_heads: usize,
    window_size: usize,
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    vocab_size: usize,
    #[serde(rename = "n_embd")]
    hidden_size: usize,
    #[serde(rename = "n_inner")]
    intermediate_size: usize,
    #[serde(rename = "n_layer")]
    num_hidden_layers: usize,
    // Both kinds of attention have their own.
    #[serde(rename = "n_head")]
    #[allow(dead_code)]
    num_attention_heads: usize,
    layer_norm_epsilon: f64,
    #[serde(default = "rope_theta", rename = "rotary_emb_base")]
    rope_theta: f64,
    alt_mixer_layers: Vec<usize>,
    alt_mixer_2_layers: Vec<usize>,
    #[serde(rename = "alt_mixer")]
    linear: LinearAttentionConfig,
    #[serde(rename = "alt_mixer_2")]
    window: SlidingWindowAttentionConfig,
}

fn rope_theta() -> f64 {
    10_000.
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let norm = NormSpec::rms(self.layer_norm_epsilon);
        let heads = self.window.num_heads;
        let attention = AttentionSpec {
            joined: Some(Order::Layers),
            // Half of the window is behind a position, and the other half, after it, is hidden.
            window: Some(self.window.window_size / 2 + 1),
            ..AttentionSpec::new(self.hidden_size, heads, heads)
        };
        let recurrent = |kind| {
            MixerSpec::from(RecurrentSpec {
                name: "mixer",
                kind,
            })
        };
        let rotary = Rotary::new(RotaryPairs::Halves, self.rope_theta, attention.head_dim);
        let mlp = MlpSpec::new(self.intermediate_size, GatedActivation::Silu);
        let mlp = FeedForwardSpec::Gated(mlp.joined(Order::Reversed));
        let layers = layers(self.num_hidden_layers, |i| {
            let mixer = if self.alt_mixer_layers.contains(&i) {
                recurrent(RecurrentKind::Taylor {
                    heads: self.linear.num_heads,
                    features: self.linear.feature_dim,
                    scale: self.linear.feature_map.input_dim,
                })
            } else if self.alt_mixer_2_layers.contains(&i) {
                attention.clone().into()
            } else {
                recurrent(RecurrentKind::GatedConv { kernel: 3 })
            };
            Ok(LayerSpec::pre_norm(mixer, mlp.clone(), norm))
        })?;
        let vocab = self.vocab_size.checked_next_multiple_of(8);
        let vocab = vocab.unwrap_or(self.vocab_size);
        let sizes = [vocab, self.hidden_size, MAX_SEQ_LEN];
        let spec = DecoderSpec {
            head: Head::Tied,
            names: NAMES,
            ..DecoderSpec::new("based", sizes, vec![rotary], layers, norm)
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

/// The language model and the sequence that it has seen. Loads `transformer.*` and `lm_head`, which is the table of tokens as well.
pub type Model = Lm<Config>;
