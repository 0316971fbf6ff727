//! Stella v5, which makes vectors of texts, in English: [arXiv 2412.19048](https://arxiv.org/abs/2412.19048). The model of 1.5 billion parameters
//! is a [`qwen2`](super::qwen2) whose tokens see each other; that of 400 million is an encoder with rotary positions and gated feed-forward
//! blocks. A layer from the mean of the tokens gives vectors of a size of choice ([arXiv 2205.13147](https://arxiv.org/abs/2205.13147)); it has
//! a file for each size.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::stella_en_v5::{Config, EmbedDim, EmbeddingModel};
//! # fn main() -> candle_core::Result<()> {
//! let config = Config::new_400_m_v5(EmbedDim::Dim256);
//! # let mut config = config;
//! # (config.vocab_size, config.hidden_size, config.intermediate_size) = (40, 32, 16);
//! # (config.num_hidden_layers, config.embed_head.in_features) = (1, 32);
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors, of model.safetensors and of 2_Dense_256/model.safetensors.
//! let (base, head) = (VarBuilder::zeros(DType::F32, &device), VarBuilder::zeros(DType::F32, &device));
//! let mut model = EmbeddingModel::new(&config, base, head)?;
//! let ids = Tensor::new(&[[2u32, 7, 9, 3], [2, 8, 3, 0]], &device)?;
//! let mask = Tensor::new(&[[1u32, 1, 1, 1], [1, 1, 1, 0]], &device)?;
//! assert_eq!(model.forward(&ids, &mask)?.dims(), &[2, 256]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::{embedding, layer_norm, linear, Activation, Embedding, Linear, VarBuilder};
use serde::Deserialize;

use super::nomic_bert::l2_normalize;
use crate::blocks::encoder::{
    self, check_text, head_dim, mean_of_seen, EmbeddingsSpec, EncoderBiases, EncoderNames,
    EncoderPositions, EncoderSpec, MlpActivation, MlpNames, NormPlace, TextEncoder,
};
use crate::blocks::family::LlamaLike;
use crate::blocks::{
    inverse_frequencies, Decoder, Head, NormSpec, Order, Rotary, RotaryPairs, RotaryTables,
};

const FAMILY: &str = "stella_en_v5";

/// Which of the two models.
#[derive(Debug, Default, Copy, Clone, PartialEq, Deserialize)]
pub enum ModelVariant {
    /// 1.5 billion parameters.
    #[default]
    Large,
    /// 400 million.
    Small,
}

/// Sizes and constants of both models.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Which of the two.
    pub variant: ModelVariant,
    /// Tokens.
    pub vocab_size: usize,
    /// The size of a token's vector.
    pub hidden_size: usize,
    /// The inner size of feed-forward blocks.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The longest text; with a `scaling_factor`, times that.
    pub max_position_embeddings: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The sizes of the last layer.
    pub embed_head: EmbedHead,
    /// Added to the mean square, or the variance, in the norms.
    pub norm_eps: f64,
    /// The activation of feed-forward blocks' gates.
    pub activation_fn: Activation,
    /// Key and value heads; of the large model.
    pub num_key_value_heads: usize,
    /// Kinds of segments; of the small model. All tokens are of the first.
    pub type_vocab_size: usize,
    /// What the base of the rotary frequencies is multiplied with, which are divided by the power of two in the size of a head of it; 0 for
    /// neither.
    pub scaling_factor: f64,
}

/// The sizes of the layer that makes a text's vector.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
pub struct EmbedHead {
    /// Of the mean of the tokens: `hidden_size`.
    pub in_features: usize,
    /// Of the vector.
    pub out_features: usize,
}

/// The sizes of a text's vector that there are layers for.
#[derive(Debug, Default, Clone, Copy)]
pub enum EmbedDim {
    /// 256
    Dim256,
    /// 768
    Dim768,
    /// 1024, which the authors find good enough for most uses.
    #[default]
    Dim1024,
    /// 2048
    Dim2048,
    /// 4096
    Dim4096,
    /// 6144
    Dim6144,
    /// 8192
    Dim8192,
}

impl EmbedDim {
    /// The layer's sizes, from vectors of `in_features`.
    pub fn config(&self, in_features: usize) -> EmbedHead {
        let out_features = match self {
            Self::Dim256 => 256,
            Self::Dim768 => 768,
            Self::Dim1024 => 1024,
            Self::Dim2048 => 2048,
            Self::Dim4096 => 4096,
            Self::Dim6144 => 6144,
            Self::Dim8192 => 8192,
        };
        EmbedHead {
            in_features,
            out_features,
        }
    }
}

