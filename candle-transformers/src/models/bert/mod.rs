//! BERT, an encoder of text: [arXiv 1810.04805](https://arxiv.org/abs/1810.04805). Weight names are those of Hugging Face's
//! checkpoints; the models of `sentence-transformers` are such, their sentence vector being the mean of a sentence's tokens.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::bert::{BertModel, Config, DTYPE};
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { vocab_size: 40, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2,
//! #     intermediate_size: 8, ..Config::default() };
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = BertModel::load(VarBuilder::zeros(DTYPE, &device), &config)?;
//! // Two sentences, the second filled up with padding that the mask hides.
//! let ids = Tensor::new(&[[2u32, 7, 9, 3], [2, 8, 3, 0]], &device)?;
//! let mask = Tensor::new(&[[1u32, 1, 1, 1], [1, 1, 1, 0]], &device)?;
//! let hidden = model.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
//! assert_eq!(hidden.dims(), &[2, 4, config.hidden_size]);
//! # Ok(())
//! # }
//! ```

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{layer_norm, VarBuilder};

use crate::blocks::encoder::{added_to_scores, below, Embeddings, EmbeddingsSpec};

mod config;
mod encoder;
mod masked_lm;

pub use config::{Config, HiddenAct, PositionEmbeddingType};
pub use encoder::{BertEncoder, BertLayer};
pub use masked_lm::{BertForMaskedLM, BertLMPredictionHead, BertOnlyMLMHead};

/// The dtype that published checkpoints are meant for. Others work too.
pub const DTYPE: DType = DType::F32;

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct BertModel {
    embeddings: Embeddings,
    encoder: BertEncoder,
    /// Where the weights are.
    pub device: Device,
}

impl BertModel {
    /// Loads the weights: `embeddings.{word,position,token_type}_embeddings`, `embeddings.LayerNorm` and those of [`BertEncoder`].
    /// Where there are none of these names, they are looked for below `config.model_type`, or `bert` if that is not set: so
    /// checkpoints of models with a head are called.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let prefix = config.model_type.as_deref().unwrap_or("bert");
        let vb = below(vb, prefix, "embeddings.word_embeddings.weight");
        let (hidden, table) = (config.hidden_size, vb.pp("embeddings"));
        let embeddings = EmbeddingsSpec {
            family: "bert",
            hidden,
            vocab: config.vocab_size,
            positions: Some(config.max_position_embeddings),
            types: config.type_vocab_size,
            limit: config.max_position_embeddings,
        };
        let norm = layer_norm(hidden, config.layer_norm_eps, table.pp("LayerNorm"))?;
        Ok(Self {
            embeddings: Embeddings::load(embeddings, table, norm)?,
            encoder: BertEncoder::load(vb.pp("encoder"), config)?,
            device: vb.device().clone(),
        })
    }

    /// The vectors of the tokens, (batch, seq, hidden_size).
    ///
    /// `input_ids` and `token_type_ids`, the segment that each token belongs to, are integers of shape (batch, seq).
    /// `attention_mask` is 1 where a token may be attended to and 0 where it is hidden: (batch, seq), or (batch, seq, seq) with a row
    /// for each token that attends. Without it all are seen. The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is outside its table
    /// (where the device can tell).
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let embedded = self.embeddings.forward(input_ids, Some(token_type_ids))?;
        let mask = match attention_mask {
            Some(mask) => Some(added_to_scores("bert", mask, embedded.dtype())?),
            None => None,
        };
        self.encoder.run(embedded, mask.as_ref())
    }

    /// The table of the tokens' vectors, (vocab_size, hidden_size).
    fn word_embeddings(&self) -> &Tensor {
        self.embeddings.table()
    }
}
