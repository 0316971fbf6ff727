//! Llama: [arXiv 2302.13971](https://arxiv.org/abs/2302.13971), with the grouped heads of
//! [arXiv 2305.13245](https://arxiv.org/abs/2305.13245), the rotary positions of
//! [arXiv 2104.09864](https://arxiv.org/abs/2104.09864) and Llama 3's scaling of them. Weight names are those of
//! Hugging Face's checkpoints.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{embedding, linear_no_bias, rms_norm, RmsNorm, VarBuilder};

use crate::blocks::{
    AttentionConfig, DecoderConfig, DecoderLayer, GrowingKvCache, Projection, Residual,
    RotaryPairs, RotaryTables, TokenEmbedding,
};

mod config;
mod config_json;

pub use config::{Config, Llama3RopeConfig, Llama3RopeType, LlamaEosToks, DEFAULT_MAX_SEQ_LEN};
pub use config_json::LlamaConfig;

/// What a sequence leaves behind for its next step: keys and values per layer, next to the rotary tables.
///
/// A clone goes its own way: appending to one does not show in the other.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Whether keys and values are kept. Without, every call of [`Llama::forward`] has to be given the whole sequence.
    pub use_kv_cache: bool,
    kvs: Vec<GrowingKvCache>,
    rotary: RotaryTables,
}

impl Cache {
    /// An empty cache. `dtype` and `device` are those of the model's weights. Memory for keys and values is taken as
    /// the sequence grows.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or the rotary tables cannot be put on `device`.
    pub fn new(use_kv_cache: bool, dtype: DType, config: &Config, device: &Device) -> Result<Self> {
        config.validate()?;
        let positions = config.max_position_embeddings;
        let frequencies = config.inverse_frequencies();
        let rotary = RotaryTables::new(&frequencies, positions, dtype, device)?;
        Ok(Self {
            use_kv_cache,
            ..Self::from_parts(config.num_hidden_layers, positions, rotary)
        })
    }

    /// An empty cache for a model of `layers` layers and `positions` positions.
    pub(crate) fn from_parts(layers: usize, positions: usize, rotary: RotaryTables) -> Self {
        Self {
            use_kv_cache: true,
            kvs: (0..layers)
                .map(|_| GrowingKvCache::new(positions))
                .collect(),
            rotary,
        }
    }

    /// Forgets the sequence, so that another can start at position 0; cheaper than a new cache, since the rotary
    /// tables stay.
    pub fn reset(&mut self) {
        self.kvs.iter_mut().for_each(GrowingKvCache::reset);
    }
}

/// The Llama language model, with dense weights ([`Llama::load`]) or quantised ones ([`super::quantized_llama::load`]).
#[derive(Debug, Clone)]
pub struct Llama {
    pub(crate) embed_tokens: TokenEmbedding,
    pub(crate) layers: Vec<DecoderLayer>,
    pub(crate) norm: RmsNorm,
    pub(crate) lm_head: Projection,
    pub(crate) max_position_embeddings: usize,
}

impl Llama {
    /// Loads the weights: `model.embed_tokens`, `model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj,
    /// post_attention_layernorm, mlp.{gate,up,down}_proj}`, `model.norm`, and `lm_head` unless it is tied to the
    /// embedding.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        cfg.validate()?;
        let layer_config = DecoderConfig {
            attention: AttentionConfig {
                hidden_size: cfg.hidden_size,
                heads: cfg.num_attention_heads,
                kv_heads: cfg.num_key_value_heads,
                head_dim: cfg.head_dim(),
                rotary_pairs: RotaryPairs::Halves,
            },
            intermediate_size: cfg.intermediate_size,
            rms_norm_eps: cfg.rms_norm_eps,
        };
        let model = vb.pp("model");
        let embed_tokens = TokenEmbedding::from(embedding(
            cfg.vocab_size,
            cfg.hidden_size,
            model.pp("embed_tokens"),
        )?);
        let layers = (0..cfg.num_hidden_layers)
            .map(|i| DecoderLayer::load(layer_config, model.pp("layers").pp(i)))
            .collect::<Result<Vec<_>>>()?;
        let lm_head = if cfg.tie_word_embeddings {
            embed_tokens.tied()
        } else {
            linear_no_bias(cfg.hidden_size, cfg.vocab_size, vb.pp("lm_head"))?.into()
        };
        Ok(Self {
            embed_tokens,
            layers,
            norm: rms_norm(cfg.hidden_size, cfg.rms_norm_eps, model.pp("norm"))?,
            lm_head,
            max_position_embeddings: cfg.max_position_embeddings,
        })
    }

    /// The embeddings of token ids `x`: `(b, t)` to `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If the ids are not of an integer dtype, or one is outside the vocabulary (where the device can tell).
    pub fn embed(&self, x: &Tensor) -> Result<Tensor> {
        self.embed_tokens.forward(x)
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `x`, `(b, t)` in u32.
    ///
    /// The ids are at the positions `index_pos .. index_pos + t`. With a KV cache they continue what `cache` holds;
    /// without, they have to be the whole sequence, and `index_pos` 0.
    ///
    /// # Errors
    /// If `x` holds no ids, or more than fit below the model's `max_position_embeddings`: before any work is queued.
    /// If `cache` was made for another model, dtype or device.
    pub fn forward(&self, x: &Tensor, index_pos: usize, cache: &mut Cache) -> Result<Tensor> {
        let (_, t) = x.dims2()?;
        self.check_positions(t, index_pos, cache)?;
        self.forward_input_embed(&self.embed(x)?, index_pos, cache)
    }

    /// As [`Llama::forward`], from embeddings `(b, t, hidden_size)` in place of token ids.
    ///
    /// # Errors
    /// As [`Llama::forward`].
    pub fn forward_input_embed(
        &self,
        input_embed: &Tensor,
        index_pos: usize,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let (_, t, _) = input_embed.dims3()?;
        self.check_positions(t, index_pos, cache)?;
        let (cos, sin) = cache.rotary.rows(index_pos, t)?;
        let use_kv_cache = cache.use_kv_cache;
        let mut xs = Residual::new(input_embed.clone());
        for (layer, kv) in self.layers.iter().zip(&mut cache.kvs) {
            xs = layer.forward(xs, &cos, &sin, use_kv_cache.then_some(kv))?;
        }
        // The norm goes row by row: only the last one is needed.
        let (_, logits) = xs.position(t - 1)?.project(&self.norm, &self.lm_head)?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    fn check_positions(&self, t: usize, index_pos: usize, cache: &Cache) -> Result<()> {
        let limit = self.max_position_embeddings;
        if t == 0 {
            bail!("llama: no tokens given, at least one is needed")
        }
        if index_pos.saturating_add(t) > limit {
            bail!(
                "llama: {} tokens ({t} from position {index_pos} on) are more than the model's \
                 max_position_embeddings of {limit}; shorten the prompt or generate less",
                index_pos.saturating_add(t)
            )
        }
        if cache.kvs.len() != self.layers.len() {
            bail!(
                "llama: the cache was made for {} layers, the model has {}",
                cache.kvs.len(),
                self.layers.len()
            )
        }
        Ok(())
    }
}
