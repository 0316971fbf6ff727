//! Qwen3 with experts: [arXiv 2505.09388](https://arxiv.org/abs/2505.09388).

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use super::qwen3;
use crate::blocks::family;
use crate::blocks::{DecoderConfig, DecoderSpec, ExpertsSpec, HiddenLm, Lm, Routing};

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
    /// Head dimension.
    pub head_dim: usize,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: Option<usize>,
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
    /// Experts for each token.
    pub num_experts_per_tok: usize,
    /// Experts; 0 for none in any layer.
    pub num_experts: usize,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub norm_topk_prob: bool,
}

crate::models::spelling::spelled!(Config, crate::models::spelling::experts);

/// All but the experts.
impl From<&Config> for qwen3::Config {
    fn from(config: &Config) -> Self {
        Self {
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            intermediate_size: config.intermediate_size,
            num_hidden_layers: config.num_hidden_layers,
            num_attention_heads: config.num_attention_heads,
            head_dim: config.head_dim,
            attention_bias: config.attention_bias,
            num_key_value_heads: config.num_key_value_heads,
            max_position_embeddings: config.max_position_embeddings,
            sliding_window: config.sliding_window,
            max_window_layers: config.max_window_layers,
            tie_word_embeddings: config.tie_word_embeddings,
            rope_theta: config.rope_theta,
            rms_norm_eps: config.rms_norm_eps,
            use_sliding_window: config.use_sliding_window,
            hidden_act: config.hidden_act,
        }
    }
}

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
        let spec = DecoderSpec {
            family: "qwen3_moe",
            // All layers: `max_window_layers` has no meaning here.
            ..qwen3::Config::from(self).spec_with(|_| true)?
        };
        let experts = ExpertsSpec::new(
            self.num_experts,
            self.moe_intermediate_size,
            self.hidden_act.try_into()?,
            Routing::softmax(self.num_experts_per_tok, self.norm_topk_prob),
        );
        family::with_experts(spec, experts, self.decoder_sparse_step, dense)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The decoder without an output layer. Loads `model.*`.
pub type Model = HiddenLm<Config>;

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type ModelForCausalLM = Lm<Config>;
