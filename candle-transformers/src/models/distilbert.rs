//! DistilBERT, BERT distilled to half of its layers: [arXiv 1910.01108](https://arxiv.org/abs/1910.01108). Without segments and pooler.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::distilbert::{Config, DistilBertModel, DTYPE};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config: Config = serde_json::from_str(
//!     r#"{"vocab_size": 40, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, "activation": "gelu",
//!         "max_position_embeddings": 12, "initializer_range": 0.02, "pad_token_id": 0}"#,
//! )?;
//! let model = DistilBertModel::load(VarBuilder::zeros(DTYPE, &Device::Cpu), &config)?;
//! let ids = Tensor::new(&[[2u32, 7, 9, 3], [2, 8, 3, 0]], &Device::Cpu)?;
//! // 1 hides: the last token of the second text is padding.
//! let hidden = Tensor::new(&[[0u32, 0, 0, 0], [0, 0, 0, 1]], &Device::Cpu)?;
//! let mask = hidden.reshape((2, 1, 1, 4))?;
//! assert_eq!(model.forward(&ids, &mask)?.dims(), &[2, 4, config.dim]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{layer_norm, linear, Activation, Linear, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{
    below, dtype_of_scores, output_weight, Embeddings, EmbeddingsSpec, EncoderNames,
    EncoderPositions, EncoderSpec, MlpNames, TextEncoder, Transform,
};

/// The dtype that published checkpoints are meant for. Others work too.
pub const DTYPE: DType = DType::F32;

/// What all norms add to the variance.
const NORM_EPS: f64 = 1e-12;

/// What stands between the two linear layers of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HiddenAct {
    /// `x * Φ(x)`, with the exact distribution function Φ of the normal distribution.
    Gelu,
    /// `max(x, 0)`.
    Relu,
}

impl From<HiddenAct> for Activation {
    fn from(act: HiddenAct) -> Self {
        match act {
            HiddenAct::Gelu => Self::Gelu,
            HiddenAct::Relu => Self::Relu,
        }
    }
}

/// How the model knows where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionEmbeddingType {
    /// A learned vector for each position is added to the token's.
    #[default]
    Absolute,
}

/// Sizes and constants, as `config.json` has them. The default is `distilbert-base-uncased`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token's vector between the layers.
    pub dim: usize,
    n_layers: usize,
    n_heads: usize,
    hidden_dim: usize,
    activation: HiddenAct,
    max_position_embeddings: usize,
    initializer_range: f64,
    /// The token that fills up a batch. It has to be hidden by the mask.
    pub pad_token_id: usize,
    #[serde(default)]
    position_embedding_type: PositionEmbeddingType,
    #[serde(default)]
    use_cache: bool,
    model_type: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            vocab_size: 30522,
            dim: 768,
            n_layers: 12,
            n_heads: 12,
            hidden_dim: 3072,
            activation: HiddenAct::Gelu,
            max_position_embeddings: 512,
            initializer_range: 0.02,
            pad_token_id: 0,
            position_embedding_type: PositionEmbeddingType::Absolute,
            use_cache: true,
            model_type: Some("distilbert".to_string()),
        }
    }
}

const NAMES: EncoderNames = EncoderNames {
    qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    joined: "attention.out_lin",
    mlp: MlpNames {
        gate: "",
        up: "ffn.lin1",
        down: "ffn.lin2",
    },
    norms: ["sa_layer_norm", "output_layer_norm"],
};

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct DistilBertModel {
    encoder: TextEncoder,
    /// Where the weights are.
    pub device: Device,
}

impl DistilBertModel {
    /// Loads the weights: `embeddings.{word,position}_embeddings`, `embeddings.LayerNorm` and `transformer.layer.N`:
    /// `attention.{q,k,v,out}_lin`, `sa_layer_norm`, `ffn.lin{1,2}`, `output_layer_norm`. Where there are none of these names, they are
    /// looked for below `config.model_type`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let vb = match &config.model_type {
            Some(prefix) => below(vb, prefix, "embeddings.word_embeddings.weight"),
            None => vb,
        };
        let embeddings = EmbeddingsSpec {
            family: "distilbert",
            hidden: config.dim,
            vocab: config.vocab_size,
            positions: Some(config.max_position_embeddings),
            types: 0,
            limit: config.max_position_embeddings,
        };
        let table = vb.pp("embeddings");
        let norm = layer_norm(config.dim, NORM_EPS, table.pp("LayerNorm"))?;
        let layers = EncoderSpec {
            names: NAMES,
            ..EncoderSpec::bert(
                "distilbert",
                ("dim", config.dim),
                ("n_heads", config.n_heads),
                config.hidden_dim,
                config.activation.into(),
                NORM_EPS,
            )?
        };
        Ok(Self {
            device: vb.device().clone(),
            encoder: TextEncoder {
                family: "distilbert",
                embeddings: Embeddings::load(embeddings, table, norm)?,
                layers: layers.load_dense(config.n_layers, vb, "transformer.layer")?,
                positions: EncoderPositions::InVectors,
            },
        })
    }

    /// The vectors of the tokens, (batch, seq, dim), of `input_ids`, integers of shape (batch, seq).
    ///
    /// `attention_mask` has integers that broadcast to (batch, heads, seq, seq), a row for each token that attends: (batch, 1, 1, seq), or
    /// (seq, seq) for all texts. Here **0 is what is seen, and anything else is hidden**, the other way round than in the siblings of this
    /// model. The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is outside the table (where the
    /// device can tell).
    pub fn forward(&self, input_ids: &Tensor, attention_mask: &Tensor) -> Result<Tensor> {
        let xs = self.encoder.embeddings.forward(input_ids, None)?;
        let mask = hidden_by(attention_mask, xs.dtype())?;
        self.encoder.run(xs, Some(&mask))
    }
}

