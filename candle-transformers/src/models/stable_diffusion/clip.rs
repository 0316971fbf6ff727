//! CLIP's encoder of texts, [arXiv 2103.00020](https://arxiv.org/abs/2103.00020), as diffusion models have it: all tokens are its result.
//! Weight names are those of Hugging Face's checkpoints. Files of a whole CLIP are read by [`clip`](crate::models::clip).

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{layer_norm, LayerNorm, VarBuilder};

use crate::blocks::vision::{blocks, Blocks, TextEmbeddings, VitActivation, VitSpec};
use crate::models::clip::text_model;

/// Layer norm epsilon.
const EPS: f64 = 1e-5;

/// An activation function.
#[derive(Debug, Clone, Copy)]
pub enum Activation {
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// GELU in its tanh form.
    Gelu,
    /// GELU.
    GeluErf,
}

impl From<Activation> for VitActivation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::QuickGelu => Self::QuickGelu,
            Activation::Gelu => Self::Named(candle_nn::Activation::GeluPytorchTanh),
            Activation::GeluErf => Self::Named(candle_nn::Activation::Gelu),
        }
    }
}

/// From any shape to the same.
impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        VitActivation::from(*self).forward(xs)
    }
}

/// The numbers of an encoder.
#[derive(Debug, Clone)]
pub struct Config {
    vocab_size: usize,
    embed_dim: usize,
    activation: Activation,
    intermediate_size: usize,
    /// Maximum text length, in tokens.
    pub max_position_embeddings: usize,
    /// The token that callers fill texts up with, if it is not that of the end. The model does not use it.
    pub pad_with: Option<String>,
    num_hidden_layers: usize,
    num_attention_heads: usize,
}

/// The encoder of a whole CLIP, for files that diffusion models of other sizes have.
impl From<text_model::ClipTextConfig> for Config {
    fn from(config: text_model::ClipTextConfig) -> Self {
        Self {
            vocab_size: config.vocab_size,
            embed_dim: config.embed_dim,
            activation: match config.activation {
                text_model::Activation::QuickGelu => Activation::QuickGelu,
                text_model::Activation::Gelu => Activation::GeluErf,
                text_model::Activation::GeluTanh => Activation::Gelu,
            },
            intermediate_size: config.intermediate_size,
            max_position_embeddings: config.max_position_embeddings,
            pad_with: config.pad_with,
            num_hidden_layers: config.num_hidden_layers,
            num_attention_heads: config.num_attention_heads,
        }
    }
}

impl Config {
    /// An encoder of CLIP's vocabulary with heads of size 64.
    fn of(embed_dim: usize, num_hidden_layers: usize, activation: Activation) -> Self {
        Self {
            vocab_size: 49408,
            embed_dim,
            activation,
            intermediate_size: 4 * embed_dim,
            max_position_embeddings: 77,
            pad_with: None,
            num_hidden_layers,
            num_attention_heads: embed_dim / 64,
        }
    }

    fn filled_up(self) -> Self {
        Self {
            pad_with: Some("!".to_string()),
            ..self
        }
    }

    /// That of Stable Diffusion 1.5: [openai/clip-vit-large-patch14](https://huggingface.co/openai/clip-vit-large-patch14).
    pub fn v1_5() -> Self {
        Self::of(768, 12, Activation::QuickGelu)
    }

    /// That of [Stable Diffusion 2.1](https://huggingface.co/stabilityai/stable-diffusion-2-1/blob/main/text_encoder/config.json).
    pub fn v2_1() -> Self {
        Self::of(1024, 23, Activation::Gelu).filled_up()
    }

    /// The first one of [SDXL](https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0/blob/main/text_encoder/config.json).
    pub fn sdxl() -> Self {
        Self::of(768, 12, Activation::QuickGelu).filled_up()
    }

    /// The second one of [SDXL](https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0/blob/main/text_encoder_2/config.json).
    pub fn sdxl2() -> Self {
        Self::of(1280, 32, Activation::Gelu).filled_up()
    }

    /// The first one of [SSD-1B](https://huggingface.co/segmind/SSD-1B), which is SDXL's.
    pub fn ssd1b() -> Self {
        Self::sdxl()
    }

