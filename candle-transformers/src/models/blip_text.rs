//! The text part of BLIP, which writes what a picture shows: [arXiv 2201.12086](https://arxiv.org/abs/2201.12086). A BERT whose tokens see
//! those before them, and with a second attention to the vectors of the picture. Weight names are those of Hugging Face's checkpoints.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::blip::Config;
//! use candle_transformers::models::blip_text::{self, TextLMHeadModel};
//! # fn main() -> candle_core::Result<()> {
//! let config = Config::image_captioning_large().text_config;
//! # let config = blip_text::Config { vocab_size: 40, hidden_size: 16, encoder_hidden_size: 24, intermediate_size: 8,
//! #     num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 32, ..config };
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = TextLMHeadModel::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 5, config.encoder_hidden_size), DType::F32, &device)?;
//! // The model keeps what it has seen: each token is given once.
//! let mut token = 39u32;
//! for _ in 0..3 {
//!     let logits = model.forward(&Tensor::new(&[[token]], &device)?, &picture)?;
//!     token = logits.squeeze(0)?.squeeze(0)?.argmax(0)?.to_scalar()?;
//! }
//! model.reset_kv_cache();
//! # Ok(())
//! # }
//! ```

use std::marker::PhantomData;

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{Activation, Init};
use serde::Deserialize;

use crate::blocks::encoder::Transform;
use crate::blocks::seq2seq::{
    check_sizes, AttentionNames, Given, LayerNames, LayerSpec, Positions, TextStack,
};
use crate::blocks::{
    at_once, Dense, LinearSpec, NormSpec, Projection, StoredLinear, WeightKind, Weights,
};

const FAMILY: &str = "blip_text";

const NAMES: LayerNames = LayerNames {
    attention: AttentionNames {
        q: "attention.self.query",
        k: "attention.self.key",
        v: "attention.self.value",
        output: "attention.output.dense",
        norm: "attention.output.LayerNorm",
    },
    cross: AttentionNames {
        q: "crossattention.self.query",
        k: "crossattention.self.key",
        v: "crossattention.self.value",
        output: "crossattention.output.dense",
        norm: "crossattention.output.LayerNorm",
    },
    up: "intermediate.dense",
    gate: "",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
};

/// The fields of a checkpoint's `config.json` below `text_config`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Tokens.
    pub vocab_size: usize,
    /// The size of a token's vector.
    pub hidden_size: usize,
    /// The size of the picture's vectors.
    pub encoder_hidden_size: usize,
    /// The inner size of feed-forward blocks.
    pub intermediate_size: usize,
    /// Not used.
    pub projection_dim: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The longest text.
    pub max_position_embeddings: usize,
    /// The activation of feed-forward blocks.
    pub hidden_act: Activation,
    /// Added to a variance before its root is taken.
    pub layer_norm_eps: f64,
    /// Whether layers attend to a picture, which they have to.
    pub is_decoder: bool,
}

impl Config {
    fn layer(&self) -> Result<LayerSpec> {
        if !self.is_decoder {
            bail!("{FAMILY} config: is_decoder is false; it must be true for layers to attend to a picture")
        }
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("encoder_hidden_size", self.encoder_hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
        ];
        check_sizes(FAMILY, &sizes)?;
        let spec = LayerSpec::bart(
            FAMILY,
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            self.intermediate_size,
            self.hidden_act,
            self.max_position_embeddings,
        )?;
        Ok(LayerSpec {
            source: Some(self.encoder_hidden_size),
            norm: NormSpec::layer(self.layer_norm_eps),
            ..spec
        })
    }
}

/// The model with a layer over the tokens, over dense or quantised weights.
#[derive(Debug, Clone)]
pub struct Writer<W> {
    stack: TextStack,
    transform: Transform,
    head: Projection,
    of: PhantomData<fn() -> W>,
}

/// The model with a layer over the tokens.
pub type TextLMHeadModel = Writer<Dense>;

