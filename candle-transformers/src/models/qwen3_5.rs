//! Qwen3.5 ([its collection](https://huggingface.co/collections/Qwen/qwen35)), the language model: three of four layers have the gated
//! delta rule, [arXiv 2412.06464](https://arxiv.org/abs/2412.06464), instead of attention, and the heads of attention have gates. Candle
//! lacks it.

use candle_core::{bail, Context, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, CausalLm, DecoderSpec, DeltaForm, DeltaSpec, FeedForwardSpec, Head,
    LayerSpec, MixerSpec, MlpSpec, NormSpec, QkNorm, RopeScaling, RotaryPairs,
};
use crate::serde_default_fn;

/// The token mixer of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// The gated delta rule.
    LinearAttention,
    /// Attention.
    FullAttention,
}

/// Rotary parameters of the positions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RopeParameters {
    /// Base of the rotary frequencies.
    pub rope_theta: Option<f64>,
    /// Fraction of each head that is rotated.
    pub partial_rotary_factor: Option<f64>,
    /// Scaling of the rotary frequencies.
    #[serde(flatten)]
    pub scaling: RopeScaling,
}

serde_default_fn!(usize, positions, 32_768);
serde_default_fn!(usize, head_dim, 256);
serde_default_fn!(usize, kernel, 4);
serde_default_fn!(usize, linear_dim, 128);
serde_default_fn!(usize, linear_keys, 16);
serde_default_fn!(usize, linear_values, 32);
serde_default_fn!(usize, interval, 4);
serde_default_fn!(f64, eps, 1e-6);
serde_default_fn!(bool, yes, true);
serde_default_fn!(Activation, silu, Activation::Silu);

