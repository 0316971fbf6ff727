//! Marian, translation of text: [ACL P18-4020](https://aclanthology.org/P18-4020/). Weight names are those of Hugging Face's checkpoints, the
//! models of OPUS-MT.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::marian::{Config, MTModel};
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { vocab_size: 40, decoder_vocab_size: Some(40), d_model: 16, encoder_layers: 1, decoder_layers: 1,
//! #     encoder_ffn_dim: 8, decoder_ffn_dim: 8, encoder_attention_heads: 2, decoder_attention_heads: 2,
//! #     decoder_start_token_id: 39, ..Config::opus_mt_fr_en() };
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = MTModel::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let encoded = model.encoder().forward(&Tensor::new(&[[13u32, 7, 9, 0]], &device)?, 0)?;
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
use candle_nn::{Activation, Linear, VarBuilder};
use serde::Deserialize;

use crate::blocks::seq2seq::{check_sizes, Given, LayerNames, LayerSpec, Positions, TextStack};
use crate::blocks::{at_once, Dense, Projection, TokenEmbedding, WeightKind, Weights};

const FAMILY: &str = "marian";

/// The fields of a checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Tokens that are written; `None` for `vocab_size`.
    pub decoder_vocab_size: Option<usize>,
    /// Maximum length, in tokens, of the text read and of the text generated.
    pub max_position_embeddings: usize,
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// The inner size of its feed-forward blocks.
    pub encoder_ffn_dim: usize,
    /// Its heads, which divide `d_model`.
    pub encoder_attention_heads: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// The inner size of its feed-forward blocks.
    pub decoder_ffn_dim: usize,
    /// Its heads, which divide `d_model`.
    pub decoder_attention_heads: usize,
    /// Not used: the decoder always has a cache.
    pub use_cache: bool,
    /// Not used: the model always has an encoder and a decoder.
    pub is_encoder_decoder: bool,
    /// The activation of feed-forward blocks.
    pub activation_function: Activation,
    /// The size of a token's vector.
    pub d_model: usize,
    /// The token that the decoder starts with.
    pub decoder_start_token_id: u32,
    /// Whether the vectors of tokens are multiplied with the root of `d_model`.
    pub scale_embedding: bool,
    /// The padding token.
    pub pad_token_id: u32,
    /// The token that ends a text.
    pub eos_token_id: u32,
    /// The token that ends a text that is too long; for the caller.
    pub forced_eos_token_id: u32,
    /// Whether encoder and decoder share one token table.
    pub share_encoder_decoder_embeddings: bool,
}

impl Config {
    /// A model of OPUS-MT with `vocab` tokens; the last one is padding.
    fn opus(vocab: usize) -> Self {
        Self {
            vocab_size: vocab,
            decoder_vocab_size: Some(vocab),
            max_position_embeddings: 512,
            encoder_layers: 6,
            encoder_ffn_dim: 2048,
            encoder_attention_heads: 8,
            decoder_layers: 6,
            decoder_ffn_dim: 2048,
            decoder_attention_heads: 8,
            use_cache: true,
            is_encoder_decoder: true,
            activation_function: Activation::Swish,
            d_model: 512,
            decoder_start_token_id: vocab as u32 - 1,
            scale_embedding: true,
            pad_token_id: vocab as u32 - 1,
            eos_token_id: 0,
            forced_eos_token_id: 0,
            share_encoder_decoder_embeddings: true,
        }
    }

    /// [Helsinki-NLP/opus-mt-tc-big-fr-en](https://huggingface.co/Helsinki-NLP/opus-mt-tc-big-fr-en).
    pub fn opus_mt_tc_big_fr_en() -> Self {
        Self {
            max_position_embeddings: 1024,
            encoder_ffn_dim: 4096,
            encoder_attention_heads: 16,
            decoder_ffn_dim: 4096,
            decoder_attention_heads: 16,
            activation_function: Activation::Relu,
            d_model: 1024,
            eos_token_id: 43311,
            forced_eos_token_id: 43311,
            ..Self::opus(53017)
        }
    }

    /// [Helsinki-NLP/opus-mt-fr-en](https://huggingface.co/Helsinki-NLP/opus-mt-fr-en).
    pub fn opus_mt_fr_en() -> Self {
        Self::opus(59514)
    }

