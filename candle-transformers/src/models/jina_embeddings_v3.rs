//! Jina embeddings v3, an XLM-RoBERTa with rotary positions: [arXiv 2409.10173](https://arxiv.org/abs/2409.10173). Not in upstream's interface.
//!
//! This is the model without its task adapters, as Transformers loads it from `jinaai/jina-embeddings-v3-hf`.

use candle_core::{bail, Result, Tensor};
use candle_nn::{layer_norm, Activation, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{
    below, Embeddings, EmbeddingsSpec, EncoderNames, EncoderPositions, EncoderSpec, TextEncoder,
};
use crate::blocks::{Rotary, RotaryPairs, RotaryTables};

const FAMILY: &str = "jina_embeddings_v3";

/// Sizes and constants, as `config.json` has them. Nothing is dropped out.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token's vector between the layers.
    pub hidden_size: usize,
    /// Layers of the encoder.
    pub num_hidden_layers: usize,
    /// Heads of a layer's attention; they divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Size of the vector inside a feed-forward block.
    pub intermediate_size: usize,
    /// The activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// Kinds of segments.
    pub type_vocab_size: usize,
    /// Added to the variance in layer norms.
    pub layer_norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
}

impl Config {
    fn layer(&self) -> Result<EncoderSpec> {
        let spec = EncoderSpec::bert(
            FAMILY,
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            self.intermediate_size,
            self.hidden_act,
            self.layer_norm_eps,
        )?;
        if !spec.head_dim.is_multiple_of(2) {
            bail!(
                "{FAMILY}: heads of {} elements; rotation needs an even number",
                spec.head_dim
            )
        }
        Ok(EncoderSpec {
            names: EncoderNames {
                qkv: &["mixer.Wqkv"],
                joined: "mixer.out_proj",
                ..EncoderNames::TIMM
            },
            ..spec
        })
    }
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct Model {
    encoder: TextEncoder,
}

impl Model {
    /// Loads the weights: `embeddings.{word,token_type}_embeddings`, `emb_ln` and
    /// `encoder.layers.N.{mixer.Wqkv,mixer.out_proj,mlp.fc1,mlp.fc2,norm1,norm2}`, as Jina's files and Transformers name them. Where these
    /// names are missing, they are looked for below `roberta`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let vb = below(vb, "roberta", "embeddings.word_embeddings.weight");
        let (hidden, limit) = (config.hidden_size, config.max_position_embeddings);
        let layers = config.layer()?;
        let rotary = Rotary::new(RotaryPairs::Halves, config.rope_theta, layers.head_dim);
        let rotary = RotaryTables::new(&rotary, limit, vb.dtype(), vb.device());
        let spec = EmbeddingsSpec {
            family: FAMILY,
            hidden,
            vocab: config.vocab_size,
            positions: None,
            types: config.type_vocab_size,
            limit,
        };
        let norm = layer_norm(hidden, config.layer_norm_eps, vb.pp("emb_ln"))?;
        Ok(Self {
            encoder: TextEncoder {
                family: FAMILY,
                embeddings: Embeddings::load(spec, vb.pp("embeddings"), norm)?,
                layers: layers.load_dense(config.num_hidden_layers, vb, "encoder.layers")?,
                positions: EncoderPositions::Rotary(rotary),
            },
        })
    }

    /// The vectors of the tokens, (batch, seq, hidden_size), of `ids`, integers of shape (batch, seq). `mask` is 1 where a token may be
    /// attended to and 0 where it is hidden, (batch, seq). The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is outside the table (where the
    /// device can tell).
    pub fn forward(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        self.encoder.forward(ids, None, Some(mask))
    }
}
