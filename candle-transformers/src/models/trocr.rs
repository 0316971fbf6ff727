//! TrOCR, which reads a line of text in an image: [arXiv 2109.10282](https://arxiv.org/abs/2109.10282). Weight names are those of Hugging
//! Face's checkpoints: a [`vit`] below `encoder`, a decoder below `decoder`.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::trocr::{TrOCRConfig, TrOCRModel};
//! use candle_transformers::models::vit;
//! # fn main() -> candle_core::Result<()> {
//! # let vit = vit::Config { hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8, image_size: 32,
//! #     ..vit::Config::microsoft_trocr_base_handwritten() };
//! # let config = TrOCRConfig { vocab_size: 40, d_model: 16, cross_attention_hidden_size: 16, decoder_layers: 1,
//! #     decoder_attention_heads: 2, decoder_ffn_dim: 8, ..TrOCRConfig::default() };
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = TrOCRModel::new(&vit, &config, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, vit.image_size, vit.image_size), DType::F32, &device)?;
//! let encoded = model.encoder().forward(&picture)?;
//! // The decoder keeps what it has seen: each token is given once.
//! let mut token = config.decoder_start_token_id;
//! for position in 0..3 {
//!     let logits = model.decode(&Tensor::new(&[[token]], &device)?, &encoded, position)?;
//!     token = logits.squeeze(0)?.squeeze(0)?.argmax(0)?.to_scalar()?;
//! }
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{layer_norm, Activation, Init, LayerNorm, VarBuilder};
use serde::Deserialize;

use super::vit;
use crate::blocks::seq2seq::{check_sizes, Given, LayerNames, LayerSpec, Positions, TextStack};
use crate::blocks::{at_once, Dense, LinearSpec, Projection, WeightKind, Weights};

const FAMILY: &str = "trocr";
/// Prefix of the decoder's weights.
const DECODER: &str = "decoder.model.decoder";
/// Rows of the table of positions before that of the first.
const FIRST_POSITION: usize = 2;

fn yes() -> bool {
    true
}

/// The fields of a checkpoint's `config.json` below `decoder`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TrOCRConfig {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The size of a token's vector.
    pub d_model: usize,
    /// The size of the encoder's vectors.
    pub cross_attention_hidden_size: usize,
    /// Layers.
    pub decoder_layers: usize,
    /// Heads, which divide `d_model`.
    pub decoder_attention_heads: usize,
    /// The inner size of feed-forward blocks.
    pub decoder_ffn_dim: usize,
    /// Their activation.
    pub activation_function: Activation,
    /// Maximum text length, in tokens.
    pub max_position_embeddings: usize,
    /// Used in training only.
    pub dropout: f64,
    /// Used in training only.
    pub attention_dropout: f64,
    /// Used in training only.
    pub activation_dropout: f64,
    /// The token that the decoder starts with.
    pub decoder_start_token_id: u32,
    /// Used in training only.
    pub init_std: f64,
    /// Used in training only.
    pub decoder_layerdrop: f64,
    /// Not used: the decoder always has a cache.
    pub use_cache: bool,
    /// Whether the vectors of tokens are multiplied with the root of `d_model`.
    pub scale_embedding: bool,
    /// The padding token.
    pub pad_token_id: usize,
    /// The token before a text.
    pub bos_token_id: usize,
    /// The token that ends a text.
    pub eos_token_id: u32,
    /// Not used.
    pub decoder_vocab_size: Option<usize>,
    /// Whether positions have a table, true if not given, or are sines and cosines.
    #[serde(default = "yes")]
    pub use_learned_position_embeddings: bool,
    /// Whether the output layer shares the token table's weight; default: `true`.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
}

/// [microsoft/trocr-base-handwritten](https://huggingface.co/microsoft/trocr-base-handwritten).
impl Default for TrOCRConfig {
    fn default() -> Self {
        Self {
            vocab_size: 50265,
            d_model: 1024,
            cross_attention_hidden_size: 768,
            decoder_layers: 12,
            decoder_attention_heads: 16,
            decoder_ffn_dim: 4096,
            activation_function: Activation::Gelu,
            max_position_embeddings: 512,
            dropout: 0.1,
            attention_dropout: 0.,
            activation_dropout: 0.,
            decoder_start_token_id: 2,
            init_std: 0.02,
            decoder_layerdrop: 0.,
            use_cache: true,
            scale_embedding: false,
            pad_token_id: 1,
            bos_token_id: 0,
            eos_token_id: 2,
            decoder_vocab_size: Some(50265),
            use_learned_position_embeddings: true,
            tie_word_embeddings: true,
        }
    }
}

