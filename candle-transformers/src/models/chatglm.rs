//! ChatGLM 2 and 3: [arXiv 2406.12793](https://arxiv.org/abs/2406.12793). Llama with biases on queries, keys and values, half of each head
//! rotated, and joined projections. [`super::glm4`] and [`super::codegeex4_9b`] are the same with another base.

use candle_core::{bail, Result};
use candle_nn::ops::GatedActivation;

use crate::blocks::{
    layers, AttentionSpec, DecoderConfig, DecoderSpec, FeedForwardSpec, LayerSpec, MlpSpec, Names,
    NextLm, NormSpec, Order, Rotary, RotaryPairs,
};

const NAMES: Names = Names {
    embedding: "transformer.embedding.word_embeddings",
    layers: "transformer.encoder.layers",
    final_norm: "transformer.encoder.final_layernorm",
    head: "transformer.output_layer",
    qkv: "self_attention.query_key_value",
    o: "self_attention.dense",
    gate_up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..Names::HUGGING_FACE
};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone)]
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
}

/// The `rope_ratio` of files that have none.
pub(super) fn one() -> usize {
    1
}

impl Config {
    /// [ChatGLM 3 6B](https://huggingface.co/THUDM/chatglm3-6b).
    pub fn glm3_6b() -> Self {
        Self {
            num_layers: 28,
            padded_vocab_size: 65_024,
            hidden_size: 4096,
            ffn_hidden_size: 13_696,
            kv_channels: 128,
            num_attention_heads: 32,
            seq_length: 8192,
            layernorm_epsilon: 1e-5,
            rmsnorm: true,
            apply_residual_connection_post_layernorm: false,
            post_layer_norm: true,
            add_bias_linear: false,
            add_qkv_bias: true,
            bias_dropout_fusion: true,
            multi_query_attention: true,
            multi_query_group_num: 2,
            apply_query_key_layer_scaling: true,
            attention_softmax_in_fp32: true,
            fp32_residual_connection: false,
        }
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself, or a field is not what it has to be.
    pub fn spec(&self) -> Result<DecoderSpec> {
        self.with_rope_ratio("chatglm", 1)
    }

    pub(super) fn with_rope_ratio(
        &self,
        family: &'static str,
        rope_ratio: usize,
    ) -> Result<DecoderSpec> {
        for (name, value, needed) in [
            (
                "apply_residual_connection_post_layernorm",
                self.apply_residual_connection_post_layernorm,
                false,
            ),
            ("post_layer_norm", self.post_layer_norm, true),
            ("multi_query_attention", self.multi_query_attention, true),
            (
                "fp32_residual_connection",
                self.fp32_residual_connection,
                false,
            ),
        ] {
            if value != needed {
                bail!("{family}: {name} is {value}; only {needed} is supported")
            }
        }
        let norm = if self.rmsnorm {
            NormSpec::rms(self.layernorm_epsilon)
        } else {
            NormSpec::layer(self.layernorm_epsilon)
        };
        let (heads, kv_heads) = (self.num_attention_heads, self.multi_query_group_num);
        let attention = AttentionSpec {
            head_dim: self.kv_channels,
            qkv_bias: self.add_bias_linear || self.add_qkv_bias,
            o_bias: self.add_bias_linear,
            joined: Some(Order::Layers),
            ..AttentionSpec::new(self.hidden_size, heads, kv_heads)
        };
        let theta = 10_000. * rope_ratio as f64;
        let rotary = Rotary::new(RotaryPairs::Neighbours, theta, self.kv_channels / 2);
        let mlp = MlpSpec::new(self.ffn_hidden_size, GatedActivation::Silu)
            .bias(self.add_bias_linear)
            .joined(Order::Layers);
        let layer = LayerSpec::pre_norm(attention, FeedForwardSpec::Gated(mlp), norm);
        let layers = layers(self.num_layers, |_| Ok(layer.clone()))?;
        let sizes = [self.padded_vocab_size, self.hidden_size, self.seq_length];
        let spec = DecoderSpec {
            names: NAMES,
            ..DecoderSpec::new(family, sizes, vec![rotary], layers, norm)
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

/// The language model and the sequence that it has seen. Loads `transformer.*`.
pub type Model = NextLm<Config>;
