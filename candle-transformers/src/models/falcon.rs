//! Falcon: [arXiv 2311.16867](https://arxiv.org/abs/2311.16867). 7B has one key head, and attention and MLP in parallel after one norm; 40B
//! has several, and a norm for each; the RefinedWeb models have ALiBi, and attention and MLP in sequence.

use candle_core::{Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

use crate::blocks::family::alibi_slopes;
use crate::blocks::{
    layers, AttentionSpec, CausalLm, DecoderSpec, FeedForwardSpec, Head, LayerSpec, Names,
    NormSpec, Order, PlainSpec, Rotary, RotaryPairs, Wiring,
};

/// Maximum length, which configurations omit: longer than the training sequences of all the models.
const MAX_SEQ_LEN: usize = 5000;

const NAMES: Names = Names {
    embedding: "transformer.word_embeddings",
    layers: "transformer.h",
    final_norm: "transformer.ln_f",
    qkv: "self_attention.query_key_value",
    o: "self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..Names::HUGGING_FACE
};

/// A checkpoint's `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Layer norm epsilon, added to the variance.
    pub layer_norm_epsilon: f64,
    /// Used in training only.
    pub initializer_range: f64,
    /// Whether calls continue a sequence. Without, each is given the whole of it.
    pub use_cache: bool,
    /// The token that begins a text.
    pub bos_token_id: u32,
    /// The token that ends a text.
    pub eos_token_id: u32,
    /// Used in training only.
    pub hidden_dropout: f64,
    /// Used in training only.
    pub attention_dropout: f64,
    /// Key and value heads of the new architecture; `None` for the number of query heads.
    pub n_head_kv: Option<usize>,
    /// Whether scores decrease with the distance (ALiBi), instead of a rotation.
    pub alibi: bool,
    /// Whether it is built as 40B is.
    pub new_decoder_architecture: bool,
    /// Whether there is one key and value head; without the new architecture.
    pub multi_query: bool,
    /// Whether attention and MLP are side by side.
    pub parallel_attn: bool,
    /// Whether linear layers have biases.
    pub bias: bool,
}

/// That of 7B.
impl Default for Config {
    fn default() -> Self {
        Self {
            vocab_size: 65024,
            hidden_size: 4544,
            num_hidden_layers: 32,
            num_attention_heads: 71,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
            use_cache: true,
            bos_token_id: 11,
            eos_token_id: 11,
            hidden_dropout: 0.,
            attention_dropout: 0.,
            n_head_kv: None,
            alibi: false,
            new_decoder_architecture: false,
            multi_query: true,
            parallel_attn: true,
            bias: false,
        }
    }
}

impl Config {
    /// Whether the model can be built.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn validate(&self) -> Result<()> {
        self.spec().map(|_| ())
    }

    /// [Falcon 7B](https://huggingface.co/tiiuae/falcon-7b).
    pub fn falcon7b() -> Self {
        Self::default()
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let norm = NormSpec::layer(self.layer_norm_epsilon);
        let heads = self.num_attention_heads;
        let (kv_heads, order, wiring) = match (self.new_decoder_architecture, self.multi_query) {
            (true, _) => {
                let kv_heads = self.n_head_kv.unwrap_or(heads);
                (kv_heads, Order::Groups(kv_heads), Wiring::ParallelTwoNorms)
            }
            (false, true) => (1, Order::Layers, Wiring::Parallel),
            (false, false) => (heads, Order::Groups(heads), Wiring::Parallel),
        };
        let parallel = self.parallel_attn || self.new_decoder_architecture;
        let wiring = if parallel { wiring } else { Wiring::Pre };
        let mut attention = AttentionSpec::new(self.hidden_size, heads, kv_heads).bias(self.bias);
        attention.joined = Some(order);
        let mut rotaries = Vec::new();
        if self.alibi {
            // The model adds ALiBi before it divides the scores by the root of the head's size.
            let root = (attention.head_dim as f32).sqrt();
            let slopes = alibi_slopes(heads, 8.).into_iter();
            attention.slopes = Some(slopes.map(|slope| slope / root).collect());
            attention.rotary = None;
        } else {
            rotaries.push(Rotary::new(
                RotaryPairs::Halves,
                10_000.,
                attention.head_dim,
            ));
        }
        let mlp = FeedForwardSpec::Plain(PlainSpec {
            inner: self.hidden_size.saturating_mul(4),
            activation: Activation::Gelu,
            bias: self.bias,
        });
        let layers = layers(self.num_hidden_layers, |_| {
            Ok(LayerSpec {
                wiring,
                ..LayerSpec::pre_norm(attention.clone(), mlp.clone(), norm)
            })
        })?;
        let names = match wiring {
            Wiring::ParallelTwoNorms => Names {
                attn_norm: "ln_attn",
                mlp_norm: "ln_mlp",
                ..NAMES
            },
            _ => NAMES,
        };
        let sizes = [self.vocab_size, self.hidden_size, MAX_SEQ_LEN];
        let spec = DecoderSpec {
            head: Head::Found { bias: false },
            names,
            ..DecoderSpec::new("falcon", sizes, rotaries, layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

/// The language model and the sequence that it has seen.
#[derive(Debug, Clone)]
pub struct Falcon {
    model: CausalLm,
    config: Config,
}

impl Falcon {
    /// Loads `transformer.*` and `lm_head`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn load(vb: VarBuilder, cfg: Config) -> Result<Self> {
        let model = CausalLm::from_vb(cfg.spec()?, vb)?;
        Ok(Self { model, config: cfg })
    }

    /// The configuration of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The logits, `(b, vocab)` in the model's dtype, of what follows the last of the token ids, `(b, t)`. They continue the sequence,
    /// unless the configuration has no cache.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        let hidden = if self.config.use_cache {
            self.model.forward_next(input_ids)?
        } else {
            self.model.forward(input_ids, 0)?
        };
        hidden.last_logits()?.squeeze(1)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.model.clear_kv_cache();
    }
}
