//! StarCoder and SantaCoder: [arXiv 2305.06161](https://arxiv.org/abs/2305.06161). GPT-2 with one key and value head.

use candle_core::{Result, Tensor};
use candle_nn::{Activation, VarBuilder};

use crate::blocks::{
    layers, AttentionSpec, CausalLm, DecoderSpec, FeedForwardSpec, Head, LayerSpec, Names,
    NormSpec, Order, PlainSpec,
};

const NAMES: Names = Names {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    layers: "transformer.h",
    final_norm: "transformer.ln_f",
    attn_norm: "ln_1",
    qkv: "attn.c_attn",
    o: "attn.c_proj",
    mlp_norm: "ln_2",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    ..Names::HUGGING_FACE
};

/// The fields of a checkpoint's `config.json`.
#[derive(Debug)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Maximum sequence length, in tokens; in files `n_positions`.
    pub max_position_embeddings: usize,
    /// Decoder layers; in files `n_layer`.
    pub num_hidden_layers: usize,
    /// Size of the residual stream; in files `n_embd`.
    pub hidden_size: usize,
    /// Layer norm epsilon, added to the variance.
    pub layer_norm_epsilon: f64,
    /// Inner size of the MLP; `None` for four times `n_embd`.
    pub n_inner: Option<usize>,
    /// Query heads; in files `n_head`.
    pub num_attention_heads: usize,
    /// Whether there is one key and value head, or one for each query head.
    pub multi_query: bool,
    /// Not used: `past_len` determines whether a call continues a sequence.
    pub use_cache: bool,
}

impl Config {
    fn sized(num_hidden_layers: usize, hidden_size: usize, num_attention_heads: usize) -> Self {
        Self {
            vocab_size: 49_152,
            max_position_embeddings: 8192,
            num_hidden_layers,
            hidden_size,
            layer_norm_epsilon: 1e-5,
            n_inner: Some(4 * hidden_size),
            num_attention_heads,
            multi_query: true,
            use_cache: true,
        }
    }

    /// [StarCoderBase 1B](https://huggingface.co/bigcode/starcoderbase-1b).
    pub fn starcoder_1b() -> Self {
        Self::sized(24, 2048, 16)
    }

    /// [StarCoderBase 3B](https://huggingface.co/bigcode/starcoderbase-3b).
    pub fn starcoder_3b() -> Self {
        Self::sized(36, 2816, 22)
    }

    /// [StarCoderBase 7B](https://huggingface.co/bigcode/starcoderbase-7b).
    pub fn starcoder_7b() -> Self {
        Self::sized(42, 4096, 32)
    }

    /// [StarCoder](https://huggingface.co/bigcode/starcoder), 15B.
    pub fn starcoder() -> Self {
        Self::sized(40, 6144, 48)
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let norm = NormSpec::layer(self.layer_norm_epsilon);
        let heads = self.num_attention_heads;
        let (kv_heads, order) = if self.multi_query {
            (1, Order::Layers)
        } else {
            (heads, Order::Groups(heads))
        };
        let attention = AttentionSpec {
            rotary: None,
            joined: Some(order),
            ..AttentionSpec::new(self.hidden_size, heads, kv_heads).bias(true)
        };
        let mlp = FeedForwardSpec::Plain(PlainSpec {
            inner: self.n_inner.unwrap_or(self.hidden_size.saturating_mul(4)),
            activation: Activation::NewGelu,
            bias: true,
        });
        let layer = LayerSpec::pre_norm(attention, mlp, norm);
        let layers = layers(self.num_hidden_layers, |_| Ok(layer.clone()))?;
        let positions = self.max_position_embeddings;
        let sizes = [self.vocab_size, self.hidden_size, positions];
        let spec = DecoderSpec {
            learned_positions: Some(positions),
            head: Head::Tied,
            names: NAMES,
            ..DecoderSpec::new("gpt_bigcode", sizes, Vec::new(), layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

/// The language model and the sequence that it has seen.
pub struct GPTBigCode {
    model: CausalLm,
    config: Config,
}

impl GPTBigCode {
    /// Loads `transformer.*`.
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

    /// The logits, `(b, vocab)` in the model's dtype, of what follows the last of the token ids, `(b, t)`, which are at the positions from
    /// `past_len` on; at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, past_len: usize) -> Result<Tensor> {
        let hidden = self.model.forward(input_ids, past_len)?;
        hidden.last_logits()?.squeeze(1)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.model.clear_kv_cache();
    }
}