impl<W: WeightKind> Writer<W> {
    /// Loads what is below `bert` and `cls`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        W::load(vb, |weights| at_once(Self::load(cfg, weights)))
    }

    async fn load(cfg: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        let spec = cfg.layer()?;
        let (hidden, vocab) = (spec.hidden, cfg.vocab_size);
        let table = "bert.embeddings.word_embeddings";
        let table = weights.embedding(table, vocab, hidden).await?;
        let init = Init::Randn {
            mean: 0.,
            stdev: 1.,
        };
        let positions = "bert.embeddings.position_embeddings.weight";
        let rows = [cfg.max_position_embeddings, hidden];
        let positions = weights.dense(positions, &rows, init).await?;
        let norm = weights.norm("bert.embeddings.LayerNorm", hidden, spec.norm);
        let norm = norm.await?;
        let predictions = "cls.predictions";
        let dense = LinearSpec {
            name: format!("{predictions}.transform.dense"),
            in_dim: hidden,
            out_dim: hidden,
            bias: true,
        };
        let transform_norm = format!("{predictions}.transform.LayerNorm");
        let transform = Transform {
            dense: weights.linear(&dense).await?,
            activation: cfg.hidden_act,
            norm: weights.norm(&transform_norm, hidden, spec.norm).await?,
        };
        // Its bias has another name than a linear layer's.
        let weight = match format!("{predictions}.decoder.weight") {
            // Transformers 5 leaves out what is the table of tokens.
            own if weights.makes_tensors() || weights.has(&own) => own,
            _ => "bert.embeddings.word_embeddings.weight".to_string(),
        };
        let bias = format!("{predictions}.bias");
        let head = StoredLinear {
            weight: weights.stored(&weight, &[vocab, hidden], init).await?,
            bias: Some(weights.stored(&bias, &[vocab], Init::Const(0.)).await?),
            beside: None,
        };
        let head = StoredLinear::stack(vec![head], weights.dtype(), weights.device())?;
        let positions = Positions::Learned {
            table: positions,
            first: 0,
        };
        let (count, prefix) = (cfg.num_hidden_layers, "bert.encoder.layer");
        let parts = (table, positions);
        let stack = TextStack::load(FAMILY, spec, parts, count, weights, &NAMES, prefix);
        Ok(Self {
            stack: TextStack {
                norm: Some(norm),
                ..stack.await?
            },
            transform,
            head,
            of: PhantomData,
        })
    }

    /// The logits of the tokens after each of `input_ids`, (batch, t): (batch, t, vocab_size). The tokens follow those of the calls since
    /// the last [`reset_kv_cache`](Self::reset_kv_cache).
    ///
    /// `encoder_hidden_states` are the vectors of the picture, (batch, patches, encoder_hidden_size), whose keys and values are computed
    /// once, as long as it is the same tensor.
    ///
    /// # Errors
    /// If there are no tokens or more than `max_position_embeddings`, the shapes do not match each other or the calls before, or an id is
    /// outside the table (where the device can tell).
    pub fn forward(
        &mut self,
        input_ids: &Tensor,
        encoder_hidden_states: &Tensor,
    ) -> Result<Tensor> {
        let xs = self.stack.forward(&Given {
            source: Some(encoder_hidden_states),
            ..Given::tokens(input_ids, self.stack.seen())
        })?;
        self.head.forward(&self.transform.forward(&xs)?)
    }

    /// Forgets the text, so that another can begin.
    pub fn reset_kv_cache(&mut self) {
        self.stack.reset();
    }
}

/// The vector of a text, over dense or quantised weights: that of its first token through a layer and tanh.
#[derive(Debug, Clone)]
pub struct Pooler<W> {
    dense: Projection,
    of: PhantomData<fn() -> W>,
}

/// The vector of a text: that of its first token through a layer and tanh.
pub type TextPooler = Pooler<Dense>;

impl<W: WeightKind> Pooler<W> {
    /// Loads `dense`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        let dense = LinearSpec {
            name: "dense".to_string(),
            in_dim: cfg.hidden_size,
            out_dim: cfg.hidden_size,
            bias: true,
        };
        Ok(Self {
            dense: W::load(vb, |weights| at_once(weights.linear(&dense)))?,
            of: PhantomData,
        })
    }
}

/// From (batch, seq, hidden_size) to (batch, hidden_size).
impl<W> Module for Pooler<W> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let first = xs.narrow(1, 0, 1)?.squeeze(1)?;
        self.dense.forward(&first)?.tanh()
    }
}
