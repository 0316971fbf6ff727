//! GLM 4 of June 2024: [arXiv 2406.12793](https://arxiv.org/abs/2406.12793). [`super::chatglm`] with another base of the rotary frequencies.

use candle_core::Result;
use serde::Deserialize;

use super::chatglm;
use crate::blocks::{DecoderConfig, DecoderSpec, NextLm};

/// The tokens that end a text.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum EosTokenId {
    /// One.
    Single(u32),
    /// Several.
    Multiple(Vec<u32>),
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Decoder layers.
    pub num_layers: usize,
    /// Tokens in the vocabulary.
    pub padded_vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub ffn_hidden_size: usize,
    /// Head dimension; the first half is rotated.
    pub kv_channels: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Maximum sequence length, in tokens.
    pub seq_length: usize,
    /// Norm epsilon, added to the mean square or the variance.
    pub layernorm_epsilon: f64,
    /// Whether the norms are without a mean.
    pub rmsnorm: bool,
    /// Whether residual connections start after the norm; has to be `false`.
    pub apply_residual_connection_post_layernorm: bool,
    /// Whether there is a norm after the last layer; has to be `true`.
    pub post_layer_norm: bool,
    /// Whether linear layers have biases.
    pub add_bias_linear: bool,
    /// Whether those to queries, keys and values have.
    pub add_qkv_bias: bool,
    /// An implementation detail; not used.
    pub bias_dropout_fusion: bool,
    /// Whether there are fewer key and value heads than query heads; has to be `true`.
    pub multi_query_attention: bool,
    /// Key and value heads.
    pub multi_query_group_num: usize,
    /// Whether scores are divided and multiplied with a layer's number, which changes nothing; not used.
    pub apply_query_key_layer_scaling: bool,
    /// Softmax is computed in f32 in any case; not used.
    pub attention_softmax_in_fp32: bool,
    /// Whether the residual stream is f32 if the weights are not; has to be `false`.
    pub fp32_residual_connection: bool,
    /// Factor of the base of the rotary frequencies, 10 000.
    #[serde(default = "super::chatglm::one")]
    pub rope_ratio: usize,
    /// The tokens that end a text.
    pub eos_token_id: Option<EosTokenId>,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself, or a field is not what it has to be.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let config = chatglm::Config {
            num_layers: self.num_layers,
            padded_vocab_size: self.padded_vocab_size,
            hidden_size: self.hidden_size,
            ffn_hidden_size: self.ffn_hidden_size,
            kv_channels: self.kv_channels,
            num_attention_heads: self.num_attention_heads,
            seq_length: self.seq_length,
            layernorm_epsilon: self.layernorm_epsilon,
            rmsnorm: self.rmsnorm,
            apply_residual_connection_post_layernorm: self.apply_residual_connection_post_layernorm,
            post_layer_norm: self.post_layer_norm,
            add_bias_linear: self.add_bias_linear,
            add_qkv_bias: self.add_qkv_bias,
            bias_dropout_fusion: self.bias_dropout_fusion,
            multi_query_attention: self.multi_query_attention,
            multi_query_group_num: self.multi_query_group_num,
            apply_query_key_layer_scaling: self.apply_query_key_layer_scaling,
            attention_softmax_in_fp32: self.attention_softmax_in_fp32,
            fp32_residual_connection: self.fp32_residual_connection,
        };
        config.with_rope_ratio("glm4", self.rope_ratio)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model and the sequence that it has seen. Loads `transformer.*`.
pub type Model = NextLm<Config>;
