//! StarCoder 2: [arXiv 2402.19173](https://arxiv.org/abs/2402.19173). Llama with layer norms, a plain MLP and biases.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, DecoderConfig, DecoderSpec, FeedForwardSpec, Head, LayerSpec, Lm, Names,
    NormSpec, PlainSpec, Rotary, RotaryPairs,
};

const NAMES: Names = Names {
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    ..Names::HUGGING_FACE
};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    hidden_act: Activation,
    max_position_embeddings: usize,
    norm_epsilon: f64,
    rope_theta: f64,
    use_bias: bool,
    sliding_window: Option<usize>,
    #[serde(default = "tied")]
    tie_word_embeddings: bool,
}

/// The default of files without the field.
fn tied() -> bool {
    true
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let norm = NormSpec::layer(self.norm_epsilon);
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let attention = AttentionSpec {
            window: self.sliding_window,
            ..AttentionSpec::new(self.hidden_size, heads, kv_heads).bias(self.use_bias)
        };
        let rotary = Rotary::new(RotaryPairs::Halves, self.rope_theta, attention.head_dim);
        let mlp = FeedForwardSpec::Plain(PlainSpec {
            inner: self.intermediate_size,
            activation: self.hidden_act,
            bias: self.use_bias,
        });
        let layer = LayerSpec::pre_norm(attention, mlp, norm);
        let layers = layers(self.num_hidden_layers, |_| Ok(layer.clone()))?;
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.max_position_embeddings,
        ];
        let spec = DecoderSpec {
            head: Head::tied(self.tie_word_embeddings),
            names: NAMES,
            ..DecoderSpec::new("starcoder2", sizes, vec![rotary], layers, norm)
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

/// The language model and the sequence that it has seen. Loads `model.*`, and `lm_head` if the configuration says that it is not the table of tokens.
pub type Model = Lm<Config>;
