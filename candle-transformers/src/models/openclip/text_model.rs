//! OpenCLIP's encoder of texts, with the weight names of its checkpoints. Every token sees all others, as in MobileCLIP, for which
//! Candle has it.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::openclip::text_model::{Config, OpenClipTextTransformer};
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { vocab_size: 64, num_hidden_layers: 1, ..Config::vit_base_patch32() };
//! let device = Device::Cpu;
//! // A real model: `let config = Config::vit_base_patch32()` and VarBuilder::from_mmaped_safetensors.
//! let model = OpenClipTextTransformer::new(VarBuilder::zeros(DType::F32, &device), &config)?;
//! let texts = Tensor::new(&[[49u32, 32, 50], [49, 17, 50]], &device)?;
//! assert_eq!(model.forward(&texts)?.dims(), &[2, 3, 512]);
//! // One vector for each text.
//! assert_eq!(Module::forward(&model, &texts)?.dims(), &[2, 512]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{embedding, layer_norm, linear, Activation, LayerNorm, Linear, VarBuilder};

use crate::blocks::encoder::{EncoderLayer, Heads, NormPlace};
use crate::blocks::vision::{at_largest, Blocks, TextEmbeddings, VitSpec};
use crate::blocks::{FeedForward, MergedLinear, PlainMlp};

/// Layer norm epsilon.
const EPS: f64 = 1e-5;

/// The numbers of a model.
#[derive(Debug, Clone)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token.
    pub embed_dim: usize,
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

impl Config {
    /// That of ViT-B/32.
    pub fn vit_base_patch32() -> Self {
        Self {
            vocab_size: 49408,
            embed_dim: 512,
            intermediate_size: 2048,
            max_position_embeddings: 77,
            pad_with: None,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            projection_dim: 512,
        }
    }

    fn spec(&self) -> VitSpec {
        VitSpec {
            size: self.embed_dim,
            heads: self.num_attention_heads,
            inner: self.intermediate_size,
            eps: EPS,
        }
    }
}

/// The layer at `vb`. Files have queries, keys and values as `in_proj_weight`, not as a linear layer.
fn load_layer(spec: &VitSpec, vb: VarBuilder) -> Result<EncoderLayer> {
    let (size, inner, vb_attention) = (spec.size, spec.inner, vb.pp("attn"));
    let weight = vb_attention.get((3 * size, size), "in_proj_weight")?;
    let bias = vb_attention.get(3 * size, "in_proj_bias")?;
    let qkv = MergedLinear::joined(Linear::new(weight, Some(bias)).into(), [size; 3]);
    let norm = |name| layer_norm(size, EPS, vb.pp(name));
    Ok(EncoderLayer {
        heads: Heads::new(qkv, spec.heads, spec.head_dim("openclip")?),
        joined: linear(size, size, vb_attention.pp("out_proj"))?.into(),
        mlp: FeedForward::Plain(PlainMlp::new(
            linear(size, inner, vb.pp("mlp").pp("c_fc"))?.into(),
            linear(inner, size, vb.pp("mlp").pp("c_proj"))?.into(),
            Activation::Gelu,
        )),
        place: NormPlace::Before,
        norms: [Some(norm("ln_1")?.into()), Some(norm("ln_2")?.into())],
    })
}

/// The layers.
#[derive(Clone, Debug)]
pub struct Encoder {
    blocks: Blocks,
}

impl Encoder {
    /// Loads `resblocks.N`.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &Config) -> Result<Self> {
        let spec = c.spec();
        spec.head_dim("openclip")?;
        let blocks = (0..c.num_hidden_layers).map(|i| load_layer(&spec, vs.pp("resblocks").pp(i)));
        Ok(Self {
            blocks: Blocks(blocks.collect::<Result<_>>()?),
        })
    }

    /// From (batch, seq, embed_dim) to the same shape.
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.blocks.forward(xs, None)
    }
}

/// The encoder of texts.
#[derive(Clone, Debug)]
pub struct OpenClipTextTransformer {
    embeddings: TextEmbeddings,
    encoder: Encoder,
    norm: LayerNorm,
}

impl OpenClipTextTransformer {
    /// Loads `token_embedding`, `positional_embedding`, `transformer.resblocks.N` and `ln_final`.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &Config) -> Result<Self> {
        let (size, limit) = (c.embed_dim, c.max_position_embeddings);
        let tokens = embedding(c.vocab_size, size, vs.pp("token_embedding"))?;
        let positions = vs.get((limit, size), "positional_embedding")?;
        Ok(Self {
            embeddings: TextEmbeddings::new("openclip", tokens, positions),
            encoder: Encoder::new(vs.pp("transformer"), c)?,
            norm: layer_norm(size, EPS, vs.pp("ln_final"))?,
        })
    }

    /// From ids (batch, seq) to (batch, seq, embed_dim).
    ///
    /// # Errors
    /// There are no tokens or more than the model has positions.
    pub fn forward(&self, input_ids: &Tensor) -> Result<Tensor> {
        let xs = self.embeddings.forward(input_ids)?;
        self.norm.forward(&self.encoder.forward(&xs)?)
    }
}

/// From ids (batch, seq) to the vector of each text's largest id, which is that of its end: (batch, embed_dim).
///
/// # Errors
/// There are no tokens or more than the model has positions.
impl Module for OpenClipTextTransformer {
    fn forward(&self, input_ids: &Tensor) -> Result<Tensor> {
        at_largest(&self.forward(input_ids)?, input_ids)
    }
}
