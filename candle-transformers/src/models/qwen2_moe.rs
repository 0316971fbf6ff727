//! Qwen2 (and Qwen1.5) with experts: [arXiv 2407.10671](https://arxiv.org/abs/2407.10671). Beside those that a router picks, every token
//! takes one whose output a separate score weighs.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use super::qwen2;
use crate::blocks::family;
use crate::blocks::{DecoderConfig, DecoderSpec, ExpertsSpec, Lm, Routing, SharedSpec};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(remote = "Self")]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP of layers without experts.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: usize,
    /// Number of the first layers, which have no window.
    pub max_window_layers: usize,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Whether there are windows.
    pub use_sliding_window: bool,
    /// Activation of the gates.
    pub hidden_act: Activation,
    /// Every layer whose number, from 1 on, is a multiple of this has experts.
    pub decoder_sparse_step: usize,
    /// Inner size of an expert.
    pub moe_intermediate_size: usize,
    /// Inner size of the shared expert.
    pub shared_expert_intermediate_size: usize,
    /// Experts for each token.
    pub num_experts_per_tok: usize,
    /// Experts; 0 for none in any layer.
    pub num_experts: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
}

crate::models::spelling::spelled!(Config, crate::models::spelling::experts);

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        self.spec_with_dense(&[])
    }

    /// As [`spec`](Self::spec), with an MLP in the layers `dense`, whatever `decoder_sparse_step` says.
    pub(crate) fn spec_with_dense(&self, dense: &[usize]) -> Result<DecoderSpec> {
        let attention = qwen2::Config {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            max_position_embeddings: self.max_position_embeddings,
            sliding_window: self.sliding_window,
            max_window_layers: self.max_window_layers,
            tie_word_embeddings: self.tie_word_embeddings,
            rope_theta: self.rope_theta,
            rms_norm_eps: self.rms_norm_eps,
            use_sliding_window: self.use_sliding_window,
            hidden_act: self.hidden_act,
        };
        let experts = ExpertsSpec::new(
            self.num_experts,
            self.moe_intermediate_size,
            self.hidden_act.try_into()?,
            Routing::softmax(self.num_experts_per_tok, self.norm_topk_prob),
        );
        let experts = experts.shared(SharedSpec {
            gated: true,
            ..SharedSpec::new(self.shared_expert_intermediate_size)
        });
        // Every second layer of the first ones, where the other Qwens have it in all of the last.
        let windowed = |i: usize| i.is_multiple_of(2) && i < self.max_window_layers;
        let spec = DecoderSpec {
            family: "qwen2_moe",
            ..attention.spec_with(windowed)?
        };
        family::with_experts(spec, experts, self.decoder_sparse_step, dense)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type Model = Lm<Config>;