impl Config {
    /// [stella_en_1.5B_v5](https://huggingface.co/NovaSearch/stella_en_1.5B_v5).
    pub fn new_1_5_b_v5(embed_dim: EmbedDim) -> Self {
        Self {
            variant: ModelVariant::Large,
            vocab_size: 151_646,
            hidden_size: 1536,
            intermediate_size: 8960,
            num_hidden_layers: 28,
            num_attention_heads: 12,
            num_key_value_heads: 2,
            max_position_embeddings: 131_072,
            rope_theta: 1e6,
            norm_eps: 1e-6,
            activation_fn: Activation::Silu,
            embed_head: embed_dim.config(1536),
            ..Self::default()
        }
    }

    /// [stella_en_400M_v5](https://huggingface.co/NovaSearch/stella_en_400M_v5).
    pub fn new_400_m_v5(embed_dim: EmbedDim) -> Self {
        Self {
            variant: ModelVariant::Small,
            vocab_size: 30_528,
            hidden_size: 1024,
            intermediate_size: 4096,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            max_position_embeddings: 8192,
            rope_theta: 160_000.,
            norm_eps: 1e-12,
            activation_fn: Activation::Gelu,
            type_vocab_size: 2,
            scaling_factor: 2.,
            embed_head: embed_dim.config(1024),
            ..Self::default()
        }
    }

    fn head_dim(&self) -> Result<usize> {
        head_dim(
            FAMILY,
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
        )
    }

    /// The longest text, and its rotation.
    fn rotary(&self) -> Result<(usize, Rotary)> {
        let (head_dim, scaling) = (self.head_dim()?, self.scaling_factor);
        if !head_dim.is_multiple_of(2) {
            bail!("{FAMILY} config: heads of size {head_dim} cannot be rotated; the size must be even")
        }
        let mut rotary = Rotary::new(RotaryPairs::Halves, self.rope_theta, head_dim);
        if scaling == 0. {
            return Ok((self.max_position_embeddings, rotary));
        }
        if !(scaling > 0. && scaling.is_finite()) {
            bail!(
                "{FAMILY} config: scaling_factor is {scaling}; it must be positive, or 0 for none"
            )
        }
        let share = scaling.powf(2. / head_dim as f64) as f32;
        rotary.frequencies = inverse_frequencies(self.rope_theta * scaling, head_dim);
        for frequency in &mut rotary.frequencies {
            *frequency /= share;
        }
        let limit = self.max_position_embeddings as f64 * scaling;
        Ok((limit as usize, rotary))
    }

    /// The large model.
    fn decoder(&self, vb: VarBuilder) -> Result<Decoder> {
        let (positions, rotary) = self.rotary()?;
        let spec = LlamaLike {
            family: FAMILY,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: None,
            positions,
            rope_theta: self.rope_theta,
            norm_eps: self.norm_eps,
            activation: self.activation_fn,
            head: Head::None,
        };
        let norm = NormSpec::rms(self.norm_eps);
        let spec = spec.spec_with(vec![rotary], norm, |_, attention, _| {
            attention.qkv_bias = true;
        });
        Decoder::from_vb(spec?, vb)
    }

    /// A layer of the small model.
    fn layer(&self) -> Result<EncoderSpec> {
        let activation = self.activation_fn.try_into()?;
        Ok(EncoderSpec {
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            heads: self.num_attention_heads,
            head_dim: self.head_dim()?,
            // The gate comes second in the file.
            activation: MlpActivation::Joined(activation, Order::Reversed),
            bias: EncoderBiases {
                up: false,
                ..EncoderBiases::all(true)
            },
            norm: NormSpec::layer(self.norm_eps),
            place: NormPlace::After,
            names: EncoderNames {
                qkv: &["attention.qkv_proj"],
                joined: "attention.o_proj",
                mlp: MlpNames {
                    gate: "",
                    up: "mlp.up_gate_proj",
                    down: "mlp.down_proj",
                },
                norms: ["attn_ln", "mlp_ln"],
            },
        })
    }
}

/// The vectors of tokens that the layers begin with.
#[derive(Debug, Clone)]
pub struct Embeddings {
    table: Table,
}

#[derive(Debug, Clone)]
enum Table {
    Large(Embedding),
    Small(encoder::Embeddings),
}

