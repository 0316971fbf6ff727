//! The head that BERT is trained with: which token was hidden here?

use candle_core::{Module, Result, Tensor};
use candle_nn::{layer_norm, linear, Linear, VarBuilder};

use super::{BertModel, Config};
use crate::blocks::encoder::Transform;

/// From a token's vector to logits over the vocabulary.
#[derive(Debug, Clone)]
pub struct BertLMPredictionHead {
    transform: Transform,
    decoder: Linear,
}

impl BertLMPredictionHead {
    /// Loads `transform.{dense,LayerNorm}` and `decoder`. The decoder's bias may be called `bias`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Self::load_tied(vb, config, None)
    }

    /// As [`Self::load`]. A checkpoint that has no weight of the decoder shares the `table` of its tokens' vectors.
    fn load_tied(vb: VarBuilder, config: &Config, table: Option<&Tensor>) -> Result<Self> {
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        // Weights that training is about to make are nowhere yet: those are no checkpoint's.
        let from_checkpoint = vb.contains_tensor("transform.dense.weight");
        let transform = vb.pp("transform");
        let dense = linear(hidden, hidden, transform.pp("dense"))?;
        let norm = layer_norm(hidden, config.layer_norm_eps, transform.pp("LayerNorm"))?;
        let decoder = vb.pp("decoder");
        let lacks = |name| from_checkpoint && !decoder.contains_tensor(name);
        let decoder = if !lacks("weight") && !lacks("bias") {
            linear(hidden, vocab, decoder)?
        } else {
            let weight = match table {
                Some(table) if lacks("weight") => table.clone(),
                _ => decoder.get((vocab, hidden), "weight")?,
            };
            let bias = if lacks("bias") && vb.contains_tensor("bias") {
                vb.get(vocab, "bias")?
            } else {
                decoder.get(vocab, "bias")?
            };
            Linear::new(weight, Some(bias))
        };
        Ok(Self {
            transform: Transform {
                dense: dense.into(),
                activation: config.hidden_act.into(),
                norm: norm.into(),
            },
            decoder,
        })
    }
}

/// From (batch, seq, hidden_size) to (batch, seq, vocab_size).
impl Module for BertLMPredictionHead {
    fn forward(&self, hidden_states: &Tensor) -> Result<Tensor> {
        self.decoder
            .forward(&self.transform.forward(hidden_states)?)
    }
}

/// A [`BertLMPredictionHead`] where checkpoints have it.
#[derive(Debug, Clone)]
pub struct BertOnlyMLMHead {
    predictions: BertLMPredictionHead,
}

impl BertOnlyMLMHead {
    /// Loads the head from `predictions`.
    ///
    /// # Errors
    /// Those of [`BertLMPredictionHead::load`].
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let predictions = BertLMPredictionHead::load(vb.pp("predictions"), config)?;
        Ok(Self { predictions })
    }
}

/// From (batch, seq, hidden_size) to (batch, seq, vocab_size).
impl Module for BertOnlyMLMHead {
    fn forward(&self, sequence_output: &Tensor) -> Result<Tensor> {
        self.predictions.forward(sequence_output)
    }
}

/// The model with the head that says which token stands at each place.
#[derive(Debug, Clone)]
pub struct BertForMaskedLM {
    bert: BertModel,
    cls: BertOnlyMLMHead,
}

impl BertForMaskedLM {
    /// Loads the model from `bert` and its head from `cls.predictions`. A checkpoint without `cls.predictions.decoder.weight` shares
    /// the embeddings' table.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let bert = BertModel::load(vb.pp("bert"), config)?;
        let table = Some(bert.word_embeddings());
        let head = vb.pp("cls").pp("predictions");
        let predictions = BertLMPredictionHead::load_tied(head, config, table)?;
        Ok(Self {
            cls: BertOnlyMLMHead { predictions },
            bert,
        })
    }

    /// The logits, (batch, seq, vocab_size). Arguments as for [`BertModel::forward`].
    ///
    /// # Errors
    /// Those of [`BertModel::forward`].
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let hidden = self
            .bert
            .forward(input_ids, token_type_ids, attention_mask)?;
        self.cls.forward(&hidden)
    }
}
