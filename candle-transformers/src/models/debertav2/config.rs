//! The configuration, as `config.json` has it.

use std::collections::HashMap;

use candle_core::{bail, Result};
use serde::{Deserialize, Deserializer};

use crate::blocks::encoder::head_dim;

pub use crate::models::bert::HiddenAct;

/// Names of labels by number.
pub type Id2Label = HashMap<u32, String>;
/// Numbers of labels by name.
pub type Label2Id = HashMap<String, u32>;

/// Sizes and constants. Nothing is dropped out: the probabilities of that have no effect.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
    pub hidden_act: HiddenAct,
    /// Share of elements that training drops.
    pub hidden_dropout_prob: f64,
    /// Share of elements that training drops.
    pub attention_probs_dropout_prob: f64,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// Kinds of segments; 0 for a model without.
    pub type_vocab_size: usize,
    /// Deviation of new weights in training.
    pub initializer_range: f64,
    /// What layer norms add to the variance.
    pub layer_norm_eps: f64,
    /// Whether attention depends on the distance of tokens.
    pub relative_attention: bool,
    /// The largest distance that is told from others; below 1 for `max_position_embeddings`.
    pub max_relative_positions: isize,
    /// The token that fills up a batch. It has to be hidden by the mask.
    pub pad_token_id: Option<usize>,
    /// Whether a vector for each position is added to the token's.
    pub position_biased_input: bool,
    /// `c2p`: a token meets distances; `p2c`: a distance meets tokens. Files have a list, or text with `|` between.
    #[serde(deserialize_with = "list_or_text")]
    pub pos_att_type: Vec<String>,
    /// Distances share this many vectors to each side, long ones on a logarithmic scale; without it each has one.
    pub position_buckets: Option<isize>,
    /// Whether distances go through the projections that tokens do.
    pub share_att_key: Option<bool>,
    /// Size of a head; by default what `hidden_size` leaves for each.
    pub attention_head_size: Option<usize>,
    /// Size of the vectors in the table of tokens; by default `hidden_size`.
    pub embedding_size: Option<usize>,
    /// `layer_norm` if the vectors of distances are normed.
    pub norm_rel_ebd: Option<String>,
    /// Width of the convolution beside the first layer, an odd number; 0 or nothing for none.
    pub conv_kernel_size: Option<usize>,
    /// Groups of channels of the convolution.
    pub conv_groups: Option<usize>,
    /// What follows the convolution: `tanh`, which is the default, `gelu` or `relu`.
    pub conv_act: Option<String>,
    /// Names of the labels of a model with a classifier.
    pub id2label: Option<Id2Label>,
    /// Their numbers.
    pub label2id: Option<Label2Id>,
    /// Share of elements that training drops.
    pub pooler_dropout: Option<f64>,
    /// The activation of [`DebertaV2ContextPooler`](super::DebertaV2ContextPooler).
    pub pooler_hidden_act: Option<HiddenAct>,
    /// The size of its vectors, which is `hidden_size`.
    pub pooler_hidden_size: Option<usize>,
    /// Share of elements that training drops.
    pub cls_dropout: Option<f64>,
}

/// `["c2p", "p2c"]` or `"c2p|p2c"`.
fn list_or_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Kinds {
        Text(String),
        List(Vec<String>),
    }
    Ok(match Kinds::deserialize(deserializer)? {
        Kinds::Text(text) => text.split('|').map(str::to_string).collect(),
        Kinds::List(list) => list,
    })
}

impl Config {
    /// The size of a head.
    pub(super) fn head_size(&self) -> Result<usize> {
        let heads = self.num_attention_heads;
        let size = head_dim(
            "debertav2",
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", heads),
        )?;
        match self.attention_head_size {
            Some(0) => {
                bail!("debertav2: attention_head_size is 0; leave it out or check config.json")
            }
            given => Ok(given.unwrap_or(size)),
        }
    }

    pub(super) fn attends(&self, kind: &str) -> bool {
        self.pos_att_type.iter().any(|k| k == kind)
    }

    /// How distances are told apart, if they are.
    pub(super) fn distances(&self) -> Option<Distances> {
        let max = match usize::try_from(self.max_relative_positions) {
            Ok(max) if max > 0 => max,
            _ => self.max_position_embeddings,
        };
        let buckets = self.position_buckets.and_then(|b| usize::try_from(b).ok());
        self.relative_attention.then_some(Distances {
            buckets: buckets.filter(|buckets| *buckets > 0),
            max,
        })
    }

    /// The number of labels, which the configuration or the caller has to know.
    pub(super) fn labels(&self, given: Option<Id2Label>) -> Result<usize> {
        let labels = match (&self.id2label, given) {
            (Some(config), Some(given)) if *config != given => bail!(
                "debertav2: id2label is given as {given:?}, but the configuration has {config:?}"
            ),
            (Some(labels), _) => labels.len(),
            (None, Some(labels)) => labels.len(),
            (None, None) => bail!(
                "debertav2: a classifier needs id2label, of the configuration or as an argument"
            ),
        };
        if labels == 0 {
            bail!("debertav2: id2label is empty; a classifier needs at least one label")
        }
        Ok(labels)
    }
}

/// How the distances between tokens are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Distances {
    buckets: Option<usize>,
    max: usize,
}

impl Distances {
    /// Vectors to each side.
    pub(super) fn span(&self) -> usize {
        self.buckets.unwrap_or(self.max)
    }

    /// The number of the distance from a key to a query: itself while it is short, then a step of a logarithmic scale.
    fn number(&self, distance: i64) -> i64 {
        let Some(buckets) = self.buckets else {
            return distance;
        };
        let mid = (buckets / 2) as i64;
        if distance.abs() <= mid {
            return distance;
        }
        // In f32, as the checkpoints were trained.
        let (length, mid, max) = (
            distance.abs() as f32,
            mid as f32,
            self.max.saturating_sub(1) as f32,
        );
        let step = ((length / mid).ln() / (max / mid).ln() * (mid - 1.)).ceil() + mid;
        step as i64 * distance.signum()
    }

    /// The numbers of all distances, row by row: (queries, keys).
    pub(super) fn numbers(&self, queries: usize, keys: usize) -> Vec<f32> {
        let row = |q: usize| (0..keys).map(move |k| self.number(q as i64 - k as i64) as f32);
        (0..queries).flat_map(row).collect()
    }
}
