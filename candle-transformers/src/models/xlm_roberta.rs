//! XLM-RoBERTa, a BERT of a hundred languages: [arXiv 1911.02116](https://arxiv.org/abs/1911.02116). RoBERTa's checkpoints load too, and what
//! builds on them, such as bge-m3 and bge-reranker-v2-m3.
//!
//! Positions are counted over the tokens that are not `pad_token_id`, from `pad_token_id + 1` on, so texts have room for
//! `max_position_embeddings - pad_token_id - 1` tokens.

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::{layer_norm, linear, Activation, Linear, VarBuilder};

use crate::blocks::encoder::{
    added_to_scores, output_weight, Embeddings, EmbeddingsSpec, EncoderLayer, EncoderSpec, Heads,
    Seen, Transform,
};

/// Sizes and constants, as `config.json` has them. Nothing is dropped out.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Config {
    /// Size of a token's vector between the layers.
    pub hidden_size: usize,
    /// What layer norms add to the variance.
    pub layer_norm_eps: f64,
    /// Share of elements that training drops.
    pub attention_probs_dropout_prob: f32,
    /// Share of elements that training drops.
    pub hidden_dropout_prob: f32,
    /// Heads of a layer's attention; they divide `hidden_size`.
    pub num_attention_heads: usize,
    /// `absolute`, the one kind that there is.
    pub position_embedding_type: String,
    /// Size of the vector inside a feed-forward block.
    pub intermediate_size: usize,
    /// The activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Layers of the encoder.
    pub num_hidden_layers: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Rows of the table of positions.
    pub max_position_embeddings: usize,
    /// Kinds of segments.
    pub type_vocab_size: usize,
    /// The token that fills up a batch, and the position before the first.
    pub pad_token_id: u32,
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct XLMRobertaModel {
    embeddings: Embeddings,
    layers: Vec<EncoderLayer>,
    padding: u32,
}

impl XLMRobertaModel {
    /// Loads the weights: `embeddings.{word,position,token_type}_embeddings`, `embeddings.LayerNorm` and `encoder.layer.N`, with the names of
    /// [`BertEncoder::load`](super::bert::BertEncoder::load).
    ///
    /// # Errors
    /// If the configuration contradicts itself or asks for positions that are not absolute, or a weight is missing or has another shape
    /// than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let hidden = cfg.hidden_size;
        if cfg.position_embedding_type != "absolute" {
            bail!(
                "xlm_roberta: position_embedding_type {:?} is not supported; expected \"absolute\"",
                cfg.position_embedding_type
            )
        }
        let room = cfg
            .max_position_embeddings
            .saturating_sub(cfg.pad_token_id as usize + 1);
        if room == 0 {
            bail!(
                "xlm_roberta: max_position_embeddings {} has no room for positions after pad_token_id {}",
                cfg.max_position_embeddings,
                cfg.pad_token_id
            )
        }
        let embeddings = EmbeddingsSpec {
            family: "xlm_roberta",
            hidden,
            vocab: cfg.vocab_size,
            positions: Some(cfg.max_position_embeddings),
            types: cfg.type_vocab_size,
            limit: room,
        };
        let layers = EncoderSpec::bert(
            "xlm_roberta",
            ("hidden_size", hidden),
            ("num_attention_heads", cfg.num_attention_heads),
            cfg.intermediate_size,
            cfg.hidden_act,
            cfg.layer_norm_eps,
        )?;
        let table = vb.pp("embeddings");
        let norm = layer_norm(hidden, cfg.layer_norm_eps, table.pp("LayerNorm"))?;
        Ok(Self {
            embeddings: Embeddings::load(embeddings, table, norm)?,
            layers: layers.load_dense(cfg.num_hidden_layers, vb, "encoder.layer")?,
            padding: cfg.pad_token_id,
        })
    }

    /// The vectors of the tokens, (batch, seq, hidden_size).
    ///
    /// `input_ids` and `token_type_ids` are integers of shape (batch, seq). `attention_mask` is 1 where a token may be attended to and 0
    /// where it is hidden, (batch, seq).
    ///
    /// The last three arguments are for decoders of this form, and apply to each layer alike:
    ///
    /// - `past_key_value`, (batch, heads, past, head_dim) each, come before the keys and values of the tokens; the mask then is
    ///   (batch, past + seq).
    /// - With `encoder_hidden_states`, (batch, keys, hidden_size), these are attended to instead; `past_key_value` then are their keys and
    ///   values. `encoder_attention_mask` is added to the scores and broadcasts to (batch, heads, seq, keys).
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than there are positions, or an id is outside its table (where the device
    /// can tell).
    pub fn forward(
        &self,
        input_ids: &Tensor,
        attention_mask: &Tensor,
        token_type_ids: &Tensor,
        past_key_value: Option<(&Tensor, &Tensor)>,
        encoder_hidden_states: Option<&Tensor>,
        encoder_attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let positions = self.positions(input_ids)?;
        let types = Some(token_type_ids);
        let mut xs = self
            .embeddings
            .forward_at(input_ids, types, Some(&positions))?;
        let mask = added_to_scores("xlm_roberta", attention_mask, xs.dtype())?;
        let seen = Seen {
            mask: match encoder_hidden_states {
                Some(_) => encoder_attention_mask,
                None => Some(&mask),
            },
            ..Seen::default()
        };
        for layer in &self.layers {
            xs = layer.forward_with(xs, |heads, xs| {
                match (past_key_value, encoder_hidden_states) {
                    (None, None) => heads.forward(xs, &seen),
                    (past, source) => attend_beyond(heads, xs, past, source, &seen),
                }
            })?;
        }
        Ok(xs)
    }

    /// `pad_token_id` for padding, and from there on the count of other tokens. In integers: floats of 16 bits end at 2048.
    fn positions(&self, ids: &Tensor) -> Result<Tensor> {
        if ids.rank() != 2 || ids.elem_count() == 0 {
            // What is wrong with them is said where they become vectors.
            return Ok(ids.clone());
        }
        let seen = ids.ne(self.padding)?.to_dtype(DType::U32)?;
        let counts = (seen.cumsum(1)? * &seen)?;
        counts.broadcast_add(&Tensor::new(self.padding, ids.device())?)
    }
}