/// What a mask with 0 for what is seen adds to the scores.
fn hidden_by(mask: &Tensor, model: DType) -> Result<Tensor> {
    let dims = match *mask.dims() {
        [q, k] => [1, 1, q, k],
        [b, q, k] => [1, b, q, k],
        [b, h, q, k] => [b, h, q, k],
        _ => bail!(
            "distilbert: attention_mask is {:?}; it must be (seq, seq), or (batch, 1, 1, seq) or what else broadcasts to (batch, \
             heads, seq, seq)",
            mask.dims()
        ),
    };
    let hidden = mask.ne(&mask.zeros_like()?)?;
    // See `added_to_scores` of the encoders' blocks for the least f32.
    hidden
        .to_dtype(dtype_of_scores(model))?
        .affine(f64::from(f32::MIN), 0.)?
        .reshape(&dims)
}

/// From a token's vector to logits over the vocabulary. The last layer shares the table of the tokens' vectors.
#[derive(Debug, Clone)]
pub struct DistilBertLMPredictionHead {
    transform: Transform,
    decoder: Linear,
}

impl DistilBertLMPredictionHead {
    /// Loads `vocab_transform`, `vocab_layer_norm`, `vocab_projector.bias` and, where the file lacks `vocab_projector.weight`,
    /// the table `distilbert.embeddings.word_embeddings`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (dim, vocab) = (config.dim, config.vocab_size);
        let table = vb.pp("distilbert").pp("embeddings").pp("word_embeddings");
        let table = candle_nn::embedding(vocab, dim, table)?;
        let bias = vb.pp("vocab_projector").get(vocab, "bias")?;
        Ok(Self {
            transform: Transform {
                dense: linear(dim, dim, vb.pp("vocab_transform"))?.into(),
                activation: config.activation.into(),
                norm: layer_norm(dim, NORM_EPS, vb.pp("vocab_layer_norm"))?.into(),
            },
            decoder: Linear::new(
                output_weight(table.embeddings(), vb.pp("vocab_projector"))?,
                Some(bias),
            ),
        })
    }
}

/// From (batch, seq, dim) to (batch, seq, vocab_size).
impl Module for DistilBertLMPredictionHead {
    fn forward(&self, hidden_states: &Tensor) -> Result<Tensor> {
        self.decoder
            .forward(&self.transform.forward(hidden_states)?)
    }
}

/// A [`DistilBertLMPredictionHead`] where checkpoints have it.
#[derive(Debug, Clone)]
pub struct DistilBertOnlyMLMHead {
    predictions: DistilBertLMPredictionHead,
}

impl DistilBertOnlyMLMHead {
    /// Loads the head.
    ///
    /// # Errors
    /// Those of [`DistilBertLMPredictionHead::load`].
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let predictions = DistilBertLMPredictionHead::load(vb, config)?;
        Ok(Self { predictions })
    }
}

/// From (batch, seq, dim) to (batch, seq, vocab_size).
impl Module for DistilBertOnlyMLMHead {
    fn forward(&self, sequence_output: &Tensor) -> Result<Tensor> {
        self.predictions.forward(sequence_output)
    }
}

/// The model with the head that says which token stands at each place.
#[derive(Debug, Clone)]
pub struct DistilBertForMaskedLM {
    /// The model below the head.
    pub bert: DistilBertModel,
    cls: DistilBertOnlyMLMHead,
}

impl DistilBertForMaskedLM {
    /// Loads the model from `distilbert`, and its head.
    ///
    /// # Errors
    /// Those of [`DistilBertModel::load`] and [`DistilBertLMPredictionHead::load`].
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            bert: DistilBertModel::load(vb.pp("distilbert"), config)?,
            cls: DistilBertOnlyMLMHead::load(vb, config)?,
        })
    }

    /// The logits, (batch, seq, vocab_size). Arguments as for [`DistilBertModel::forward`].
    ///
    /// # Errors
    /// Those of [`DistilBertModel::forward`].
    pub fn forward(&self, input_ids: &Tensor, attention_mask: &Tensor) -> Result<Tensor> {
        let hidden = self.bert.forward(input_ids, attention_mask)?;
        self.cls.forward(&hidden)
    }
}
