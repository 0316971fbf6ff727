//! The shapes of known models, for benchmarks on random weights.

use crate::format::WeightFormat;
use candle_core::{DType, Result};
use candle_transformers::blocks::{DecoderSpec, Names, RotaryPairs};
use candle_transformers::models::llama::Config;
use clap::ValueEnum;
use serde::Serialize;

/// A model whose shape is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelShape {
    /// TinyLlama 1.1B
    #[value(name = "tinyllama-1.1b")]
    TinyLlama1_1b,
    /// Llama 3.2 1B
    #[value(name = "llama-3.2-1b")]
    Llama3_2_1b,
    /// Llama 3 8B
    #[value(name = "llama-3-8b")]
    Llama3_8b,
    /// The embedded model, small enough for any machine
    Demo,
}

/// The numbers that make a Llama's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Dimensions {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Attention heads of the queries.
    pub heads: usize,
    /// Attention heads of the keys and values.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub ffn: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Whether the output layer is the embedding again.
    pub tied: bool,
}

impl ModelShape {
    /// The name, as `--shape` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::TinyLlama1_1b => "tinyllama-1.1b",
            Self::Llama3_2_1b => "llama-3.2-1b",
            Self::Llama3_8b => "llama-3-8b",
            Self::Demo => "demo",
        }
    }

    /// The shape's numbers.
    pub fn dimensions(self) -> Dimensions {
        // (hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied)
        let row = match self {
            Self::TinyLlama1_1b => (2048, 22, 32, 4, 64, 5632, 32_000, false),
            Self::Llama3_2_1b => (2048, 16, 32, 8, 64, 8192, 128_256, true),
            Self::Llama3_8b => (4096, 32, 32, 8, 128, 14_336, 128_256, false),
            Self::Demo => (256, 6, 4, 2, 64, 768, 4096, true),
        };
        let (hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied) = row;
        Dimensions {
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn,
            vocab,
            tied,
        }
    }
}

impl Dimensions {
    /// A decoder of this shape that holds `positions` tokens, with the names of a checkpoint.
    ///
    /// # Errors
    /// None for the shapes that are known.
    pub fn spec(&self, positions: usize) -> Result<DecoderSpec> {
        let config = Config {
            hidden_size: self.hidden,
            intermediate_size: self.ffn,
            vocab_size: self.vocab,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            num_key_value_heads: self.kv_heads,
            use_flash_attn: false,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            bos_token_id: None,
            eos_token_id: None,
            rope_scaling: None,
            max_position_embeddings: positions,
            tie_word_embeddings: self.tied,
        };
        config.spec()
    }

    /// As [`spec`](Self::spec), with the names of a GGUF file and its order of rotated pairs.
    ///
    /// # Errors
    /// None for the shapes that are known.
    pub fn gguf_spec(&self, positions: usize) -> Result<DecoderSpec> {
        let mut spec = self.spec(positions)?;
        spec.names = Names::GGUF;
        for rotary in &mut spec.rotaries {
            rotary.pairs = RotaryPairs::Neighbours;
        }
        Ok(spec)
    }

    /// Weights that one token's step reads: every matrix and norm, and of the embedding the whole when it is the
    /// output layer too, else one row.
    fn weights_read(&self) -> u64 {
        let [hidden, layers, ffn, vocab] =
            [self.hidden, self.layers, self.ffn, self.vocab].map(|n| n as u64);
        let queries = (self.heads * self.head_dim) as u64;
        let keys_values = 2 * (self.kv_heads * self.head_dim) as u64;
        let layer = hidden * (2 * queries + keys_values) + 3 * hidden * ffn + 2 * hidden;
        layers * layer + hidden + vocab * hidden + hidden
    }

    /// Keys and values that a step reads when `position` tokens are in the cache.
    fn cache_read(&self, position: f64) -> f64 {
        (2 * self.layers * self.kv_heads * self.head_dim) as f64 * position
    }

    /// Bytes that one step of generation has to read at the least, on average over `steps` steps from an empty cache:
    /// the weights once, and the keys and values, which have the dtype of activations, up to the mean position.
    pub fn bytes_per_token(&self, weights: WeightFormat, activations: DType, steps: usize) -> f64 {
        let mean_position = (steps as f64 + 1.0) / 2.0;
        self.weights_read() as f64 * weights.bytes_per_weight()
            + self.cache_read(mean_position) * activations.size_in_bytes() as f64
    }
}
