//! DeBERTa versions 2 and 3, whose attention tells what a token is from how far away it is: [arXiv
//! 2006.03654](https://arxiv.org/abs/2006.03654), [arXiv 2111.09543](https://arxiv.org/abs/2111.09543).
//!
//! Checkpoints have the model below `deberta` and classifiers beside it: `DebertaV2NERModel::load(vb.set_prefix("deberta"), ..)`.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{embedding, layer_norm, linear_no_bias, Embedding, LayerNorm, Linear, VarBuilder};

use crate::blocks::encoder::check_text;

mod attention;
mod config;
mod encoder;
mod heads;

pub use attention::{DebertaV2Attention, DebertaV2DisentangledSelfAttention, DebertaV2SelfOutput};
pub use config::{Config, HiddenAct, Id2Label, Label2Id};
pub use encoder::{
    ConvLayer, DebertaV2Encoder, DebertaV2Intermediate, DebertaV2Layer, DebertaV2Output,
    HiddenActLayer,
};
pub use heads::{
    DebertaV2ContextPooler, DebertaV2NERModel, DebertaV2SeqClassificationModel, NERItem,
    TextClassificationItem,
};

/// The dtype that published checkpoints are meant for. Others work too.
pub const DTYPE: DType = DType::F32;

/// Dropout as it is when a model is used: nothing is dropped.
#[derive(Debug, Clone)]
pub struct StableDropout {
    _drop_prob: f64,
}

impl StableDropout {
    /// The share of elements that training would drop.
    pub fn new(drop_prob: f64) -> Self {
        Self {
            _drop_prob: drop_prob,
        }
    }

    /// `x` itself.
    ///
    /// # Errors
    /// None; the form is Candle's.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// The vectors of tokens, of their segments and of their positions, added and normed.
#[derive(Debug, Clone)]
pub struct DebertaV2Embeddings {
    word: Embedding,
    position: Option<Embedding>,
    types: Option<Embedding>,
    project: Option<Linear>,
    norm: LayerNorm,
    limit: usize,
}

impl DebertaV2Embeddings {
    /// Loads `word_embeddings` and `LayerNorm`, and where the configuration asks for them `position_embeddings`, `token_type_embeddings` and
    /// `embed_proj`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let size = config.embedding_size.unwrap_or(hidden);
        let table = |wanted: bool, name, len| match wanted {
            true => embedding(len, size, vb.pp(name)).map(Some),
            false => Ok(None),
        };
        let (positions, types) = (config.max_position_embeddings, config.type_vocab_size);
        Ok(Self {
            word: embedding(config.vocab_size, size, vb.pp("word_embeddings"))?,
            position: table(
                config.position_biased_input,
                "position_embeddings",
                positions,
            )?,
            types: table(types > 0, "token_type_embeddings", types)?,
            project: match size == hidden {
                true => None,
                false => Some(linear_no_bias(size, hidden, vb.pp("embed_proj"))?),
            },
            norm: layer_norm(hidden, config.layer_norm_eps, vb.pp("LayerNorm"))?,
            limit: positions,
        })
    }

    /// The vectors, (batch, seq, hidden_size), of `input_ids`, (batch, seq), or of the tokens' vectors `inputs_embeds`, (batch, seq, embedding
    /// size); one of them is given.
    ///
    /// Without `token_type_ids` all tokens are of segment 0, without `position_ids` they are counted from 0. Vectors are multiplied with
    /// `mask`, (batch, seq), (batch, 1, 1, seq) or (batch, seq, hidden_size).
    ///
    /// # Errors
    /// If both or neither are given, the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is
    /// outside its table (where the device can tell).
    pub fn forward(
        &self,
        input_ids: Option<&Tensor>,
        token_type_ids: Option<&Tensor>,
        position_ids: Option<&Tensor>,
        mask: Option<&Tensor>,
        inputs_embeds: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mut xs = match (input_ids, inputs_embeds) {
            (Some(ids), None) => {
                check_text("debertav2", ids, self.limit)?;
                self.word.forward(ids)?
            }
            (None, Some(embeds)) => {
                check_text(
                    "debertav2",
                    &embeds.narrow(2, 0, 1)?.squeeze(2)?,
                    self.limit,
                )?;
                embeds.clone()
            }
            (Some(_), Some(_)) => {
                bail!("debertav2: both input_ids and inputs_embeds are given; give one of them")
            }
            (None, None) => {
                bail!("debertav2: neither input_ids nor inputs_embeds are given; give one of them")
            }
        };
        let (b, len, _) = xs.dims3()?;
        if let Some(table) = &self.position {
            let rows = match position_ids {
                Some(ids) => table.forward(ids)?,
                None => table.embeddings().narrow(0, 0, len)?,
            };
            xs = xs.broadcast_add(&rows)?;
        }
        if let Some(table) = &self.types {
            let rows = match token_type_ids {
                Some(ids) if ids.dims() != [b, len] => bail!(
                    "debertav2: token_type_ids are {:?}; for {b} texts of {len} tokens they must be ({b}, {len})",
                    ids.dims()
                ),
                Some(ids) => table.forward(ids)?,
                None => table.embeddings().narrow(0, 0, 1)?,
            };
            xs = xs.broadcast_add(&rows)?;
        }
        if let Some(project) = &self.project {
            xs = project.forward(&xs)?;
        }
        xs = self.norm.forward(&xs)?;
        let Some(mask) = mask else { return Ok(xs) };
        let mask = match mask.rank() {
            4 => mask.squeeze(1)?.squeeze(1)?.unsqueeze(2)?,
            2 => mask.unsqueeze(2)?,
            _ => mask.clone(),
        };
        xs.broadcast_mul(&mask.to_dtype(xs.dtype())?)
    }
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct DebertaV2Model {
    embeddings: DebertaV2Embeddings,
    encoder: DebertaV2Encoder,
    /// Where the weights are.
    pub device: Device,
}

impl DebertaV2Model {
    /// Loads `embeddings` and `encoder`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            embeddings: DebertaV2Embeddings::load(vb.pp("embeddings"), config)?,
            encoder: DebertaV2Encoder::load(vb.pp("encoder"), config)?,
            device: vb.device().clone(),
        })
    }

    /// The vectors of the tokens, (batch, seq, hidden_size).
    ///
    /// `input_ids` and `token_type_ids`, the segment that each token belongs to, are integers of shape (batch, seq); without the latter all
    /// are of segment 0. `attention_mask` is 1 for tokens and 0 for padding, (batch, seq). Without it all are seen. The vectors of
    /// padding mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is outside its table (where the
    /// device can tell).
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: Option<Tensor>,
        attention_mask: Option<Tensor>,
    ) -> Result<Tensor> {
        let mask = match attention_mask {
            Some(mask) if mask.dims() != input_ids.dims() => bail!(
                "debertav2: input_ids are {:?} and attention_mask {:?}; they must have one shape",
                input_ids.dims(),
                mask.dims()
            ),
            Some(mask) => mask,
            None => Tensor::ones(input_ids.shape(), DType::F32, input_ids.device())?,
        };
        let types = token_type_ids.as_ref();
        let xs = self
            .embeddings
            .forward(Some(input_ids), types, None, Some(&mask), None)?;
        self.encoder.forward(&xs, &mask, None, None)
    }
}
