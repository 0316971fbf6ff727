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

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear, Activation, Init, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{head_dim, NormPlace, Transform};
use crate::blocks::seq2seq::{
    check_sizes, load_layers, AttentionNames, Given, LayerNames, LayerSpec, MlpActivation,
    Positions, TextStack,
};
use crate::blocks::{at_once, LinearSpec, NormSpec, Projection, StoredLinear, Weights};

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
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        let head_dim = head_dim(
            FAMILY,
            ("hidden_size", hidden),
            ("num_attention_heads", heads),
        )?;
        Ok(LayerSpec {
            hidden,
            heads,
            kv_heads: [heads; 2],
            head_dim,
            scale: 1. / (head_dim as f64).sqrt(),
            source: Some(self.encoder_hidden_size),
            inner: self.intermediate_size,
            activation: MlpActivation::Plain(self.hidden_act),
            bias: true,
            mlp_bias: true,
            norm: NormSpec::layer(self.layer_norm_eps),
            place: NormPlace::After,
            limit: self.max_position_embeddings,
        })
    }
}

/// The model, over weights of any kind.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    stack: TextStack,
    transform: Transform,
    head: Projection,
}

impl Writer {
    pub(super) async fn load(cfg: &Config, weights: &mut Weights<'_>) -> Result<Self> {
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
        let layers = "bert.encoder.layer";
        let layers = load_layers(&spec, cfg.num_hidden_layers, weights, &NAMES, layers).await?;

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
        let (dtype, device) = (weights.dtype(), weights.device().clone());
        Ok(Self {
            stack: TextStack {
                family: FAMILY,
                table,
                table_scale: None,
                positions: Positions::Learned {
                    table: positions,
                    first: 0,
                },
                norm: Some(norm),
                layers,
                spec,
                decoder: true,
                dtype,
                device: device.clone(),
            },
            transform,
            head: StoredLinear::stack(vec![head], dtype, &device)?,
        })
    }

    pub(super) fn forward(&mut self, ids: &Tensor, picture: &Tensor) -> Result<Tensor> {
        let xs = self.stack.forward(&Given {
            source: Some(picture),
            ..Given::tokens(ids, self.stack.seen())
        })?;
        self.head.forward(&self.transform.forward(&xs)?)
    }

    pub(super) fn reset(&mut self) {
        self.stack.reset();
    }
}

/// The vector of a text: that of its first token through a layer and tanh.
#[derive(Debug, Clone)]
pub struct TextPooler {
    dense: Projection,
}

impl TextPooler {
    /// Loads `dense`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let dense = linear(cfg.hidden_size, cfg.hidden_size, vb.pp("dense"))?;
        Ok(Self {
            dense: dense.into(),
        })
    }
}

/// From (batch, seq, hidden_size) to (batch, hidden_size).
impl Module for TextPooler {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        pooled(&self.dense, xs)
    }
}

pub(super) fn pooled(dense: &Projection, xs: &Tensor) -> Result<Tensor> {
    let first = xs.narrow(1, 0, 1)?.squeeze(1)?;
    dense.forward(&first)?.tanh()
}

/// The model with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct TextLMHeadModel {
    model: Writer,
}

impl TextLMHeadModel {
    /// Loads what is below `bert` and `cls`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (dtype, device, mut vb) = (vb.dtype(), vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, dtype, &device);
        Ok(Self {
            model: at_once(Writer::load(cfg, &mut weights))?,
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
        self.model.forward(input_ids, encoder_hidden_states)
    }

    /// Forgets the text, so that another can begin.
    pub fn reset_kv_cache(&mut self) {
        self.model.reset();
    }
}
