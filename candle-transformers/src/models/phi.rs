//! Phi 1, 1.5 and 2: [arXiv 2309.05463](https://arxiv.org/abs/2309.05463). Attention and a plain MLP side by side on one norm, and a part of
//! each head rotated. Files from before Transformers knew the family are [`super::mixformer`]'s.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, DecoderConfig, DecoderSpec, FeedForwardSpec, Head, LayerSpec, Names,
    NextLm, NormSpec, PlainSpec, QkNorm, Rotary, RotaryPairs, Wiring,
};

const NAMES: Names = Names {
    final_norm: "model.final_layernorm",
    o: "self_attn.dense",
    q_norm: "self_attn.q_layernorm",
    k_norm: "self_attn.k_layernorm",
    up: "mlp.fc1",
    down: "mlp.fc2",
    ..Names::HUGGING_FACE
};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    hidden_act: Activation,
    max_position_embeddings: usize,
    layer_norm_eps: f64,
    tie_word_embeddings: bool,
    rope_theta: f32,
    partial_rotary_factor: f64,
    qk_layernorm: bool,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let norm = NormSpec::layer(self.layer_norm_eps);
        let heads = self.num_attention_heads;
        let kv_heads = self.num_key_value_heads.unwrap_or(heads);
        let mut attention = AttentionSpec::new(self.hidden_size, heads, kv_heads).bias(true);
        attention.qk_norm = self.qk_layernorm.then_some(QkNorm::Head(norm));
        let rotated = (self.partial_rotary_factor * attention.head_dim as f64) as usize;
        let rotary = Rotary::new(RotaryPairs::Halves, self.rope_theta.into(), rotated);
        let mlp = FeedForwardSpec::Plain(PlainSpec {
            inner: self.intermediate_size,
            activation: self.hidden_act,
            bias: true,
        });
        let layers = layers(self.num_hidden_layers, |_| {
            Ok(LayerSpec {
                wiring: Wiring::Parallel,
                ..LayerSpec::pre_norm(attention.clone(), mlp.clone(), norm)
            })
        })?;
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.max_position_embeddings,
        ];
        let spec = DecoderSpec {
            head: if self.tie_word_embeddings {
                Head::TiedWithBias
            } else {
                Head::Linear { bias: true }
            },
            names: NAMES,
            ..DecoderSpec::new("phi", sizes, vec![rotary], layers, norm)
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

/// The language model and the sequence that it has seen. Loads `model.*` and `lm_head`.
pub type Model = NextLm<Config>;
