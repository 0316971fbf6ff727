//! Chinese CLIP's encoder of texts, a BERT.

use candle_core::{Device, Result, Tensor};
use candle_nn::{layer_norm, VarBuilder};

use super::Activation;
use crate::blocks::encoder::{
    Embeddings, EmbeddingsSpec, EncoderPositions, EncoderSpec, TextEncoder,
};
use crate::blocks::vision::VitActivation;

const FAMILY: &str = "chinese_clip";

/// How the model knows where a token is.
#[derive(Clone, Debug)]
pub enum PositionEmbeddingType {
    /// By a vector for each position.
    Absolute,
    /// Not at all here: no such checkpoint is published.
    RelativeKey,
    /// As [`RelativeKey`](Self::RelativeKey).
    RelativeKeyQuery,
}

/// The numbers of the encoder of texts.
#[derive(Clone, Debug)]
pub struct ChineseClipTextConfig {
    /// Ids.
    pub vocab_size: usize,
    /// Size of a token.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Of training, not used.
    pub hidden_dropout_prob: f32,
    /// Of training, not used.
    pub attention_probs_dropout_prob: f64,
    /// The longest text in tokens.
    pub max_position_embeddings: usize,
    /// Kinds of segments.
    pub type_vocab_size: usize,
    /// Of training, not used.
    pub initializer_range: f64,
    /// Of training, not used.
    pub initializer_factor: f64,
    /// What the layer norms add to the variance.
    pub layer_norm_eps: f64,
    /// The id that texts are filled up with. The model does not use it.
    pub pad_token_id: usize,
    /// How the model knows where a token is.
    pub position_embedding_type: PositionEmbeddingType,
    /// Not used: an encoder has no cache.
    pub use_cache: bool,
}

/// Transformers' defaults.
impl Default for ChineseClipTextConfig {
    fn default() -> Self {
        Self {
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            initializer_range: 0.02,
            initializer_factor: 1.0,
            layer_norm_eps: 1e-12,
            pad_token_id: 0,
            position_embedding_type: PositionEmbeddingType::Absolute,
            use_cache: true,
        }
    }
}

impl ChineseClipTextConfig {
    /// [OFA-Sys/chinese-clip-vit-base-patch16](https://huggingface.co/OFA-Sys/chinese-clip-vit-base-patch16).
    pub fn clip_vit_base_patch16() -> Self {
        Self {
            vocab_size: 21128,
            ..Self::default()
        }
    }
}

/// The vectors of tokens, their segments and positions, added and normed.
#[derive(Clone, Debug)]
pub struct ChineseClipTextEmbeddings {
    embeddings: Embeddings,
}

impl ChineseClipTextEmbeddings {
    /// Loads `{word,position,token_type}_embeddings` and `LayerNorm`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(var: VarBuilder, config: &ChineseClipTextConfig) -> Result<Self> {
        let limit = config.max_position_embeddings;
        let spec = EmbeddingsSpec {
            family: FAMILY,
            hidden: config.hidden_size,
            vocab: config.vocab_size,
            positions: match config.position_embedding_type {
                PositionEmbeddingType::Absolute => Some(limit),
                PositionEmbeddingType::RelativeKey | PositionEmbeddingType::RelativeKeyQuery => {
                    None
                }
            },
            types: config.type_vocab_size,
            limit,
        };
        let (hidden, eps) = (config.hidden_size, config.layer_norm_eps);
        let norm = layer_norm(hidden, eps, var.pp("LayerNorm"))?;
        Ok(Self {
            embeddings: Embeddings::load(spec, var, norm)?,
        })
    }
}

/// The encoder of texts.
#[derive(Clone, Debug)]
pub struct ChineseClipTextTransformer {
    encoder: TextEncoder,
    /// Where the weights are.
    pub device: Device,
}

impl ChineseClipTextTransformer {
    /// Loads `embeddings` and `encoder.layer.N`.
    ///
    /// # Errors
    /// The heads do not divide the hidden size, or a weight is missing or has another shape.
    pub fn new(var: VarBuilder, config: &ChineseClipTextConfig) -> Result<Self> {
        let spec = EncoderSpec::bert(
            FAMILY,
            ("hidden_size", config.hidden_size),
            ("num_attention_heads", config.num_attention_heads),
            config.intermediate_size,
            candle_nn::Activation::Gelu,
            config.layer_norm_eps,
        )?;
        let layers = EncoderSpec {
            activation: VitActivation::from(config.hidden_act).into(),
            ..spec
        };
        let embeddings = ChineseClipTextEmbeddings::new(var.pp("embeddings"), config)?;
        Ok(Self {
            device: var.device().clone(),
            encoder: TextEncoder {
                family: FAMILY,
                embeddings: embeddings.embeddings,
                layers: layers.load_dense(config.num_hidden_layers, var, "encoder.layer")?,
                positions: EncoderPositions::InVectors,
            },
        })
    }

    /// From ids (batch, seq) to the vector of each text's first token, (batch, hidden_size).
    ///
    /// - `token_type_ids`: the segment of each token, (batch, seq) or (1, seq); without it all are of segment 0.
    /// - `attention_mask`: 1 for tokens that are seen, else 0: (batch, seq), or (batch, seq, seq) with a row for each token that sees.
    ///
    /// # Errors
    /// There are no tokens or more than the model has positions, or the other tensors have other shapes.
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let types = token_type_ids
            .map(|types| types.broadcast_as(input_ids.shape()))
            .transpose()?;
        let encoder = &self.encoder;
        let xs = encoder.forward(input_ids, types.as_ref(), attention_mask)?;
        xs.narrow(1, 0, 1)?.squeeze(1)
    }
}
