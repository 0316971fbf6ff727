//! RecurrentGemma: [arXiv 2404.07839](https://arxiv.org/abs/2404.07839). Two of three layers have Griffin's recurrence instead of
//! attention, and the third sees a window.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, DecoderConfig, DecoderSpec, FeedForwardSpec, Head, LayerSpec, Lm,
    MixerSpec, MlpSpec, Names, NormSpec, RecurrentKind, RecurrentSpec, Rotary, RotaryPairs,
};

const NAMES: Names = Names {
    embedding: "embed_tokens",
    layers: "layers",
    final_norm: "final_norm",
    attn_norm: "temporal_pre_norm",
    mlp_norm: "channel_pre_norm",
    q: "temporal_block.q_proj",
    k: "temporal_block.k_proj",
    v: "temporal_block.v_proj",
    o: "temporal_block.o_proj",
    gate: "mlp_block.gate_proj",
    up: "mlp_block.up_proj",
    down: "mlp_block.down_proj",
    ..Names::HUGGING_FACE
};

/// As a whole checkpoint has them.
pub(crate) const NAMES_IN_CHECKPOINT: Names = Names {
    embedding: "model.embed_tokens",
    layers: "model.layers",
    final_norm: "model.final_norm",
    ..NAMES
};

/// The token mixer of a layer.
#[derive(Deserialize, Debug, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum TemporalBlockType {
    /// Attention within a window.
    Attention,
    /// A recurrence.
    Recurrent,
}

/// A checkpoint's `config.json`.
#[derive(Deserialize, Debug, Clone)]
pub struct Config {
    /// Layers.
    pub num_hidden_layers: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Twice the inner size of the MLP.
    pub intermediate_size: usize,
    /// Query heads; the recurrences' gates have as many blocks.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Channels of a recurrence; `None` for `hidden_size`.
    pub lru_width: Option<usize>,
    /// Window size of attention, in positions.
    pub attention_window_size: usize,
    /// Kernel size of the convolution of a recurrence, in tokens.
    pub conv1d_width: usize,
    /// Replaces a logit by `cap * tanh(logit / cap)`.
    pub logits_soft_cap: f64,
    /// Activation of the MLP's gate and of the branch parallel to a recurrence.
    pub hidden_activation: Activation,
    /// Fraction of each head that is rotated.
    pub partial_rotary_factor: f64,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The token mixers of the layers, repeated.
    #[serde(alias = "_block_types")]
    pub block_types: Vec<TemporalBlockType>,
    /// Whether queries, keys and values have biases.
    pub attention_bias: bool,
    /// Maximum sequence length, in tokens.
    #[serde(default = "max_seq_len")]
    pub max_seq_len: usize,
}

fn max_seq_len() -> usize {
    8192
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        if self.block_types.is_empty() {
            bail!("recurrent_gemma: block_types is empty; at least one is required")
        }
        let norm = NormSpec::rms_plus_one(self.rms_norm_eps);
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let attention = AttentionSpec {
            head_dim: self.head_dim,
            qkv_bias: self.attention_bias,
            o_bias: true,
            window: Some(self.attention_window_size),
            ..AttentionSpec::new(self.hidden_size, heads, kv_heads)
        };
        let recurrence = RecurrentSpec {
            name: "temporal_block",
            kind: RecurrentKind::Griffin {
                width: self.lru_width.unwrap_or(self.hidden_size),
                heads,
                kernel: self.conv1d_width,
                activation: self.hidden_activation,
            },
        };
        let rotated = (self.partial_rotary_factor * self.head_dim as f64) as usize;
        let rotary = Rotary::new(RotaryPairs::Halves, self.rope_theta, rotated);
        let activation = self.hidden_activation.try_into()?;
        let mlp = MlpSpec::new(self.intermediate_size / 2, activation).bias(true);
        let mlp = FeedForwardSpec::Gated(mlp);
        let layers = layers(self.num_hidden_layers, |i| {
            let mixer: MixerSpec = match self.block_types[i % self.block_types.len()] {
                TemporalBlockType::Attention => attention.clone().into(),
                TemporalBlockType::Recurrent => recurrence.clone().into(),
            };
            Ok(LayerSpec::pre_norm(mixer, mlp.clone(), norm))
        })?;
        let sizes = [self.vocab_size, self.hidden_size, self.max_seq_len];
        let spec = DecoderSpec {
            head: Head::Tied,
            embedding_scale: Some((self.hidden_size as f64).sqrt()),
            logit_softcap: Some(self.logits_soft_cap),
            names: NAMES,
            ..DecoderSpec::new("recurrent_gemma", sizes, vec![rotary], layers, norm)
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

/// The language model and the sequence that it has seen. Loads `embed_tokens`, `layers.*` and `final_norm`: in checkpoints they are below `model`.
pub type Model = Lm<Config>;