/// A checkpoint's `config.json`, or its `text_config` where there is an image encoder too.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    #[serde(default)]
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Head dimension.
    #[serde(default = "head_dim")]
    pub head_dim: usize,
    /// Whether the projections of attention have biases.
    #[serde(default)]
    pub attention_bias: bool,
    /// Whether heads of attention have gates; others are not supported.
    #[serde(default = "yes")]
    pub attn_output_gate: bool,
    /// Maximum sequence length, in tokens.
    #[serde(default = "positions")]
    pub max_position_embeddings: usize,
    /// RMS norm epsilon, added to the mean square.
    #[serde(default = "eps")]
    pub rms_norm_eps: f64,
    /// Whether the output layer shares the token table's weight.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Activation of the MLP's gate, and after the convolution of the gated delta rule.
    #[serde(default = "silu")]
    pub hidden_act: Activation,
    /// Rotary parameters of the positions.
    pub rope_parameters: Option<RopeParameters>,
    /// The same, in older files.
    pub rope_scaling: Option<RopeParameters>,
    /// Base of the rotary frequencies, where `rope_parameters` has none; 10,000 where neither has.
    pub rope_theta: Option<f64>,
    /// Fraction of each head that is rotated; used if `rope_parameters` has none. Default: a quarter.
    pub partial_rotary_factor: Option<f64>,
    /// The token mixer by layer; default: attention in every layer whose number, from 1 on, is a multiple of `full_attention_interval`.
    pub layer_types: Option<Vec<LayerType>>,
    /// Layers from one of attention to the next.
    #[serde(default = "interval")]
    pub full_attention_interval: usize,
    /// Kernel size of the convolution before the gated delta rule, in tokens.
    #[serde(default = "kernel")]
    pub linear_conv_kernel_dim: usize,
    /// Dimension of a head of queries or keys of the gated delta rule.
    #[serde(default = "linear_dim")]
    pub linear_key_head_dim: usize,
    /// Dimension of a head of its values.
    #[serde(default = "linear_dim")]
    pub linear_value_head_dim: usize,
    /// Heads of its queries and keys.
    #[serde(default = "linear_keys")]
    pub linear_num_key_heads: usize,
    /// Heads of its values, a multiple of those.
    #[serde(default = "linear_values")]
    pub linear_num_value_heads: usize,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself, or asks for what is not supported.
    pub fn spec(&self) -> Result<DecoderSpec> {
        if self.intermediate_size == 0 {
            bail!("qwen3_5 config: intermediate_size is missing or 0")
        }
        let mlp = MlpSpec::new(self.intermediate_size, self.hidden_act.try_into()?);
        self.spec_with("qwen3_5", FeedForwardSpec::Gated(mlp))
    }

    /// As [`spec`](Self::spec), of this family and with this feed-forward block instead of the MLP.
    pub(crate) fn spec_with(
        &self,
        family: &'static str,
        feed_forward: FeedForwardSpec,
    ) -> Result<DecoderSpec> {
        if !self.attn_output_gate {
            bail!(
                "{family} config: attn_output_gate is false; heads without gates are not supported"
            )
        }
        if self.layer_types.is_none() && self.full_attention_interval == 0 {
            bail!("{family} config: full_attention_interval is 0; it must be at least 1")
        }
        if let Some(types) = &self.layer_types {
            if types.len() != self.num_hidden_layers {
                bail!(
                    "{family} config: layer_types has {} values, but num_hidden_layers is {}",
                    types.len(),
                    self.num_hidden_layers
                )
            }
        }
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let theta = rope.and_then(|rope| rope.rope_theta).or(self.rope_theta);
        let share = rope
            .and_then(|rope| rope.partial_rotary_factor)
            .or(self.partial_rotary_factor)
            .unwrap_or(0.25);
        let rotated = (self.head_dim as f64 * share) as usize;
        if !rotated.is_multiple_of(2) || rotated > self.head_dim {
            bail!(
                "{family} config: partial_rotary_factor {share} rotates {rotated} of a head's {} elements; the number must be even \
                 and at most the head size",
                self.head_dim
            )
        }
        let unscaled = RopeScaling::none();
        let rotary = rope.map_or(&unscaled, |rope| &rope.scaling).rotary(
            RotaryPairs::Halves,
            theta.unwrap_or(10_000.),
            rotated,
            self.max_position_embeddings,
        );
        let rotary = rotary.with_context(|| format!("{family} config: rope_parameters"))?;

        let norm = NormSpec::rms_plus_one(self.rms_norm_eps);
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let attention = AttentionSpec {
            head_dim: self.head_dim,
            qk_norm: Some(QkNorm::Head(norm)),
            gate: true,
            ..AttentionSpec::new(self.hidden_size, heads, kv_heads)
        };
        let attention = attention.bias(self.attention_bias);
        let delta = DeltaSpec {
            key_heads: self.linear_num_key_heads,
            value_heads: self.linear_num_value_heads,
            key_dim: self.linear_key_head_dim,
            value_dim: self.linear_value_head_dim,
            kernel: self.linear_conv_kernel_dim,
            activation: self.hidden_act,
            norm_eps: self.rms_norm_eps,
            form: DeltaForm::HuggingFace,
        };
        let layers = layers(self.num_hidden_layers, |i| {
            let full = match &self.layer_types {
                Some(types) => types[i] == LayerType::FullAttention,
                None => (i + 1).is_multiple_of(self.full_attention_interval),
            };
            let mixer: MixerSpec = if full {
                attention.clone().into()
            } else {
                delta.clone().into()
            };
            Ok(LayerSpec::pre_norm(mixer, feed_forward.clone(), norm))
        })?;
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.max_position_embeddings,
        ];
        let spec = DecoderSpec {
            head: Head::tied(self.tie_word_embeddings),
            ..DecoderSpec::new(family, sizes, vec![rotary], layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

/// The decoder without an output layer.
#[derive(Debug, Clone)]
pub struct Model(CausalLm);

impl Model {
    /// Loads `model.*`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let spec = DecoderSpec {
            head: Head::None,
            ..cfg.spec()?
        };
        CausalLm::from_vb(spec, vb).map(Self)
    }

    /// The stream after the last norm, `(b, t, hidden_size)`, for token ids `(b, t)` at the positions from `offset` on; at 0 a new
    /// sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        self.0.forward(input, offset)?.normed()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.0.clear_kv_cache();
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct ModelForCausalLM(CausalLm);

impl ModelForCausalLM {
    /// Loads `model.*`, and `lm_head` unless it is tied.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_vb(cfg.spec()?, vb).map(Self)
    }

    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in the model's dtype; see [`Model::forward`].
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        self.0.forward(input, offset)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.0.clear_kv_cache();
    }
}
