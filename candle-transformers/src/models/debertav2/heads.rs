//! Classifiers of tokens and of texts.

use candle_core::{bail, Device, Module, Result, Tensor};
use candle_nn::{linear, linear_b, Linear, VarBuilder};

use super::encoder::HiddenActLayer;
use super::{Config, DebertaV2Model, Id2Label};

/// What a classifier of tokens says of one of them.
#[derive(Debug)]
pub struct NERItem {
    /// The label.
    pub entity: String,
    /// The token.
    pub word: String,
    /// The label's probability.
    pub score: f32,
    /// Where the token begins in the text.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// Its number in the text.
    pub index: usize,
}

/// What a classifier of texts says of one.
#[derive(Debug)]
pub struct TextClassificationItem {
    /// The label.
    pub label: String,
    /// Its probability.
    pub score: f32,
}

/// The model with a classifier of tokens.
#[derive(Debug, Clone)]
pub struct DebertaV2NERModel {
    /// Where the weights are.
    pub device: Device,
    deberta: DebertaV2Model,
    classifier: Linear,
}

impl DebertaV2NERModel {
    /// Loads the model, and at the root of the checkpoint `classifier`, with its bias if there is one. The labels are those of the
    /// configuration or those given.
    ///
    /// # Errors
    /// Those of [`DebertaV2Model::load`]; and if nobody says what the labels are, or both do and differ.
    pub fn load(vb: VarBuilder, config: &Config, id2label: Option<Id2Label>) -> Result<Self> {
        let labels = config.labels(id2label)?;
        let head = vb.root().pp("classifier");
        let bias = head.contains_tensor("bias");
        Ok(Self {
            device: vb.device().clone(),
            classifier: linear_b(config.hidden_size, labels, bias, head)?,
            deberta: DebertaV2Model::load(vb, config)?,
        })
    }

    /// The logits, (batch, seq, labels). Arguments as for [`DebertaV2Model::forward`].
    ///
    /// # Errors
    /// Those of [`DebertaV2Model::forward`].
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: Option<Tensor>,
        attention_mask: Option<Tensor>,
    ) -> Result<Tensor> {
        let xs = self
            .deberta
            .forward(input_ids, token_type_ids, attention_mask)?;
        self.classifier.forward(&xs)
    }
}

/// The model with a classifier of texts.
#[derive(Debug, Clone)]
pub struct DebertaV2SeqClassificationModel {
    /// Where the weights are.
    pub device: Device,
    deberta: DebertaV2Model,
    pooler: DebertaV2ContextPooler,
    classifier: Linear,
}

impl DebertaV2SeqClassificationModel {
    /// Loads the model, and at the root of the checkpoint `pooler.dense` and `classifier`. The labels are those of the configuration or
    /// those given.
    ///
    /// # Errors
    /// Those of [`DebertaV2Model::load`] and [`DebertaV2ContextPooler::load`]; and if nobody says what the labels are, or both do and
    /// differ.
    pub fn load(vb: VarBuilder, config: &Config, id2label: Option<Id2Label>) -> Result<Self> {
        let labels = config.labels(id2label)?;
        let pooler = DebertaV2ContextPooler::load(vb.clone(), config)?;
        Ok(Self {
            device: vb.device().clone(),
            classifier: linear(pooler.output_dim()?, labels, vb.root().pp("classifier"))?,
            pooler,
            deberta: DebertaV2Model::load(vb, config)?,
        })
    }

    /// The logits, (batch, labels). Arguments as for [`DebertaV2Model::forward`].
    ///
    /// # Errors
    /// Those of [`DebertaV2Model::forward`].
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: Option<Tensor>,
        attention_mask: Option<Tensor>,
    ) -> Result<Tensor> {
        let xs = self
            .deberta
            .forward(input_ids, token_type_ids, attention_mask)?;
        self.classifier.forward(&self.pooler.forward(&xs)?)
    }
}

/// A text's vector: a linear layer and an activation over its first token.
#[derive(Debug, Clone)]
pub struct DebertaV2ContextPooler {
    dense: Linear,
    act: HiddenActLayer,
    size: usize,
}

impl DebertaV2ContextPooler {
    /// Loads `pooler.dense` at the root of the checkpoint.
    ///
    /// # Errors
    /// If the configuration lacks `pooler_hidden_size` or `pooler_hidden_act`, or a weight is missing or has another shape than it says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (Some(size), Some(act)) = (config.pooler_hidden_size, config.pooler_hidden_act) else {
            bail!(
                "debertav2: a pooler needs pooler_hidden_size and pooler_hidden_act in config.json; they are {:?} and {:?}",
                config.pooler_hidden_size,
                config.pooler_hidden_act
            )
        };
        Ok(Self {
            dense: linear(size, size, vb.root().pp("pooler").pp("dense"))?,
            act: HiddenActLayer(act.into()),
            size,
        })
    }

    /// From the tokens' vectors, (batch, seq, hidden_size), to (batch, hidden_size).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, hidden_states: &Tensor) -> Result<Tensor> {
        let first = hidden_states.narrow(1, 0, 1)?.squeeze(1)?;
        self.act.forward(&self.dense.forward(&first)?)
    }

    /// The size of the vector.
    ///
    /// # Errors
    /// None; the form is Candle's.
    pub fn output_dim(&self) -> Result<usize> {
        Ok(self.size)
    }
}
