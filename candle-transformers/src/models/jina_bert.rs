//! JinaBERT, the encoder of jina-embeddings-v2, with ALiBi to both sides in place of positions: [arXiv
//! 2310.19923](https://arxiv.org/abs/2310.19923). A text's embedding is the mean of its tokens.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::ops::GatedActivation;
use candle_nn::{layer_norm, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{
    Embeddings, EmbeddingsSpec, EncoderBiases, EncoderNames, EncoderPositions, EncoderSpec,
    MlpActivation, MlpNames, TextEncoder,
};
use crate::blocks::family::alibi_slopes;
use crate::blocks::Order;

const FAMILY: &str = "jina_bert";

/// The dtype that published checkpoints are meant for. Others work too.
pub const DTYPE: DType = DType::F32;

/// How the model knows where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionEmbeddingType {
    /// A learned vector for each position. Models with it are refused.
    Absolute,
    /// Scores lose with the distance of two tokens: [arXiv 2108.12409](https://arxiv.org/abs/2108.12409).
    Alibi,
}

/// Sizes and constants, as `config.json` has them.
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
    /// Not used: the gate of the feed-forward blocks is GELU in all models.
    pub hidden_act: candle_nn::Activation,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// Kinds of segments.
    pub type_vocab_size: usize,
    /// Deviation of new weights in training.
    pub initializer_range: f64,
    /// What layer norms add to the variance.
    pub layer_norm_eps: f64,
    /// The token that fills up a batch.
    pub pad_token_id: usize,
    /// How the model knows where a token stands.
    pub position_embedding_type: PositionEmbeddingType,
}

impl Config {
    /// A configuration from its fields, in their order.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        vocab_size: usize,
        hidden_size: usize,
        num_hidden_layers: usize,
        num_attention_heads: usize,
        intermediate_size: usize,
        hidden_act: candle_nn::Activation,
        max_position_embeddings: usize,
        type_vocab_size: usize,
        initializer_range: f64,
        layer_norm_eps: f64,
        pad_token_id: usize,
        position_embedding_type: PositionEmbeddingType,
    ) -> Self {
        Self {
            vocab_size,
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            intermediate_size,
            hidden_act,
            max_position_embeddings,
            type_vocab_size,
            initializer_range,
            layer_norm_eps,
            pad_token_id,
            position_embedding_type,
        }
    }

    /// `jina-embeddings-v2-base-en`, for texts of up to 512 tokens. The model takes up to 8192, if `max_position_embeddings` says so.
    pub fn v2_base() -> Self {
        Self {
            vocab_size: 30528,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: candle_nn::Activation::Gelu,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            pad_token_id: 0,
            position_embedding_type: PositionEmbeddingType::Alibi,
        }
    }

    fn layer(&self) -> Result<EncoderSpec> {
        let activation = candle_nn::Activation::Gelu;
        let spec = EncoderSpec::bert(
            FAMILY,
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            self.intermediate_size,
            activation,
            self.layer_norm_eps,
        )?;
        let [attention_norm, _] = spec.names.norms;
        Ok(EncoderSpec {
            activation: MlpActivation::Joined(GatedActivation::Gelu, Order::Layers),
            bias: EncoderBiases {
                up: false,
                ..spec.bias
            },
            names: EncoderNames {
                mlp: MlpNames {
                    gate: "",
                    up: "mlp.gated_layers",
                    down: "mlp.wo",
                },
                norms: [attention_norm, "mlp.layernorm"],
                ..spec.names
            },
            ..spec
        })
    }
}

/// From token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct BertModel {
    encoder: TextEncoder,
    /// Where the weights are.
    pub device: Device,
}

impl BertModel {
    /// Loads the weights: `embeddings.{word,token_type}_embeddings`, `embeddings.LayerNorm` and `encoder.layer.N`:
    /// `attention.self.{query,key,value}`, `attention.output.{dense,LayerNorm}`, `mlp.{gated_layers,wo,layernorm}`.
    ///
    /// # Errors
    /// If the configuration contradicts itself or asks for absolute positions, or a weight is missing or has another shape than the
    /// configuration says.
    pub fn new(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        let (hidden, heads) = (cfg.hidden_size, cfg.num_attention_heads);
        if cfg.position_embedding_type != PositionEmbeddingType::Alibi {
            bail!("jina_bert: position_embedding_type is absolute; only alibi is supported")
        }
        let embeddings = EmbeddingsSpec {
            family: FAMILY,
            hidden,
            vocab: cfg.vocab_size,
            positions: None,
            types: cfg.type_vocab_size,
            limit: cfg.max_position_embeddings,
        };
        let table = vb.pp("embeddings");
        let norm = layer_norm(hidden, cfg.layer_norm_eps, table.pp("LayerNorm"))?;
        let slopes = Tensor::new(alibi_slopes(heads, 8.), vb.device())?;
        let count = cfg.num_hidden_layers;
        Ok(Self {
            device: vb.device().clone(),
            encoder: TextEncoder {
                family: FAMILY,
                embeddings: Embeddings::load(embeddings, table, norm)?,
                layers: cfg.layer()?.load_dense(count, vb, "encoder.layer")?,
                positions: EncoderPositions::Slopes(slopes),
            },
        })
    }

    /// The vectors of the tokens, (batch, seq, hidden_size), of `input_ids`, integers of shape (batch, seq). `attention_mask` is 1 where a
    /// token may be attended to and 0 where it is hidden, (batch, seq): for texts of several lengths in a batch. Not in Candle's
    /// interface, where all tokens are seen, as without a mask here.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or more than `max_position_embeddings`, or an id is outside the table (where the
    /// device can tell).
    pub fn forward_masked(
        &self,
        input_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.encoder.forward(input_ids, None, attention_mask)
    }
}

/// From integers of shape (batch, seq) to (batch, seq, hidden_size); all tokens are seen.
impl Module for BertModel {
    fn forward(&self, input_ids: &Tensor) -> Result<Tensor> {
        self.forward_masked(input_ids, None)
    }
}
