//! Jina embeddings v3, an XLM-RoBERTa with rotary positions: [arXiv 2409.10173](https://arxiv.org/abs/2409.10173). Not in upstream's interface.
//!
//! This is the model without its task adapters, as Transformers loads it from `jinaai/jina-embeddings-v3-hf`.

use candle_core::{bail, Result, Tensor};
use candle_nn::rotary_emb::Pairs;
use candle_nn::{layer_norm, linear, Activation, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{
    added_to_scores, below, head_dim, Embeddings, EmbeddingsSpec, EncoderLayer, Heads, NormPlace,
    Seen,
};
use crate::blocks::{FeedForward, MergedLinear, PlainMlp, Rotary, RotaryPairs, RotaryTables};

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
    fn layer(&self, vb: VarBuilder) -> Result<EncoderLayer> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (mixer, mlp) = (vb.pp("mixer"), vb.pp("mlp"));
        let qkv = linear(hidden, 3 * hidden, mixer.pp("Wqkv"))?.into();
        let qkv = MergedLinear::joined(qkv, [hidden; 3]);
        let norm = |name| layer_norm(hidden, self.layer_norm_eps, vb.pp(name));
        Ok(EncoderLayer {
            heads: Heads::new(qkv, self.num_attention_heads, self.head_dim()?),
            joined: linear(hidden, hidden, mixer.pp("out_proj"))?.into(),
            mlp: FeedForward::Plain(PlainMlp::new(
                linear(hidden, inner, mlp.pp("fc1"))?.into(),
                linear(inner, hidden, mlp.pp("fc2"))?.into(),
                self.hidden_act,
            )),
            place: NormPlace::After,
            norms: [Some(norm("norm1")?.into()), Some(norm("norm2")?.into())],
        })
    }

    fn head_dim(&self) -> Result<usize> {
        let hidden = ("hidden_size", self.hidden_size);
        let heads = ("num_attention_heads", self.num_attention_heads);
        let head_dim = head_dim(FAMILY, hidden, heads)?;
        match head_dim.is_multiple_of(2) {
            true => Ok(head_dim),
            false => bail!("{FAMILY}: heads of {head_dim} elements; rotation needs an even number"),
        }
    }
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct Model {
    embeddings: Embeddings,
    layers: Vec<EncoderLayer>,
    rotary: RotaryTables,
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
        let rotary = Rotary::new(RotaryPairs::Halves, config.rope_theta, config.head_dim()?);
        let spec = EmbeddingsSpec {
            family: FAMILY,
            hidden,
            vocab: config.vocab_size,
            positions: None,
            types: config.type_vocab_size,
            limit,
        };
        let norm = layer_norm(hidden, config.layer_norm_eps, vb.pp("emb_ln"))?;
        let layers = vb.pp("encoder").pp("layers");
        let layers = (0..config.num_hidden_layers).map(|i| config.layer(layers.pp(i)));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            embeddings: Embeddings::load(spec, vb.pp("embeddings"), norm)?,
            rotary: RotaryTables::new(&rotary, limit, vb.dtype(), vb.device()),
        })
    }

    /// The vectors of the tokens, (batch, seq, hidden_size), of `ids`, integers of shape (batch, seq). `mask` is 1 where a token may be
    /// attended to and 0 where it is hidden, (batch, seq). The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is outside the table (where the
    /// device can tell).
    pub fn forward(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let mut xs = self.embeddings.forward(ids, None)?;
        let mask = added_to_scores(FAMILY, mask, xs.dtype())?;
        let angles = self.rotary.rows(0, xs.dim(1)?)?;
        let seen = Seen {
            mask: Some(&mask),
            rotation: Some((&angles, Pairs::Halves)),
            ..Seen::default()
        };
        for layer in &self.layers {
            xs = layer.forward(xs, &seen)?;
        }
        Ok(xs)
    }
}