impl TrOCRConfig {
    fn layer(&self, bias: bool) -> Result<LayerSpec> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            (
                "cross_attention_hidden_size",
                self.cross_attention_hidden_size,
            ),
            ("decoder_layers", self.decoder_layers),
            ("decoder_ffn_dim", self.decoder_ffn_dim),
        ];
        check_sizes(FAMILY, &sizes)?;
        let spec = LayerSpec::bart(
            FAMILY,
            ("d_model", self.d_model),
            ("decoder_attention_heads", self.decoder_attention_heads),
            self.decoder_ffn_dim,
            self.activation_function,
            self.max_position_embeddings,
        )?;
        Ok(LayerSpec {
            source: Some(self.cross_attention_hidden_size),
            bias,
            mlp_bias: bias,
            ..spec
        })
    }
}

/// Sines of all frequencies, then cosines.
fn wave(position: usize, element: usize, size: usize) -> f64 {
    let half = size / 2;
    let last = half.saturating_sub(1).max(1) as f64;
    let angle = |i: usize| position as f64 / 10_000f64.powf(i as f64 / last);
    if element < half {
        angle(element).sin()
    } else {
        angle(element - half).cos()
    }
}

/// From the tokens of a text, and what an encoder returned, to vectors.
#[derive(Debug, Clone)]
pub struct TrOCRDecoder {
    stack: TextStack,
}

impl TrOCRDecoder {
    async fn load(cfg: &TrOCRConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let has = |name: &str| weights.has(&format!("{DECODER}.{name}"));
        let biases = has("layers.0.self_attn.q_proj.bias");
        let normed = has("layernorm_embedding.weight");
        let spec = cfg.layer(biases)?;
        let (hidden, limit) = (cfg.d_model, cfg.max_position_embeddings);
        let tokens = format!("{DECODER}.embed_tokens");
        let table = weights.embedding(&tokens, cfg.vocab_size, hidden).await?;
        let positions = if cfg.use_learned_position_embeddings {
            let name = format!("{DECODER}.embed_positions.weight");
            let rows = limit.saturating_add(FIRST_POSITION);
            let init = Init::Randn {
                mean: 0.,
                stdev: 1.,
            };
            let table = weights.dense(&name, &[rows, hidden], init).await?;
            let first = FIRST_POSITION;
            Positions::Learned { table, first }
        } else if !hidden.is_multiple_of(2) {
            bail!("{FAMILY} config: d_model is {hidden}; it must be even for sinusoidal positions")
        } else {
            // The first position follows the padding token's number.
            Positions::waves(wave, cfg.pad_token_id.saturating_add(1))
        };
        let norm = if normed {
            let name = format!("{DECODER}.layernorm_embedding");
            Some(weights.norm(&name, hidden, spec.norm).await?)
        } else {
            None
        };
        let (count, names) = (cfg.decoder_layers, &LayerNames::BART);
        let (parts, prefix) = ((table, positions), format!("{DECODER}.layers"));
        let stack = TextStack::load(FAMILY, spec, parts, count, weights, names, &prefix);
        Ok(Self {
            stack: TextStack {
                table_scale: cfg.scale_embedding.then_some((hidden as f64).sqrt()),
                norm,
                ..stack.await?
            },
        })
    }

    /// The vectors of the tokens `xs`, (batch, t): (batch, t, d_model).
    ///
    /// - `encoder_xs` is what the encoder returned, (batch, patches, cross_attention_hidden_size); without it, layers do not attend to any.
    ///   Its keys and values are computed once, as long as it is the same tensor. All of it is seen.
    /// - `past_kv_len` is the position of the first token. At 0 a new text begins; otherwise the tokens follow those of the calls before.
    /// - `attn_mask` is added to the scores of tokens: it broadcasts to (t, past_kv_len + t), -infinity hiding what comes later.
    ///
    /// # Errors
    /// If there are no tokens or more than `max_position_embeddings`, the shapes do not match each other or the calls before, or an id is
    /// outside the table (where the device can tell).
    pub fn forward(
        &mut self,
        xs: &Tensor,
        encoder_xs: Option<&Tensor>,
        past_kv_len: usize,
        attn_mask: &Tensor,
    ) -> Result<Tensor> {
        self.stack.forward(&Given {
            added: Some(attn_mask),
            source: encoder_xs,
            ..Given::tokens(xs, past_kv_len)
        })
    }
}