/// Attention to keys that are not those of `xs` alone.
fn attend_beyond(
    heads: &Heads,
    xs: &Tensor,
    past: Option<(&Tensor, &Tensor)>,
    source: Option<&Tensor>,
    seen: &Seen,
) -> Result<Tensor> {
    let [q, k, v] = heads.by_head(xs, seen)?;
    match (past, source) {
        (Some((k, v)), Some(_)) => heads.attend(&q, k, v, seen),
        (None, Some(source)) => {
            let [_, k, v] = heads.by_head(source, seen)?;
            heads.attend(&q, &k, &v, seen)
        }
        (Some((past_k, past_v)), None) => {
            let (k, v) = (
                Tensor::cat(&[past_k, &k], 2)?,
                Tensor::cat(&[past_v, &v], 2)?,
            );
            heads.attend(&q, &k, &v, seen)
        }
        (None, None) => heads.attend(&q, &k, &v, seen),
    }
}

/// The model with the head that says which token stands at each place. The head's last layer shares the table of the tokens' vectors.
#[derive(Debug, Clone)]
pub struct XLMRobertaForMaskedLM {
    roberta: XLMRobertaModel,
    transform: Transform,
    decoder: Linear,
}

impl XLMRobertaForMaskedLM {
    /// Loads the model from `roberta` and its head from `lm_head.{dense,layer_norm}`, and `lm_head.bias` and `lm_head.decoder.weight` if
    /// they are there; without the latter the head shares the embeddings' table.
    ///
    /// # Errors
    /// Those of [`XLMRobertaModel::new`], also for the head.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let roberta = XLMRobertaModel::new(cfg, vb.pp("roberta"))?;
        let (head, hidden) = (vb.pp("lm_head"), cfg.hidden_size);
        let bias = match head.contains_tensor("bias") {
            true => Some(head.get(cfg.vocab_size, "bias")?),
            false => None,
        };
        Ok(Self {
            transform: Transform {
                dense: linear(hidden, hidden, head.pp("dense"))?.into(),
                activation: Activation::Gelu,
                norm: layer_norm(hidden, cfg.layer_norm_eps, head.pp("layer_norm"))?.into(),
            },
            decoder: Linear::new(
                output_weight(roberta.embeddings.table(), head.pp("decoder"))?,
                bias,
            ),
            roberta,
        })
    }

    /// The logits, (batch, seq, vocab_size). Arguments as for [`XLMRobertaModel::forward`].
    ///
    /// # Errors
    /// Those of [`XLMRobertaModel::forward`].
    pub fn forward(
        &self,
        input_ids: &Tensor,
        attention_mask: &Tensor,
        token_type_ids: &Tensor,
        past_key_value: Option<(&Tensor, &Tensor)>,
        encoder_hidden_states: Option<&Tensor>,
        encoder_attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let hidden = self.roberta.forward(
            input_ids,
            attention_mask,
            token_type_ids,
            past_key_value,
            encoder_hidden_states,
            encoder_attention_mask,
        )?;
        self.decoder.forward(&self.transform.forward(&hidden)?)
    }
}

/// The model with a head that gives each text a score for each label: rerankers have one label.
#[derive(Debug, Clone)]
pub struct XLMRobertaForSequenceClassification {
    roberta: XLMRobertaModel,
    dense: Linear,
    out_proj: Linear,
}

impl XLMRobertaForSequenceClassification {
    /// Loads the model from `roberta` and its head from `classifier.{dense,out_proj}`.
    ///
    /// # Errors
    /// Those of [`XLMRobertaModel::new`], also for the head.
    pub fn new(num_labels: usize, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (head, hidden) = (vb.pp("classifier"), cfg.hidden_size);
        Ok(Self {
            roberta: XLMRobertaModel::new(cfg, vb.pp("roberta"))?,
            dense: linear(hidden, hidden, head.pp("dense"))?,
            out_proj: linear(hidden, num_labels, head.pp("out_proj"))?,
        })
    }

    /// The logits, (batch, num_labels), which the first token of a text decides. Arguments as for [`XLMRobertaModel::forward`].
    ///
    /// # Errors
    /// Those of [`XLMRobertaModel::forward`].
    pub fn forward(
        &self,
        input_ids: &Tensor,
        attention_mask: &Tensor,
        token_type_ids: &Tensor,
    ) -> Result<Tensor> {
        let hidden =
            self.roberta
                .forward(input_ids, attention_mask, token_type_ids, None, None, None)?;
        let first = hidden.narrow(1, 0, 1)?.squeeze(1)?;
        let inner = self.dense.forward(&first)?.tanh()?;
        self.out_proj.forward(&inner)
    }
}