    /// [Helsinki-NLP/opus-mt-en-zh](https://huggingface.co/Helsinki-NLP/opus-mt-en-zh).
    pub fn opus_mt_en_zh() -> Self {
        Self::opus(65001)
    }

    /// [Helsinki-NLP/opus-mt-en-hi](https://huggingface.co/Helsinki-NLP/opus-mt-en-hi).
    pub fn opus_mt_en_hi() -> Self {
        Self::opus(61950)
    }

    /// [Helsinki-NLP/opus-mt-en-es](https://huggingface.co/Helsinki-NLP/opus-mt-en-es).
    pub fn opus_mt_en_es() -> Self {
        Self::opus(65001)
    }

    /// [Helsinki-NLP/opus-mt-en-fr](https://huggingface.co/Helsinki-NLP/opus-mt-en-fr).
    pub fn opus_mt_en_fr() -> Self {
        Self::opus(59514)
    }

    /// [Helsinki-NLP/opus-mt-en-ru](https://huggingface.co/Helsinki-NLP/opus-mt-en-ru).
    pub fn opus_mt_en_ru() -> Self {
        Self::opus(62518)
    }

    /// A layer, of the decoder or of the encoder.
    fn layer(&self, decoder: bool) -> Result<LayerSpec> {
        let (layers, heads, inner) = match decoder {
            true => (
                ("decoder_layers", self.decoder_layers),
                ("decoder_attention_heads", self.decoder_attention_heads),
                ("decoder_ffn_dim", self.decoder_ffn_dim),
            ),
            false => (
                ("encoder_layers", self.encoder_layers),
                ("encoder_attention_heads", self.encoder_attention_heads),
                ("encoder_ffn_dim", self.encoder_ffn_dim),
            ),
        };
        check_sizes(FAMILY, &[("vocab_size", self.vocab_size), layers, inner])?;
        let hidden = self.d_model;
        if !hidden.is_multiple_of(2) {
            bail!("{FAMILY} config: d_model is {hidden}; it must be even for sinusoidal positions")
        }
        let (activation, limit) = (self.activation_function, self.max_position_embeddings);
        let hidden = ("d_model", hidden);
        Ok(LayerSpec {
            source: decoder.then_some(self.d_model),
            ..LayerSpec::bart(FAMILY, hidden, heads, inner.1, activation, limit)?
        })
    }
}

/// Sines of all frequencies, then cosines.
fn wave(position: usize, element: usize, size: usize) -> f64 {
    let half = size / 2;
    let angle = |i: usize| position as f64 / 10_000f64.powf(2. * i as f64 / size as f64);
    if element < half {
        angle(element).sin()
    } else {
        angle(element - half).cos()
    }
}

async fn load_stack(
    config: &Config,
    decoder: bool,
    table: &TokenEmbedding,
    weights: &mut Weights<'_>,
) -> Result<TextStack> {
    let spec = config.layer(decoder)?;
    let (prefix, count) = if decoder {
        ("model.decoder.layers", config.decoder_layers)
    } else {
        ("model.encoder.layers", config.encoder_layers)
    };
    let parts = (table.clone(), Positions::waves(wave, 0));
    let names = &LayerNames::BART;
    let size = config.d_model as f64;
    Ok(TextStack {
        table_scale: config.scale_embedding.then_some(size.sqrt()),
        ..TextStack::load(FAMILY, spec, parts, count, weights, names, prefix).await?
    })
}

/// From the tokens of a text to vectors.
#[derive(Debug, Clone)]
pub struct Encoder {
    stack: TextStack,
}

impl Encoder {
    /// The vectors of the tokens `xs`, (batch, seq): (batch, seq, d_model). The first has the position `past_kv_len`, which is 0. All
    /// tokens are seen, padding too.
    ///
    /// # Errors
    /// If there are no tokens or more than `max_position_embeddings`, or an id is outside the table (where the device can tell).
    pub fn forward(&mut self, xs: &Tensor, past_kv_len: usize) -> Result<Tensor> {
        self.stack.forward(&Given::tokens(xs, past_kv_len))
    }

    /// As [`forward`](Self::forward) from position 0, with a mask: `attention_mask` is (batch, seq), 1 where a token may be attended to and
    /// 0 where it is hidden. The vectors of hidden tokens mean nothing.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and if the shapes do not match.
    pub fn forward_masked(
        &mut self,
        xs: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.stack.forward(&Given {
            mask: attention_mask,
            ..Given::tokens(xs, 0)
        })
    }