/// From an image to vectors of its patches.
#[derive(Debug, Clone)]
pub struct TrOCREncoder {
    embeddings: vit::Embeddings,
    encoder: vit::Encoder,
    layernorm: LayerNorm,
}

impl TrOCREncoder {
    /// Loads what is below `encoder`: `embeddings`, `encoder` and `layernorm`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &vit::Config, vb: VarBuilder) -> Result<Self> {
        let vb = vb.pp("encoder");
        Ok(Self {
            embeddings: vit::Embeddings::new(cfg, false, vb.pp("embeddings"))?,
            encoder: vit::Encoder::new(cfg, vb.pp("encoder"))?,
            layernorm: layer_norm(cfg.hidden_size, cfg.layer_norm_eps, vb.pp("layernorm"))?,
        })
    }

    /// From images (batch, 3, image_size, image_size) to (batch, 1 + patches, hidden_size).
    ///
    /// # Errors
    /// If the images have another shape.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.embeddings.forward(xs, None, false)?;
        self.layernorm.forward(&self.encoder.forward(&xs)?)
    }
}

/// The decoder with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct TrOCRForCausalLM {
    decoder: TrOCRDecoder,
    output_projection: Projection,
}

impl TrOCRForCausalLM {
    /// Loads what is below `decoder.model.decoder`, and unless `decoder_cfg.tie_word_embeddings` is set, `decoder.output_projection`. Biases
    /// of linear layers and `layernorm_embedding` are loaded where the checkpoint has them.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(decoder_cfg: &TrOCRConfig, vb: VarBuilder) -> Result<Self> {
        Dense::load(vb, |weights| at_once(Self::load(decoder_cfg, weights)))
    }

    async fn load(cfg: &TrOCRConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let decoder = TrOCRDecoder::load(cfg, weights).await?;
        let output_projection = if cfg.tie_word_embeddings {
            decoder.stack.table.tied()
        } else {
            let head = LinearSpec {
                name: "decoder.output_projection".to_string(),
                in_dim: cfg.d_model,
                out_dim: cfg.vocab_size,
                bias: false,
            };
            weights.linear(&head).await?
        };
        Ok(Self {
            decoder,
            output_projection,
        })
    }

    /// The logits of the tokens after each of `xs`, (batch, t): (batch, t, vocab_size). The arguments are those of
    /// [`TrOCRDecoder::forward`].
    ///
    /// # Errors
    /// As that.
    pub fn forward(
        &mut self,
        xs: &Tensor,
        encoder_xs: Option<&Tensor>,
        past_kv_len: usize,
        attn_mask: &Tensor,
    ) -> Result<Tensor> {
        let xs = self
            .decoder
            .forward(xs, encoder_xs, past_kv_len, attn_mask)?;
        self.output_projection.forward(&xs)
    }
}

/// An encoder of images and a decoder with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct TrOCRModel {
    encoder: TrOCREncoder,
    decoder: TrOCRForCausalLM,
}

impl TrOCRModel {
    /// Loads what [`TrOCREncoder::new`] and [`TrOCRForCausalLM::new`] do.
    ///
    /// # Errors
    /// As these.
    pub fn new(
        encoder_cfg: &vit::Config,
        decoder_cfg: &TrOCRConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        Ok(Self {
            encoder: TrOCREncoder::new(encoder_cfg, vb.clone())?,
            decoder: TrOCRForCausalLM::new(decoder_cfg, vb)?,
        })
    }

    /// The encoder.
    pub fn encoder(&mut self) -> &mut TrOCREncoder {
        &mut self.encoder
    }

    /// The decoder.
    pub fn decoder(&mut self) -> &mut TrOCRForCausalLM {
        &mut self.decoder
    }

    /// The logits of the tokens after each of `xs`, (batch, t): (batch, t, vocab_size). A token sees those before it; `encoder_xs` and
    /// `past_kv_len` are those of [`TrOCRDecoder::forward`].
    ///
    /// # Errors
    /// As that.
    pub fn decode(
        &mut self,
        xs: &Tensor,
        encoder_xs: &Tensor,
        past_kv_len: usize,
    ) -> Result<Tensor> {
        let xs = self.decoder.decoder.stack.forward(&Given {
            source: Some(encoder_xs),
            ..Given::tokens(xs, past_kv_len)
        })?;
        self.decoder.output_projection.forward(&xs)
    }

    /// Forgets the text that was written.
    pub fn reset_kv_cache(&mut self) {
        self.decoder.decoder.stack.reset();
    }
}
