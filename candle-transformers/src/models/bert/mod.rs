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

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{embedding, layer_norm, Embedding, LayerNorm, VarBuilder};

mod config;
mod encoder;
mod masked_lm;

pub use config::{Config, HiddenAct, PositionEmbeddingType};
pub use encoder::{BertEncoder, BertLayer};
pub use masked_lm::{BertForMaskedLM, BertLMPredictionHead, BertOnlyMLMHead};

/// The dtype that published checkpoints are meant for. Others work too.
pub const DTYPE: DType = DType::F32;

/// The vectors of tokens, of their segments and of their positions, added and normed.
#[derive(Debug, Clone)]
struct BertEmbeddings {
    word: Embedding,
    /// (max_position_embeddings, hidden_size)
    position: Tensor,
    token_type: Embedding,
    norm: LayerNorm,
}

impl BertEmbeddings {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let table = |name, len| embedding(len, hidden, vb.pp(name));
        let position = table("position_embeddings", config.max_position_embeddings)?;
        Ok(Self {
            word: table("word_embeddings", config.vocab_size)?,
            position: position.embeddings().clone(),
            token_type: table("token_type_embeddings", config.type_vocab_size)?,
            norm: layer_norm(hidden, config.layer_norm_eps, vb.pp("LayerNorm"))?,
        })
    }

    fn forward(&self, ids: &Tensor, token_types: &Tensor) -> Result<Tensor> {
        let (_, len) = ids.dims2()?;
        let limit = self.position.dim(0)?;
        if len > limit {
            bail!(
                "bert: {len} tokens are more than the model's max_position_embeddings of {limit}; \
                 shorten the text"
            )
        }
        if ids.dims() != token_types.dims() {
            bail!(
                "bert: input_ids are {:?} and token_type_ids {:?}; they have to have one shape",
                ids.dims(),
                token_types.dims()
            )
        }
        let tokens = (self.word.forward(ids)? + self.token_type.forward(token_types)?)?;
        let placed = tokens.broadcast_add(&self.position.narrow(0, 0, len)?)?;
        self.norm.forward(&placed)
    }
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct BertModel {
    embeddings: BertEmbeddings,
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
        let first = "embeddings.word_embeddings.weight";
        let prefixed = vb.pp(config.model_type.as_deref().unwrap_or("bert"));
        let vb = if !vb.contains_tensor(first) && prefixed.contains_tensor(first) {
            prefixed
        } else {
            vb
        };
        Ok(Self {
            embeddings: BertEmbeddings::load(vb.pp("embeddings"), config)?,
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
    /// If the shapes do not match, there are more than `max_position_embeddings` tokens, or an id is outside its table
    /// (where the device can tell).
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let embedded = self.embeddings.forward(input_ids, token_type_ids)?;
        let mask = match attention_mask {
            Some(mask) => Some(added_to_scores(mask, embedded.dtype())?),
            None => None,
        };
        self.encoder.run(embedded, mask.as_ref())
    }

    /// The table of the tokens' vectors, (vocab_size, hidden_size).
    fn word_embeddings(&self) -> &Tensor {
        self.embeddings.word.embeddings()
    }
}

/// What a mask of ones and zeros adds to the scores of attention: nothing, or the least f32. Not an infinity: a row that is hidden
/// altogether then attends to all alike instead of giving NaN. f16 and bf16 have no such number, attention adds in f32 for them.
fn added_to_scores(mask: &Tensor, model: DType) -> Result<Tensor> {
    let mask = match mask.rank() {
        2 => mask.unsqueeze(1)?.unsqueeze(1)?,
        3 => mask.unsqueeze(1)?,
        _ => bail!(
            "bert: attention_mask is {:?}; it has to be (batch, seq) or (batch, seq, seq)",
            mask.dims()
        ),
    };
    let dtype = if model == DType::F64 {
        model
    } else {
        DType::F32
    };
    mask.to_dtype(dtype)?
        .affine(f64::from(f32::MAX), f64::from(f32::MIN))
}
