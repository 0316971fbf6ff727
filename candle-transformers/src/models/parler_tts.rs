//! Parler-TTS, which speaks a text in the voice that another text describes: [arXiv 2402.01912](https://arxiv.org/abs/2402.01912). Weight
//! names are those of `parler-tts/parler-tts-mini-v1` and `parler-tts/parler-tts-large-v1` on the Hugging Face Hub.
//!
//! A [`t5`] encoder reads the description. In the decoder, the prompt, which is the text to speak, precedes the tokens of sound. The
//! decoder generates one token per codebook at a time, each further codebook delayed by one more step. A [`dac`] turns the tokens into
//! sound.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::parler_tts::{Decoder, DecoderConfig};
//! # fn main() -> candle_core::Result<()> {
//! let config: DecoderConfig = serde_json::from_str(
//!     r#"{"vocab_size": 8, "max_position_embeddings": 32, "num_hidden_layers": 1, "ffn_dim": 32, "num_attention_heads": 2,
//!         "activation_function": "gelu", "hidden_size": 16, "scale_embedding": false, "num_codebooks": 3, "pad_token_id": 6,
//!         "bos_token_id": 7, "eos_token_id": 6, "tie_word_embeddings": false, "rope_embeddings": false, "rope_theta": 10000.0}"#,
//! ).map_err(candle_core::Error::wrap)?;
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut decoder = Decoder::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let described = Tensor::zeros((1, 5, 16), DType::F32, &device)?;
//! let tokens = Tensor::new(&[[[7u32], [7], [7]]], &device)?;
//! let logits = decoder.forward(&tokens, None, None, &described, None, 0)?;
//! assert_eq!((logits.len(), logits[0].dims()), (3, &[1, 1, 8][..]));
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Device, Module, Result, Tensor};
use candle_nn::{embedding, linear, Activation, Embedding, Init, Linear, VarBuilder};
use serde::Deserialize;

use super::{dac, t5};
use crate::blocks::codebooks::{CodebookEmbeddings, CodebookHeads};
use crate::blocks::encoder::{head_dim, NormPlace};
use crate::blocks::seq2seq::{
    check_sizes, check_source, load_layers, Layer, LayerNames, LayerSpec, MlpActivation, Source,
    Visible,
};
use crate::blocks::{at_once, Norm, NormSpec, Weights};
use crate::generation::LogitsProcessor;

const FAMILY: &str = "parler_tts";
/// Prefix of the decoder's weights, except the layers over its tokens.
const DECODER: &str = "model.decoder";

/// The fields of a checkpoint's `config.json` below `decoder`.
#[derive(Debug, Clone, Deserialize)]
pub struct DecoderConfig {
    /// Tokens of a codebook that are written. One more is read.
    pub vocab_size: usize,
    /// Maximum number of positions, of prompt and sound.
    pub max_position_embeddings: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// The inner size of feed-forward blocks.
    pub ffn_dim: usize,
    /// Query heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Key and value heads, which divide the query heads; `None` for the number of query heads.
    pub num_key_value_heads: Option<usize>,
    /// Key and value heads of the attention to the description; `None` for `num_key_value_heads`.
    pub num_cross_attention_key_value_heads: Option<usize>,
    /// The activation of feed-forward blocks.
    pub activation_function: Activation,
    /// The size of a token's vector.
    pub hidden_size: usize,
    /// Not used.
    pub scale_embedding: bool,
    /// Codebooks.
    pub num_codebooks: usize,
    /// The token of padding; for the caller.
    pub pad_token_id: usize,
    /// The token before a sequence; for the caller.
    pub bos_token_id: usize,
    /// The token that ends a sequence; for the caller.
    pub eos_token_id: usize,
    /// Not used: the layers over the tokens have separate weights.
    pub tie_word_embeddings: bool,
    /// Whether positions are rotations. Only `false` is supported, a table of positions.
    pub rope_embeddings: bool,
    /// Not used.
    pub rope_theta: f64,
}

