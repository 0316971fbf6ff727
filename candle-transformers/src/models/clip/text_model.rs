//! CLIP's encoder of texts, and the layers that both encoders have.

use candle_core::{Module, Result, Tensor};
use candle_nn::{layer_norm, LayerNorm, VarBuilder};

use super::{EncoderConfig, EPS};
use crate::blocks::vision::{at_largest, blocks, Blocks, TextEmbeddings, VitActivation};

/// An activation function.
#[derive(Debug, Clone, Copy)]
pub enum Activation {
    /// `x * sigmoid(1.702 x)`: OpenAI's, `quick_gelu` in a `config.json`.
    QuickGelu,
    /// `x * Φ(x)`: LAION's, `gelu` in a `config.json`.
    Gelu,
    /// [`Gelu`](Self::Gelu) in its tanh form.
    GeluTanh,
}

impl<'de> serde::Deserialize<'de> for Activation {
    /// From `hidden_act` of a `config.json`.
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.as_str() {
            "quick_gelu" => Ok(Self::QuickGelu),
            "gelu" => Ok(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Self::GeluTanh),
            other => Err(serde::de::Error::custom(format!(
                "clip: hidden_act {other:?} is not supported, supported are quick_gelu, gelu, gelu_new and gelu_pytorch_tanh"
            ))),
        }
    }
}

impl From<Activation> for VitActivation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::QuickGelu => Self::QuickGelu,
            Activation::Gelu => Self::Named(candle_nn::Activation::Gelu),
            Activation::GeluTanh => Self::Named(candle_nn::Activation::GeluPytorchTanh),
        }
    }
}

/// From any shape to the same.
impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        VitActivation::from(*self).forward(xs)
    }
}

/// The numbers of the encoder of texts.
#[derive(Debug, Clone)]
pub struct ClipTextConfig {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token.
    pub embed_dim: usize,
    /// Activation of the feed-forward blocks.
    pub activation: Activation,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Maximum text length, in tokens.
    pub max_position_embeddings: usize,
    /// The token that callers fill texts up with, if it is not that of the end. The model does not use it.
    pub pad_with: Option<String>,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `embed_dim`.
    pub num_attention_heads: usize,
    /// Size of the shared embedding space of images and texts.
    pub projection_dim: usize,
}

impl ClipTextConfig {
    /// [openai/clip-vit-base-patch32](https://huggingface.co/openai/clip-vit-base-patch32).
    pub fn vit_base_patch32() -> Self {
        Self {
            vocab_size: 49408,
            embed_dim: 512,
            activation: Activation::QuickGelu,
            intermediate_size: 2048,
            max_position_embeddings: 77,
            pad_with: None,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            projection_dim: 512,
        }
    }
}

/// The layers of one of the encoders.
#[derive(Clone, Debug)]
pub struct ClipEncoder {
    blocks: Blocks,
}

impl ClipEncoder {
    /// Loads `layers.N`.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &EncoderConfig) -> Result<Self> {
        let (layers, activation) = (c.num_hidden_layers(), c.activation().into());
        Ok(Self {
            blocks: blocks("clip", layers, &c.spec(), activation, vs.pp("layers"))?,
        })
    }

    /// From (batch, tokens, embed_dim) to the same shape. The mask is added to the scores of attention; it is a float and broadcasts to
    /// (batch, heads, tokens, tokens).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, causal_attention_mask: Option<&Tensor>) -> Result<Tensor> {
        self.blocks.forward(xs, causal_attention_mask)
    }

    /// As [`forward`](Self::forward), what each layer gives, the first one first.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    pub fn output_hidden_states(
        &self,
        xs: &Tensor,
        causal_attention_mask: Option<&Tensor>,
    ) -> Result<Vec<Tensor>> {
        self.blocks.forward_each(xs, causal_attention_mask)
    }
}

/// The encoder of texts.
#[derive(Clone, Debug)]
pub struct ClipTextTransformer {
    embeddings: TextEmbeddings,
    encoder: ClipEncoder,
    norm: LayerNorm,
}

impl ClipTextTransformer {
    /// Loads `embeddings.{token_embedding,position_embedding}`, `encoder.layers.N` and `final_layer_norm`.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &ClipTextConfig) -> Result<Self> {
        let sizes = [c.vocab_size, c.max_position_embeddings, c.embed_dim];
        Ok(Self {
            embeddings: TextEmbeddings::load("clip", sizes, vs.pp("embeddings"))?,
            encoder: ClipEncoder::new(vs.pp("encoder"), &EncoderConfig::Text(c.clone()))?,
            norm: layer_norm(c.embed_dim, EPS, vs.pp("final_layer_norm"))?,
        })
    }

    /// From ids (batch, seq) to (batch, seq, embed_dim). A token sees those up to its own, and none behind the position `mask_after`.
    ///
    /// # Errors
    /// There are no tokens or more than the model has positions.
    pub fn forward_with_mask(&self, input_ids: &Tensor, mask_after: usize) -> Result<Tensor> {
        let xs = self.embeddings.forward(input_ids)?;
        let seq = xs.dim(1)?;
        let row = |i| {
            (0..seq).map(move |j| {
                if j > i || j > mask_after {
                    f32::MIN
                } else {
                    0.
                }
            })
        };
        let mask: Vec<f32> = (0..seq).flat_map(row).collect();
        let mask = Tensor::from_vec(mask, (1, 1, seq, seq), xs.device())?;
        self.norm.forward(&self.encoder.forward(&xs, Some(&mask))?)
    }
}

/// From ids (batch, seq) to the vector of each text's largest id, which is that of its end: (batch, embed_dim).
///
/// # Errors
/// There are no tokens or more than the model has positions.
impl Module for ClipTextTransformer {
    fn forward(&self, input_ids: &Tensor) -> Result<Tensor> {
        at_largest(&self.forward_with_mask(input_ids, usize::MAX)?, input_ids)
    }
}