impl Embeddings {
    /// Loads `embed_tokens` of the large model, or of the small one `embeddings.{word_embeddings,token_type_embeddings,LayerNorm}`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (vocab, hidden) = (cfg.vocab_size, cfg.hidden_size);
        let table = match cfg.variant {
            ModelVariant::Large => Table::Large(embedding(vocab, hidden, vb.pp("embed_tokens"))?),
            ModelVariant::Small => Table::Small(small_embeddings(cfg, vb)?),
        };
        Ok(Self { table })
    }
}

fn small_embeddings(cfg: &Config, vb: VarBuilder) -> Result<encoder::Embeddings> {
    let (limit, _) = cfg.rotary()?;
    let spec = EmbeddingsSpec {
        family: FAMILY,
        hidden: cfg.hidden_size,
        vocab: cfg.vocab_size,
        positions: None,
        types: cfg.type_vocab_size,
        limit,
    };
    let vb = vb.pp("embeddings");
    let norm = layer_norm(cfg.hidden_size, cfg.norm_eps, vb.pp("LayerNorm"))?;
    encoder::Embeddings::load(spec, vb, norm)
}

/// From ids (batch, seq) to (batch, seq, hidden_size).
impl Module for Embeddings {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match &self.table {
            Table::Large(table) => table.forward(xs),
            Table::Small(embeddings) => embeddings.forward(xs, None),
        }
    }
}

/// From the tokens of texts to vectors of them.
#[derive(Debug, Clone)]
pub struct Model {
    layers: Layers,
}

#[derive(Debug, Clone)]
enum Layers {
    Large(Box<Decoder>),
    Small(Box<TextEncoder>),
}

impl Model {
    /// Loads what is below `model`, or of the small model below `new`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let layers = match cfg.variant {
            ModelVariant::Large => Layers::Large(Box::new(cfg.decoder(vb)?)),
            ModelVariant::Small => {
                let vb = vb.pp("new");
                let (limit, rotary) = cfg.rotary()?;
                let rotary = RotaryTables::new(&rotary, limit, vb.dtype(), vb.device());
                let layers = cfg.layer()?;
                Layers::Small(Box::new(TextEncoder {
                    family: FAMILY,
                    embeddings: small_embeddings(cfg, vb.clone())?,
                    layers: layers.load_dense(cfg.num_hidden_layers, vb, "encoder.layer")?,
                    positions: EncoderPositions::Rotary(rotary),
                }))
            }
        };
        Ok(Self { layers })
    }

    /// The vectors of the tokens `input_ids`, (batch, seq): (batch, seq, hidden_size). `mask` is 1 where a token may be attended to and 0 where
    /// it is hidden, (batch, seq). The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// If the shapes do not match, there are no tokens or too many, or an id is outside the table (where the device can tell).
    pub fn forward(&mut self, input_ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        check_text(FAMILY, input_ids, usize::MAX)?;
        if mask.dims() != input_ids.dims() {
            bail!(
                "{FAMILY}: the mask is {:?} and input_ids are {:?}; they must have one shape",
                mask.dims(),
                input_ids.dims()
            )
        }
        match &self.layers {
            Layers::Large(decoder) => decoder.encode(input_ids, mask)?.normed(),
            Layers::Small(encoder) => encoder.forward(input_ids, None, Some(mask)),
        }
    }
}

/// The model with the layer that makes a text's vector, which is computed in f32.
#[derive(Debug)]
pub struct EmbeddingModel {
    base_model: Model,
    head: Linear,
}

impl EmbeddingModel {
    /// Loads a [`Model`] from `base_vb`, and `linear` from `embed_vb`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, base_vb: VarBuilder, embed_vb: VarBuilder) -> Result<Self> {
        let EmbedHead {
            in_features,
            out_features,
        } = cfg.embed_head;
        let head = linear(in_features, out_features, embed_vb.pp("linear"))?;
        let bias = head.bias().map(|bias| bias.to_dtype(DType::F32));
        Ok(Self {
            base_model: Model::new(cfg, base_vb)?,
            head: Linear::new(head.weight().to_dtype(DType::F32)?, bias.transpose()?),
        })
    }

    /// The vectors of texts, (batch, out_features) in f32; the arguments are those of [`Model::forward`].
    ///
    /// # Errors
    /// As that.
    pub fn forward(&mut self, input_ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let xs = self.base_model.forward(input_ids, mask)?;
        let mean = mean_of_seen(FAMILY, &xs.to_dtype(DType::F32)?, mask)?;
        self.head.forward(&mean)
    }

    /// As [`forward`](Self::forward), of length 1.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_norm(&mut self, input_ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        l2_normalize(&self.forward(input_ids, mask)?)
    }
}