    /// Changes nothing: an encoder keeps no tokens.
    pub fn reset_kv_cache(&mut self) {}
}

/// From the tokens of a text that is written, and what an encoder returned, to vectors.
#[derive(Debug, Clone)]
pub struct Decoder {
    stack: TextStack,
}

impl Decoder {
    /// The vectors of the tokens `xs`, (batch, t): (batch, t, d_model).
    ///
    /// - `encoder_xs` is what the encoder returned for the text that is read, (batch, seq, d_model); without it, layers do not attend to any.
    ///   Its keys and values are computed once, as long as it is the same tensor.
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

    /// Forgets the text that was written.
    pub fn reset_kv_cache(&mut self) {
        self.stack.reset();
    }
}

/// An encoder and a decoder with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct MTModel {
    encoder: Encoder,
    decoder: Decoder,
    head: Projection,
}

impl MTModel {
    /// Loads `final_logits_bias`, `model.shared` and what is below `model.encoder.layers` and `model.decoder.layers`. Where
    /// `cfg.share_encoder_decoder_embeddings` is not set, `model.{encoder,decoder}.embed_tokens` instead of `model.shared`. The layer
    /// over the tokens is `lm_head.weight` where the file has it, else the decoder's table.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        Dense::load(vb, |weights| at_once(Self::load(cfg, weights)))
    }

    async fn load(cfg: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        let (vocab, size) = (cfg.vocab_size, cfg.d_model);
        let written = cfg.decoder_vocab_size.unwrap_or(vocab);
        let init = candle_nn::Init::Const(0.);
        let bias = weights
            .dense("final_logits_bias", &[1, written], init)
            .await?;
        let is_shared = cfg.share_encoder_decoder_embeddings;
        if is_shared && written != vocab {
            bail!(
                "{FAMILY} config: decoder_vocab_size is {written} and vocab_size {vocab}, but share_encoder_decoder_embeddings is set"
            );
        }
        let (read, write) = if is_shared {
            let shared = weights.embedding("model.shared", vocab, size).await?;
            (shared.clone(), shared)
        } else {
            let read = "model.encoder.embed_tokens";
            let write = "model.decoder.embed_tokens";
            (
                weights.embedding(read, vocab, size).await?,
                weights.embedding(write, written, size).await?,
            )
        };
        let own = "lm_head.weight";
        let table = match write.dense() {
            // Files of models that do not share the table; in others it is the table once more.
            _ if weights.has(own) => weights.dense(own, &[written, size], init).await?,
            Some(table) => table.clone(),
            None => bail!("{FAMILY}: the token embedding is quantised, which is not supported"),
        };
        Ok(Self {
            head: Linear::new(table, Some(bias.squeeze(0)?)).into(),
            encoder: Encoder {
                stack: load_stack(cfg, false, &read, weights).await?,
            },
            decoder: Decoder {
                stack: load_stack(cfg, true, &write, weights).await?,
            },
        })
    }

    /// The encoder.
    pub fn encoder(&mut self) -> &mut Encoder {
        &mut self.encoder
    }

    /// The decoder, without the layer over the tokens.
    pub fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// The logits of the tokens after each of `xs`, (batch, t): (batch, t, vocab). A token sees those before it; `encoder_xs` and
    /// `past_kv_len` are those of [`Decoder::forward`].
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn decode(
        &mut self,
        xs: &Tensor,
        encoder_xs: &Tensor,
        past_kv_len: usize,
    ) -> Result<Tensor> {
        self.decode_masked(xs, encoder_xs, past_kv_len, None)
    }

    /// As [`decode`](Self::decode), with the mask that [`Encoder::forward_masked`] was given.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn decode_masked(
        &mut self,
        xs: &Tensor,
        encoder_xs: &Tensor,
        past_kv_len: usize,
        encoder_attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let xs = self.decoder.stack.forward(&Given {
            source: Some(encoder_xs),
            source_mask: encoder_attention_mask,
            ..Given::tokens(xs, past_kv_len)
        })?;
        self.head.forward(&xs)
    }

    /// Forgets the text that was written.
    pub fn reset_kv_cache(&mut self) {
        self.decoder.reset_kv_cache();
    }
}