/// The fields of a checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// The token that each codebook starts with.
    pub decoder_start_token_id: u32,
    /// The token after the end of a codebook's sound.
    pub pad_token_id: u32,
    /// The decoder, which generates the tokens of sound.
    pub decoder: DecoderConfig,
    /// The encoder of the description.
    pub text_encoder: t5::Config,
    /// Tokens of the prompt.
    pub vocab_size: usize,
    /// The codec, which turns tokens into sound.
    pub audio_encoder: dac::Config,
}

/// The heads of an attention: of positions to those before them, or to the description.
#[derive(Debug, Clone)]
pub struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    /// The heads that a configuration asks for, with the name that it has for those of keys.
    fn new(cfg: &DecoderConfig, (name, kv_heads): (&str, usize)) -> Result<Self> {
        let heads = cfg.num_attention_heads;
        let head_dim = head_dim(
            FAMILY,
            ("hidden_size", cfg.hidden_size),
            ("num_attention_heads", heads),
        )?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            bail!("{FAMILY} config: {heads} num_attention_heads cannot be grouped over {name} {kv_heads}; it must divide them")
        }
        Ok(Self {
            heads,
            kv_heads,
            head_dim,
        })
    }
}

impl DecoderConfig {
    fn layer(&self) -> Result<LayerSpec> {
        if self.rope_embeddings {
            bail!("{FAMILY} config: rope_embeddings is true, which is not supported; only position tables are")
        }
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("num_hidden_layers", self.num_hidden_layers),
            ("ffn_dim", self.ffn_dim),
            ("num_codebooks", self.num_codebooks),
        ];
        check_sizes(FAMILY, &sizes)?;
        let own = self.num_key_value_heads.unwrap_or(self.num_attention_heads);
        let cross = self.num_cross_attention_key_value_heads.unwrap_or(own);
        let own = Attention::new(self, ("num_key_value_heads", own))?;
        let cross = Attention::new(self, ("num_cross_attention_key_value_heads", cross))?;
        Ok(LayerSpec {
            hidden: self.hidden_size,
            heads: own.heads,
            kv_heads: [own.kv_heads, cross.kv_heads],
            head_dim: own.head_dim,
            scale: 1. / (own.head_dim as f64).sqrt(),
            source: Some(self.hidden_size),
            inner: self.ffn_dim,
            activation: MlpActivation::Plain(self.activation_function),
            bias: false,
            mlp_bias: false,
            norm: NormSpec::layer(1e-5),
            place: NormPlace::Before,
            limit: self.max_position_embeddings,
        })
    }
}

/// A layer of the decoder: attention to the positions before, attention to the description, and a feed-forward block.
#[derive(Debug, Clone)]
pub struct DecoderLayer {
    layer: Layer,
}

/// From the tokens of several codebooks to the logits of the next ones.
#[derive(Debug, Clone)]
pub struct Decoder {
    embed_tokens: CodebookEmbeddings,
    /// (max_position_embeddings, hidden_size).
    embed_positions: Tensor,
    layers: Vec<DecoderLayer>,
    layer_norm: Norm,
    lm_heads: CodebookHeads,
    spec: LayerSpec,
}

impl Decoder {
    /// Loads what is below `model.decoder`, and `lm_heads`.
    ///
    /// # Errors
    /// If the configuration contradicts itself or asks for rotations, or a weight is missing or has another shape than the configuration
    /// says.
    pub fn new(cfg: &DecoderConfig, vb: VarBuilder) -> Result<Self> {
        let (dtype, device, mut vb) = (vb.dtype(), vb.device().clone(), vb);
        at_once(Self::load(cfg, &mut Weights::new(&mut vb, dtype, &device)))
    }

