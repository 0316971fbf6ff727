//! Mixtral: [arXiv 2401.04088](https://arxiv.org/abs/2401.04088). Llama with experts instead of the MLP, and a window if the configuration
//! has one.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{
    DecoderConfig, DecoderSpec, ExpertsSpec, FeedForwardSpec, Head, Lm, Names, Routing,
};

const NAMES: Names = Names {
    router: "block_sparse_moe.gate",
    expert: [
        "block_sparse_moe.experts.{}.w1",
        "block_sparse_moe.experts.{}.w3",
        "block_sparse_moe.experts.{}.w2",
    ],
    experts_joined: ["", ""],
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
    num_key_value_heads: usize,
    hidden_act: Activation,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    rope_theta: f64,
    sliding_window: usize,
    num_experts_per_tok: usize,
    num_local_experts: usize,
    /// Part of upstream's interface. Attention is one fused op on every device, with it or without.
    #[allow(dead_code)]
    use_flash_attn: bool,
}

impl Config {
    /// Mixtral 8x7B.
    pub fn v0_1_8x7b(use_flash_attn: bool) -> Self {
        Self {
            vocab_size: 32_000,
            hidden_size: 4096,
            intermediate_size: 14_336,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            hidden_act: Activation::Silu,
            max_position_embeddings: 32_768,
            rms_norm_eps: 1e-5,
            rope_theta: 1e6,
            sliding_window: 4096,
            num_experts_per_tok: 2,
            num_local_experts: 8,
            use_flash_attn,
        }
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let mut spec = LlamaLike {
            family: "mixtral",
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: None,
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta,
            norm_eps: self.rms_norm_eps,
            activation: self.hidden_act,
            head: Head::Found { bias: false },
        }
        .spec(|_, attention, _| {
            // No position is further away than the model reaches.
            let seen = Some(self.sliding_window);
            attention.window = seen.filter(|seen| *seen < self.max_position_embeddings);
        })?;
        let experts = ExpertsSpec::new(
            self.num_local_experts,
            self.intermediate_size,
            self.hidden_act.try_into()?,
            Routing::softmax(self.num_experts_per_tok, true),
        );
        for layer in &mut spec.layers {
            layer.feed_forward = FeedForwardSpec::Experts(experts.clone());
        }
        spec.names = NAMES;
        spec.check()?;
        Ok(spec)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model. Loads `model.*` and `lm_head`.
pub type Model = Lm<Config>;
