//! The shapes of known models, for benchmarks on random weights.

use crate::format::WeightFormat;
use candle_core::{DType, Result};
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{
    DecoderSpec, ExpertsSpec, FeedForwardSpec, Head, LayerSpec, MixerSpec, Names, QkNorm,
    RotaryPairs, Wiring,
};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{json, Value};

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
    /// Qwen3 0.6B
    #[value(name = "qwen3-0.6b")]
    Qwen3_0_6b,
    /// Qwen3 4B
    #[value(name = "qwen3-4b")]
    Qwen3_4b,
    /// Gemma 3 1B
    #[value(name = "gemma-3-1b")]
    Gemma3_1b,
    /// Phi-4-mini, 3.8B
    #[value(name = "phi-4-mini")]
    Phi4Mini,
    /// Mixtral 8x7B
    #[value(name = "mixtral-8x7b")]
    Mixtral8x7b,
    /// The embedded model, small enough for any machine
    Demo,
}

/// The sizes that define a shape; those of a layer are the first layer's.
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
    /// Width of the feed-forward block, or of one expert.
    pub ffn: usize,
    /// Experts, and how many of them a token takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<[usize; 2]>,
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
            Self::Qwen3_0_6b => "qwen3-0.6b",
            Self::Qwen3_4b => "qwen3-4b",
            Self::Gemma3_1b => "gemma-3-1b",
            Self::Phi4Mini => "phi-4-mini",
            Self::Mixtral8x7b => "mixtral-8x7b",
            Self::Demo => "demo",
        }
    }

    /// The fields of the model's `config.json` that define its shape.
    fn config(self) -> Value {
        let llama = |[hidden, layers, heads, kv_heads, ffn, vocab]: [usize; 6], tied: bool| {
            json!({
                "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocab, "tie_word_embeddings": tied,
                "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            })
        };
        let qwen3 = |hidden: usize, layers: usize, heads: usize, ffn: usize| {
            json!({
                "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": ffn, "vocab_size": 151_936,
                "tie_word_embeddings": true, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            })
        };
        match self {
            Self::TinyLlama1_1b => llama([2048, 22, 32, 4, 5632, 32_000], false),
            Self::Llama3_2_1b => llama([2048, 16, 32, 8, 8192, 128_256], true),
            Self::Llama3_8b => llama([4096, 32, 32, 8, 14_336, 128_256], false),
            Self::Qwen3_0_6b => qwen3(1024, 28, 16, 3072),
            Self::Qwen3_4b => qwen3(2560, 36, 32, 9728),
            Self::Gemma3_1b => json!({
                "model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262_144,
                "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6, "rms_norm_eps": 1e-6,
                "rope_theta": 1e6, "rope_local_base_freq": 10_000.0,
            }),
            // Its LongRoPE changes numbers and no sizes.
            Self::Phi4Mini => json!({
                "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 24,
                "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 200_064, "tie_word_embeddings": true,
                "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            }),
            Self::Mixtral8x7b => json!({
                "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 32_000, "num_local_experts": 8,
                "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
            }),
            Self::Demo => llama([256, 6, 4, 2, 768, 4096], true),
        }
    }

    /// A decoder of this shape that holds `positions` tokens, with the names of a checkpoint.
    ///
    /// # Errors
    /// None for the shapes that are known.
    pub fn spec(self, positions: usize) -> Result<DecoderSpec> {
        let mut config = self.config();
        config["max_position_embeddings"] = positions.into();
        config_spec(&config.to_string())
    }

    /// As [`spec`](Self::spec), with the names of a GGUF file and, of a Llama, its order of rotated pairs.
    ///
    /// # Errors
    /// None for the shapes that are known.
    pub fn gguf_spec(self, positions: usize) -> Result<DecoderSpec> {
        let mut spec = self.spec(positions)?;
        spec.names = Names::GGUF;
        if spec.family == "llama" {
            for rotary in &mut spec.rotaries {
                rotary.pairs = RotaryPairs::Neighbours;
            }
        }
        Ok(spec)
    }
}

impl From<&DecoderSpec> for Dimensions {
    fn from(spec: &DecoderSpec) -> Self {
        let first = spec.layers.first();
        let [heads, kv_heads, head_dim] = match first.map(|layer| &layer.mixer) {
            Some(MixerSpec::Attention(attention)) => {
                [attention.heads, attention.kv_heads, attention.head_dim]
            }
            Some(MixerSpec::Latent(latent)) => [
                latent.heads,
                latent.heads,
                latent.plain_dim + latent.rotated_dim,
            ],
            // No shape that is known has others.
            _ => [0; 3],
        };
        let (ffn, experts) = match first.map(|layer| &layer.feed_forward) {
            Some(FeedForwardSpec::Gated(mlp)) => (mlp.inner, None),
            Some(FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp)) => (mlp.inner, None),
            Some(FeedForwardSpec::Experts(experts)) => {
                (experts.inner, Some([experts.count, experts.routing.used]))
            }
            None => (0, None),
        };
        Self {
            hidden: spec.hidden,
            layers: spec.layers.len(),
            heads,
            kv_heads,
            head_dim,
            ffn,
            experts,
            vocab: spec.vocab,
            tied: matches!(spec.head, Head::Tied | Head::TiedWithBias),
        }
    }
}

/// Steps of generation, for what they have to read.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Keys that are there before the first.
    pub context: usize,
    /// Their number.
    pub count: usize,
    /// Sequences that are decoded together.
    pub batch: usize,
}

/// Minimum number of bytes read per generated token, on average over `steps`: the weights, which a step reads once for all sequences (of
/// experts, those of one token), and the keys and values, which are stored as `kv`.
pub fn bytes_per_token(spec: &DecoderSpec, weights: WeightFormat, kv: DType, steps: Steps) -> f64 {
    let cache: f64 = spec
        .layers
        .iter()
        .map(|layer| cache_read(layer, steps))
        .sum();
    weights_read(spec) as f64 * weights.bytes_per_weight() / steps.batch as f64
        + cache * kv.size_in_bytes() as f64
}

/// Weights that one step reads: every matrix and norm, and of the embedding the whole when it is the output layer too, else one row.
fn weights_read(spec: &DecoderSpec) -> u64 {
    let layers = spec
        .layers
        .iter()
        .map(|layer| layer_weights(layer, spec.hidden));
    let head = match spec.head {
        Head::None => 0,
        _ => spec.vocab * spec.hidden,
    };
    // A row of the embedding, and the last norm.
    layers.sum::<u64>() + (2 * spec.hidden + head) as u64
}

fn layer_weights(layer: &LayerSpec, hidden: usize) -> u64 {
    let mixer = match &layer.mixer {
        MixerSpec::Attention(attention) => {
            let (queries, keys) = (attention.q_dim(), attention.kv_dim());
            let norms = match attention.qk_norm {
                None => 0,
                Some(QkNorm::Head(_) | QkNorm::HeadRotated(_)) => 2 * attention.head_dim,
                Some(QkNorm::Whole(_) | QkNorm::EachHead(_)) => queries + keys,
            };
            hidden * (2 * (queries + keys) + attention.gate_dim()) + norms
        }
        MixerSpec::Latent(latent) => {
            let queries = latent.heads * (latent.plain_dim + latent.rotated_dim);
            let from_stream =
                latent.q_rank.unwrap_or(queries) + latent.kv_rank + latent.rotated_dim;
            let from_rank = latent.q_rank.map_or(0, |rank| rank * (queries + 1));
            let keys_values =
                latent.kv_rank * (latent.heads * (latent.plain_dim + latent.v_dim) + 1);
            hidden * (from_stream + latent.heads * latent.v_dim) + from_rank + keys_values
        }
        // No shape that is known has others.
        _ => 0,
    };
    let norms = match layer.wiring {
        Wiring::Parallel => 1,
        Wiring::Pre | Wiring::PostInside | Wiring::PostOutside | Wiring::ParallelTwoNorms => 2,
        Wiring::Sandwich => 4,
    };
    let feed_forward = match &layer.feed_forward {
        FeedForwardSpec::Gated(mlp) => 3 * hidden * mlp.inner,
        FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp) => 2 * hidden * mlp.inner,
        FeedForwardSpec::Experts(experts) => experts_weights(experts, hidden),
    };
    (mixer + norms * hidden + feed_forward) as u64
}

fn experts_weights(experts: &ExpertsSpec, hidden: usize) -> usize {
    let shared = experts.shared.as_ref().map_or(0, |shared| shared.inner);
    hidden * (experts.count + 3 * (experts.routing.used * experts.inner + shared))
}

/// Keys and values that a step reads in a layer for one sequence, on average.
fn cache_read(layer: &LayerSpec, steps: Steps) -> f64 {
    let (window, kept) = match &layer.mixer {
        MixerSpec::Attention(attention) => (attention.window, 2 * attention.kv_dim()),
        MixerSpec::Latent(latent) => (None, latent.kv_rank + latent.rotated_dim),
        _ => (None, 0),
    };
    let seen = |step: usize| {
        let position = steps.context + step;
        window.map_or(position, |window| position.min(window))
    };
    let sum: f64 = (1..=steps.count).map(|step| seen(step) as f64).sum();
    kept as f64 * sum / steps.count.max(1) as f64
}