    async fn load(cfg: &DecoderConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let spec = cfg.layer()?;
        let (hidden, dtype) = (cfg.hidden_size, weights.dtype());
        let read = vec![cfg.vocab_size.saturating_add(1); cfg.num_codebooks];
        let written = vec![cfg.vocab_size; cfg.num_codebooks];
        let tokens = format!("{DECODER}.embed_tokens");
        let embed_tokens = CodebookEmbeddings::load(FAMILY, &read, hidden, weights, &tokens);
        let embed_tokens = embed_tokens.await?;
        let positions = format!("{DECODER}.embed_positions.weights");
        let shape = [cfg.max_position_embeddings, hidden];
        let embed_positions = weights.dense(&positions, &shape, Init::Const(0.)).await?;
        let (count, prefix) = (cfg.num_hidden_layers, format!("{DECODER}.layers"));
        let layers = load_layers(&spec, count, weights, &LayerNames::BART, &prefix).await?;
        let norm = format!("{DECODER}.layer_norm");
        let stream = spec.stream_dtype(dtype);
        Ok(Self {
            embed_tokens,
            embed_positions,
            layers: layers
                .into_iter()
                .map(|layer| DecoderLayer { layer })
                .collect(),
            layer_norm: weights.norm_as(stream, &norm, hidden, spec.norm).await?,
            lm_heads: CodebookHeads::load(&written, hidden, weights, "lm_heads").await?,
            spec,
        })
    }

    /// The logits of what follows each position: for each codebook (batch, positions, vocab_size).
    ///
    /// - `input_ids` are the tokens of sound, (batch, num_codebooks, t).
    /// - `prompt_hidden_states` precede them: (batch, prompt, hidden_size), so that there are `prompt + t` positions.
    /// - `attention_mask` is added to the scores of the positions: it broadcasts to (batch, heads, positions, those of the calls before and
    ///   these), -infinity hiding one from another. Without it every position of a call sees all of them, also those after it.
    /// - `encoder_xs` is the description, (batch, keys, hidden_size). Its keys and values are computed once, as long as it is the same
    ///   tensor. `encoder_attention_mask` is added to their scores: it broadcasts to (batch, heads, positions, keys).
    /// - `seqlen_offset` is the index of the first position. The positions follow those of the calls since the last
    ///   [`clear_kv_cache`](Self::clear_kv_cache), whatever their index is.
    ///
    /// # Errors
    /// If there are no tokens, the positions do not fit below `max_position_embeddings`, the shapes do not match each other or the calls
    /// before, or an id is outside the table (where the device can tell).
    pub fn forward(
        &mut self,
        input_ids: &Tensor,
        prompt_hidden_states: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
        encoder_xs: &Tensor,
        encoder_attention_mask: Option<&Tensor>,
        seqlen_offset: usize,
    ) -> Result<Vec<Tensor>> {
        let mask = attention_mask.map(added).transpose()?;
        let source_mask = encoder_attention_mask.map(added).transpose()?;
        let visible = Visible {
            bias: mask.as_ref(),
            causal: false,
            kept: true,
            rotation: None,
        };
        let source = Source {
            hidden: encoder_xs,
            bias: source_mask.as_ref(),
        };
        let xs = self.positions(input_ids, prompt_hidden_states, seqlen_offset)?;
        let xs = self.run(xs, &visible, &source)?;
        self.lm_heads.forward(&xs)
    }

    /// Forgets the positions of the calls before, and the description.
    pub fn clear_kv_cache(&mut self) {
        for DecoderLayer { layer } in &mut self.layers {
            layer.reset();
        }
    }

    /// The vectors of a call's positions, (batch, positions, hidden_size).
    fn positions(&self, ids: &Tensor, prompt: Option<&Tensor>, start: usize) -> Result<Tensor> {
        let books = self.embed_tokens.count();
        if ids.rank() == 3 && ids.dim(1)? != books {
            bail!(
                "{FAMILY}: the tokens are {:?}; the model has {books} codebooks; they must be (batch, {books}, t)",
                ids.dims()
            )
        }
        let mut xs = self.embed_tokens.forward(ids)?;
        if let Some(prompt) = prompt {
            let (b, hidden) = (xs.dim(0)?, self.spec.hidden);
            match *prompt.dims() {
                [of, _, size] if of == b && size == hidden => {}
                _ => bail!(
                    "{FAMILY}: the prompt's vectors are {:?}; for a batch of {b} they must be ({b}, prompt, {hidden})",
                    prompt.dims()
                ),
            }
            xs = Tensor::cat(&[prompt, &xs], 1)?;
        }
        let (count, limit) = (xs.dim(1)?, self.spec.limit);
        if start.checked_add(count).is_none_or(|end| end > limit) {
            bail!(
                "{FAMILY}: {count} positions from {start} exceed the model's max_position_embeddings of {limit}; shorten the \
                 prompt or generate less"
            )
        }
        xs.broadcast_add(&self.embed_positions.narrow(0, start, count)?)
    }

