//! Moonshine, a model of speech that takes sound as it is and as long as it is: [arXiv 2410.15608](https://arxiv.org/abs/2410.15608).
//!
//! Weights and `config.json` are those of Transformers, as of
//! [UsefulSensors/moonshine-tiny](https://huggingface.co/UsefulSensors/moonshine-tiny).
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::moonshine::{Config, Moonshine};
//!
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { vocab_size: 8, hidden_size: 16, intermediate_size: 16, encoder_num_hidden_layers: 1,
//! #     decoder_num_hidden_layers: 1, ..Config::default() };
//! // A real model: its config.json, and VarBuilder::from_mmaped_safetensors.
//! let mut model = Moonshine::new(&config, VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! // Samples at 16 kHz, from -1 to 1; split recordings of more than 30 s.
//! let text = model.transcribe(&[0.; 16_000])?;
//! println!("{:?}", text.tokens);
//! # Ok(())
//! # }
//! ```

mod config;
mod encoder;
mod text;

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

pub use config::{Config, RopeParameters};
pub use encoder::{Encoder, MIN_SAMPLES};
pub use text::{Text, TOKENS_PER_SECOND};

use crate::blocks::seq2seq::{AttentionNames, Given, LayerNames, Positions, TextStack};
use crate::blocks::{at_once, Norm, Projection, RotaryTables, Weights};

const FAMILY: &str = "moonshine";

/// Samples a second, in Hz.
pub const SAMPLE_RATE: usize = 16_000;

const NAMES: LayerNames = LayerNames {
    attention: encoder::ATTENTION,
    cross: AttentionNames {
        q: "encoder_attn.q_proj",
        k: "encoder_attn.k_proj",
        v: "encoder_attn.v_proj",
        output: "encoder_attn.o_proj",
        norm: "post_attention_layernorm",
    },
    up: "mlp.fc1",
    gate: "",
    down: "mlp.fc2",
    mlp_norm: "final_layernorm",
};

/// An encoder of sound and a decoder of text.
#[derive(Debug, Clone)]
pub struct Moonshine {
    encoder: Encoder,
    decoder: TextStack,
    norm: Norm,
    head: Projection,
    config: Config,
}

impl Moonshine {
    /// Loads what is below `model.encoder` and `model.decoder`. The layer over the tokens is their table, or `proj_out.weight` where
    /// `config.tie_word_embeddings` is not set.
    ///
    /// # Errors
    /// The configuration contradicts itself, or a weight is missing or has another shape than it says.
    pub fn new(config: &Config, vb: VarBuilder) -> Result<Self> {
        let (dtype, device, mut vb) = (vb.dtype(), vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, dtype, &device);
        at_once(Self::load(config, &mut weights))
    }

    async fn load(config: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        let encoder = Encoder::load(config, weights).await?;
        let spec = config.layer(true)?;
        let (hidden, vocab) = (spec.hidden, config.vocab_size);
        let table = "model.decoder.embed_tokens";
        let table = weights.embedding(table, vocab, hidden).await?;
        let head = if config.tie_word_embeddings {
            table.tied()
        } else {
            let own = weights.embedding("proj_out", vocab, hidden).await?;
            own.tied()
        };
        let (dtype, device) = (weights.dtype(), weights.device().clone());
        let rotary = config.rotary(spec.head_dim)?;
        let rotary = Positions::Rotary(RotaryTables::new(&rotary, spec.limit, dtype, &device));
        let stream = spec.stream_dtype(dtype);
        let norm = weights.norm_as(stream, "model.decoder.norm", hidden, spec.norm);
        let norm = norm.await?;
        let (count, prefix) = (config.decoder_num_hidden_layers, "model.decoder.layers");
        let parts = (table, rotary);
        let decoder = TextStack::load(FAMILY, spec, parts, count, weights, &NAMES, prefix);
        Ok(Self {
            encoder,
            norm,
            decoder: decoder.await?,
            head,
            config: config.clone(),
        })
    }

    /// The configuration of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The dtype of its activations.
    pub fn dtype(&self) -> DType {
        self.decoder.dtype
    }

    /// As [`Encoder::forward`].
    ///
    /// # Errors
    /// As [`Encoder::forward`].
    pub fn encode(&mut self, samples: &Tensor) -> Result<Tensor> {
        self.encoder.forward(samples)
    }

    /// The logits of the tokens after each of `ids`, (batch, t): (batch, t, vocab).
    ///
    /// - `encoded` is what [`encode`](Self::encode) returned. Its keys and values are computed once, as long as it is the same tensor.
    /// - `start` is the position of the first token. At 0 a new text begins; otherwise the tokens follow those of the calls before.
    ///
    /// # Errors
    /// If there are no tokens or more than `max_position_embeddings`, the shapes do not match each other or the calls before, or an id is
    /// outside the table (where the device can tell).
    pub fn decode(&mut self, ids: &Tensor, encoded: &Tensor, start: usize) -> Result<Tensor> {
        let xs = self.decoder.forward(&Given {
            source: Some(encoded),
            ..Given::tokens(ids, start)
        })?;
        let xs = self.norm.forward(&xs)?.to_dtype(self.decoder.dtype)?;
        self.head.forward(&xs)
    }

    /// Forgets the text that was written, and the sound.
    pub fn reset_kv_cache(&mut self) {
        self.decoder.reset();
    }
}