    /// The second one of [SSD-1B](https://huggingface.co/segmind/SSD-1B), which is SDXL's.
    pub fn ssd1b2() -> Self {
        Self::sdxl2()
    }

    /// That of [Würstchen](https://huggingface.co/warp-ai/wuerstchen/blob/main/text_encoder/config.json)'s decoder.
    pub fn wuerstchen() -> Self {
        Self::of(1024, 24, Activation::GeluErf)
    }

    /// That of [Würstchen](https://huggingface.co/warp-ai/wuerstchen-prior/blob/main/text_encoder/config.json)'s prior.
    pub fn wuerstchen_prior() -> Self {
        Self::of(1280, 32, Activation::GeluErf)
    }
}

/// An encoder of texts.
#[derive(Debug)]
pub struct ClipTextTransformer {
    embeddings: TextEmbeddings,
    blocks: Blocks,
    norm: LayerNorm,
}

impl ClipTextTransformer {
    /// Loads `embeddings.{token_embedding,position_embedding}`, `encoder.layers.N` and `final_layer_norm` below `text_model`.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &Config) -> Result<Self> {
        let vs = vs.pp("text_model");
        let spec = VitSpec {
            size: c.embed_dim,
            heads: c.num_attention_heads,
            inner: c.intermediate_size,
            eps: EPS,
        };
        let sizes = [c.vocab_size, c.max_position_embeddings, c.embed_dim];
        let (layers, vb_layers) = (c.num_hidden_layers, vs.pp("encoder").pp("layers"));
        Ok(Self {
            blocks: blocks("clip", layers, &spec, c.activation.into(), vb_layers)?,
            embeddings: TextEmbeddings::load("clip", sizes, vs.pp("embeddings"))?,
            norm: layer_norm(c.embed_dim, EPS, vs.pp("final_layer_norm"))?,
        })
    }

    /// From ids (batch, seq) to (batch, seq, embed_dim). A token sees those up to its own, and none behind the position `mask_after`.
    ///
    /// # Errors
    /// There are no tokens or more than the model has positions.
    pub fn forward_with_mask(&self, xs: &Tensor, mask_after: usize) -> Result<Tensor> {
        let xs = self.embeddings.forward(xs)?;
        let mask = mask(xs.dim(1)?, mask_after, &xs)?;
        self.norm.forward(&self.blocks.forward(&xs, Some(&mask))?)
    }

    /// As [`forward_with_mask`](Self::forward_with_mask), and what layer `until_layer` gave, before the last norm, both
    /// (batch, seq, embed_dim). Layers count from 0, or from the last one, which is -1; the one before the first gives the embeddings.
    ///
    /// # Errors
    /// The layer does not exist, and those of [`forward_with_mask`](Self::forward_with_mask).
    pub fn forward_until_encoder_layer(
        &self,
        xs: &Tensor,
        mask_after: usize,
        until_layer: isize,
    ) -> Result<(Tensor, Tensor)> {
        let xs = self.embeddings.forward(xs)?;
        let mask = mask(xs.dim(1)?, mask_after, &xs)?;
        // The embeddings are state 0.
        let mut states = self.blocks.forward_each(&xs, Some(&mask))?;
        states.insert(0, xs);
        let count = states.len() as isize;
        let index = if until_layer < 0 {
            count + until_layer
        } else {
            until_layer.saturating_add(1)
        };
        let last = &states[states.len() - 1];
        match states.get(index as usize) {
            Some(state) if index >= 0 => Ok((self.norm.forward(last)?, state.clone())),
            _ => bail!(
                "clip: layer {until_layer} requested, but there are {} layers: use 0 to {}, or -{count} to -1",
                count - 1,
                count - 2
            ),
        }
    }
}

/// (1, 1, seq, seq) of what is added to the scores of tokens that a token does not see, and of zeros.
fn mask(seq: usize, mask_after: usize, xs: &Tensor) -> Result<Tensor> {
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
    Tensor::from_vec(mask, (1, 1, seq, seq), xs.device())
}

/// From ids (batch, seq) to (batch, seq, embed_dim). A token sees those up to its own.
///
/// # Errors
/// There are no tokens or more than the model has positions.
impl Module for ClipTextTransformer {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_with_mask(xs, usize::MAX)
    }
}