    /// From the vectors of positions to those that the heads take.
    fn run(&mut self, xs: Tensor, visible: &Visible, source: &Source) -> Result<Tensor> {
        let dtype = xs.dtype();
        check_source(FAMILY, source.hidden, xs.dim(0)?, self.spec.hidden)?;
        let mut xs = xs.to_dtype(self.spec.stream_dtype(dtype))?;
        for DecoderLayer { layer } in &mut self.layers {
            xs = layer.forward(xs, visible, Some(source))?;
        }
        self.layer_norm.forward(&xs)?.to_dtype(dtype)
    }

    /// The logits of what follows the last position, a row for each codebook, (num_codebooks, vocab_size), where positions see those before
    /// them; of a batch of one. On the host: a token is drawn from each row.
    fn next_logits(
        &mut self,
        ids: &Tensor,
        prompt: Option<&Tensor>,
        description: &Tensor,
        start: usize,
    ) -> Result<Tensor> {
        let visible = Visible {
            bias: None,
            causal: true,
            kept: true,
            rotation: None,
        };
        let source = Source {
            hidden: description,
            bias: None,
        };
        let xs = self.positions(ids, prompt, start)?;
        let xs = self.run(xs, &visible, &source)?;
        let last = xs.narrow(1, xs.dim(1)? - 1, 1)?.contiguous()?;
        let logits = self.lm_heads.forward(&last)?;
        let rows = Tensor::cat(&logits, 1)?.squeeze(0)?;
        rows.to_device(&Device::Cpu)
    }
}

/// A mask as attention takes it, with four dimensions.
fn added(mask: &Tensor) -> Result<Tensor> {
    let mut mask = mask.clone();
    while mask.rank() < 4 {
        mask = mask.unsqueeze(0)?;
    }
    Ok(mask)
}

/// The encoder of the description, the decoder of the tokens of sound, and the codec.
#[derive(Debug, Clone)]
pub struct Model {
    /// The vectors of the prompt's tokens.
    pub embed_prompts: Embedding,
    /// Projection of the description's vectors to the size of the decoder's, if the sizes differ.
    pub enc_to_dec_proj: Option<Linear>,
    /// The decoder, which generates the tokens of sound.
    pub decoder: Decoder,
    /// The encoder of the description.
    pub text_encoder: t5::T5EncoderModel,
    /// The token that each codebook starts with.
    pub decoder_start_token_id: u32,
    /// The token after the end of a codebook's sound.
    pub pad_token_id: u32,
    /// The codec, which turns tokens into sound.
    pub audio_encoder: dac::Model,
}

impl Model {
    /// Loads what is below `text_encoder`, `decoder`, `embed_prompts` and `audio_encoder.model`, and if the encoder's vectors have another
    /// size than the decoder's, `enc_to_dec_proj`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (read, hidden) = (cfg.text_encoder.d_model, cfg.decoder.hidden_size);
        check_sizes(FAMILY, &[("vocab_size", cfg.vocab_size)])?;
        Ok(Self {
            text_encoder: t5::T5EncoderModel::load(vb.pp("text_encoder"), &cfg.text_encoder)?,
            decoder: Decoder::new(&cfg.decoder, vb.pp("decoder"))?,
            embed_prompts: embedding(cfg.vocab_size, hidden, vb.pp("embed_prompts"))?,
            enc_to_dec_proj: if read == hidden {
                None
            } else {
                Some(linear(read, hidden, vb.pp("enc_to_dec_proj"))?)
            },
            decoder_start_token_id: cfg.decoder_start_token_id,
            pad_token_id: cfg.pad_token_id,
            audio_encoder: dac::Model::new(&cfg.audio_encoder, vb.pp("audio_encoder.model"))?,
        })
    }

    /// The tokens of sound that speak `prompt_tokens`, (1, prompt), in the voice of `description_tokens`, (1, description): a u32 tensor
    /// (num_codebooks, frames) on the host, for [`dac::Model::decode_codes`].
    ///
    /// The first codebook has its first token at the first step, each further one a step after the one before. A book ends when it draws
    /// `pad_token_id`, the whole when all have, or after `max_steps`; books are cut to the length of the shortest. `lp` draws a step's
    /// tokens in the order of the books; the logits of a step are read back at once.
    ///
    /// # Errors
    /// If there is not one prompt and one description, with tokens in each, more positions are reached than the decoder has, an id is
    /// outside its table (where the device can tell), or `lp` cannot draw.
    pub fn generate(
        &mut self,
        prompt_tokens: &Tensor,
        description_tokens: &Tensor,
        lp: LogitsProcessor,
        max_steps: usize,
    ) -> Result<Tensor> {
        self.generate_with(prompt_tokens, description_tokens, lp, max_steps, |_| Ok(()))
    }

    /// As [`generate`](Self::generate), and calls `on_step` with the number of steps after each of them. Its error ends the generation. Not
    /// in Candle's interface.
    ///
    /// # Errors
    /// Those of [`generate`](Self::generate), and of `on_step`.
    pub fn generate_with(
        &mut self,
        prompt_tokens: &Tensor,
        description_tokens: &Tensor,
        mut lp: LogitsProcessor,
        max_steps: usize,
        mut on_step: impl FnMut(usize) -> Result<()>,
    ) -> Result<Tensor> {
        for (name, ids) in [
            ("prompt", prompt_tokens),
            ("description", description_tokens),
        ] {
            match *ids.dims() {
                [1, t] if t > 0 => {}
                _ => bail!(
                    "{FAMILY}: the {name}'s tokens are {:?}; they must be (1, t), with at least one",
                    ids.dims()
                ),
            }
        }
        self.decoder.clear_kv_cache();
        let mut described = self.text_encoder.forward(description_tokens)?;
        if let Some(proj) = &self.enc_to_dec_proj {
            described = proj.forward(&described)?;
        }
        let prompt = self.embed_prompts.forward(prompt_tokens)?;
        let spoken = prompt.dim(1)?;
        let books = self.decoder.embed_tokens.count();
        let (start, pad) = (self.decoder_start_token_id, self.pad_token_id);

        let mut tokens = vec![start; books];
        let mut sound: Vec<Vec<u32>> = vec![Vec::new(); books];
        for step in 0..max_steps {
            let ids = Tensor::from_slice(&tokens, (1, books, 1), prompt_tokens.device())?;
            let (before, position) = match step {
                0 => (Some(&prompt), 0),
                _ => (None, spoken + step),
            };
            let logits = self
                .decoder
                .next_logits(&ids, before, &described, position)?;
            for (book, token) in tokens.iter_mut().enumerate().take(step + 1) {
                if *token != pad {
                    *token = lp.sample(&logits.get(book)?)?;
                }
            }
            if tokens.iter().all(|token| *token == pad) {
                break;
            }
            for (sound, token) in sound.iter_mut().zip(&tokens) {
                if ![start, pad].contains(token) {
                    sound.push(*token);
                }
            }
            on_step(step + 1)?;
        }
        let frames = sound.iter().map(Vec::len).min().unwrap_or(0);
        let sound = sound.iter().flat_map(|book| &book[..frames]).copied();
        Tensor::from_vec(sound.collect::<Vec<_>>(), (books, frames), &Device::Cpu)
    }
}
