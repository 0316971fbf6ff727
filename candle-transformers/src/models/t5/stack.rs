//! T5's encoder and decoder, over weights of any kind.

use candle_core::{bail, DType, Device, Module, Result, Tensor};

use super::distance::Distances;
use super::Config;
use crate::blocks::encoder::{added_to_scores, check_text};
use crate::blocks::seq2seq::{
    check_source, load_layers, AttentionNames, Layer, LayerNames, LayerSpec, Source, Visible,
};
use crate::blocks::{LinearSpec, Norm, Projection, TokenEmbedding, Weights};

const FAMILY: &str = "t5";

const ENCODER: LayerNames = LayerNames {
    attention: AttentionNames {
        q: "layer.0.SelfAttention.q",
        k: "layer.0.SelfAttention.k",
        v: "layer.0.SelfAttention.v",
        output: "layer.0.SelfAttention.o",
        norm: "layer.0.layer_norm",
    },
    cross: AttentionNames {
        q: "layer.1.EncDecAttention.q",
        k: "layer.1.EncDecAttention.k",
        v: "layer.1.EncDecAttention.v",
        output: "layer.1.EncDecAttention.o",
        norm: "layer.1.layer_norm",
    },
    up: "layer.1.DenseReluDense.wi_1",
    gate: "layer.1.DenseReluDense.wi_0",
    down: "layer.1.DenseReluDense.wo",
    mlp_norm: "layer.1.layer_norm",
};

const DECODER: LayerNames = LayerNames {
    up: "layer.2.DenseReluDense.wi_1",
    gate: "layer.2.DenseReluDense.wi_0",
    down: "layer.2.DenseReluDense.wo",
    mlp_norm: "layer.2.layer_norm",
    ..ENCODER
};

/// Layers, which know where tokens are by their distance alone.
#[derive(Debug, Clone)]
struct Stack {
    /// One for all layers, or one for each: UMT5's.
    distances: Vec<Distances>,
    layers: Vec<Layer>,
    norm: Norm,
    spec: LayerSpec,
    dtype: DType,
    /// Whether tokens see those before them only.
    causal: bool,
    /// Whether the tokens of a call follow those of the calls before.
    kept: bool,
}

impl Stack {
    async fn load(config: &Config, decoder: bool, weights: &mut Weights<'_>) -> Result<Self> {
        let spec = config.layer(decoder)?;
        let (prefix, mut names) = if decoder {
            ("decoder", DECODER)
        } else {
            ("encoder", ENCODER)
        };
        if !config.feed_forward_proj.gated {
            names.up = if decoder {
                "layer.2.DenseReluDense.wi"
            } else {
                "layer.1.DenseReluDense.wi"
            };
        }
        let blocks = format!("{prefix}.block");
        let count = config.layers(decoder)?;
        let layers = load_layers(&spec, count, weights, &names, &blocks).await?;
        let table = |i: usize| {
            format!("{prefix}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight")
        };
        // UMT5's layers have a table each, which only the file tells.
        let tables = if !weights.makes_tensors() && weights.has(&table(1)) {
            count
        } else {
            1
        };
        let mut distances = Vec::with_capacity(tables);
        for i in 0..tables {
            distances.push(Distances::load(config, !decoder, weights, &table(i)).await?);
        }
        let norm = format!("{prefix}.final_layer_norm");
        let stream = spec.stream_dtype(weights.dtype());
        Ok(Self {
            distances,
            layers,
            norm: weights
                .norm_as(stream, &norm, spec.hidden, spec.norm)
                .await?,
            spec,
            dtype: weights.dtype(),
            causal: decoder,
            kept: decoder && config.use_cache,
        })
    }

    /// From the vectors of tokens, (batch, t, d_model), to those that the last layer makes of them, in `dtype`.
    fn forward(
        &mut self,
        xs: &Tensor,
        mask: Option<&Tensor>,
        source: Option<&Source>,
        dtype: DType,
    ) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let before = match (self.kept, self.layers.first()) {
            (true, Some(layer)) => layer.seen(),
            _ => 0,
        };
        let mut biases = Vec::with_capacity(self.distances.len());
        for distances in &mut self.distances {
            biases.push(distances.forward(t, before + t)?);
        }
        if let Some(mask) = mask {
            if mask.dim(0)? != b || mask.dims().last() != Some(&t) {
                bail!(
                    "{FAMILY}: attention_mask is {:?}; for {b} texts of {t} tokens it must be ({b}, {t})",
                    mask.dims()
                )
            }
            let mask = added_to_scores(FAMILY, mask, DType::F32)?;
            for bias in &mut biases {
                *bias = bias.broadcast_add(&mask)?;
            }
        }
        let stream = self.spec.stream_dtype(dtype);
        let mut xs = xs.to_dtype(stream)?;
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let visible = Visible {
                bias: biases.get(i).or(biases.first()),
                causal: self.causal,
                kept: self.kept,
                rotation: None,
            };
            xs = if dtype == self.dtype {
                layer.forward(xs, &visible, source)?
            } else {
                // As one layer after another is needed: the whole may not fit.
                layer.to_dtype(dtype)?.forward(xs, &visible, source)?
            };
        }
        let norm = if dtype == self.dtype {
            self.norm.forward(&xs)?
        } else {
            self.norm.to_dtype(stream)?.forward(&xs)?
        };
        norm.to_dtype(dtype)
    }

    fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.reset();
        }
    }
}

/// Loads the table of tokens, which checkpoints have under one of several names.
async fn table(config: &Config, weights: &mut Weights<'_>) -> Result<TokenEmbedding> {
    let names = ["shared", "decoder.embed_tokens", "encoder.embed_tokens"];
    let there = |name: &&&str| weights.has(&format!("{name}.weight"));
    let name = names.iter().find(there).unwrap_or(&names[0]);
    weights
        .embedding(name, config.vocab_size, config.d_model)
        .await
}

/// An encoder and its table of tokens.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    table: TokenEmbedding,
    stack: Stack,
    pub(super) device: Device,
}

impl Encoder {
    pub(super) async fn load(config: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        Ok(Self {
            table: table(config, weights).await?,
            stack: Stack::load(config, false, weights).await?,
            device: weights.device().clone(),
        })
    }

    /// From ids, (batch, seq), to vectors, (batch, seq, d_model), computed in `dtype`, or without in that of the weights.
    pub(super) fn forward(
        &mut self,
        ids: &Tensor,
        mask: Option<&Tensor>,
        dtype: Option<DType>,
    ) -> Result<Tensor> {
        check_text(FAMILY, ids, usize::MAX)?;
        let xs = self.table.forward(ids)?;
        let dtype = dtype.unwrap_or(self.stack.dtype);
        self.stack.forward(&xs, mask, None, dtype)
    }
}

/// An encoder and a decoder with a layer over the tokens.
#[derive(Debug, Clone)]
pub(super) struct Generator {
    pub(super) encoder: Encoder,
    decoder: Stack,
    head: Projection,
    /// Factor of the input of a head that is the token table.
    head_scale: Option<f64>,
}

impl Generator {
    pub(super) async fn load(config: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        if !config.is_encoder_decoder {
            bail!("{FAMILY} config: is_encoder_decoder is false, so there is no decoder; load a T5EncoderModel")
        }
        let encoder = Encoder::load(config, weights).await?;
        let decoder = Stack::load(config, true, weights).await?;
        let separate = weights.makes_tensors() || weights.has("lm_head.weight");
        let head = if config.tie_word_embeddings || !separate {
            encoder.table.tied()
        } else {
            let head = LinearSpec {
                name: "lm_head".to_string(),
                in_dim: config.d_model,
                out_dim: config.vocab_size,
                bias: false,
            };
            weights.linear(&head).await?
        };
        let size = config.d_model as f64;
        Ok(Self {
            encoder,
            decoder,
            head,
            head_scale: config.tie_word_embeddings.then_some(1. / size.sqrt()),
        })
    }

    /// The logits of the token after the last, (batch, vocab_size).
    pub(super) fn decode(
        &mut self,
        ids: &Tensor,
        encoded: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (b, t) = check_text(FAMILY, ids, usize::MAX)?;
        check_source(FAMILY, encoded, b, self.decoder.spec.hidden)?;
        let bias = match mask {
            Some(mask) if mask.dims() != &encoded.dims()[..2] => bail!(
                "{FAMILY}: the encoder's mask is {:?}; for its output of {:?} it must be (batch, keys)",
                mask.dims(),
                encoded.dims()
            ),
            Some(mask) => Some(added_to_scores(FAMILY, mask, DType::F32)?),
            None => None,
        };
        let source = Source {
            hidden: encoded,
            bias: bias.as_ref(),
        };
        let xs = self.encoder.table.forward(ids)?;
        let dtype = self.decoder.dtype;
        let xs = self.decoder.forward(&xs, None, Some(&source), dtype)?;
        let mut last = xs.narrow(1, t - 1, 1)?.squeeze(1)?.contiguous()?;
        if let Some(scale) = self.head_scale {
            last = (last * scale)?;
        }
        self.head.forward(&last)
    }

    /// Forgets the text that was decoded.
    pub(super) fn reset(&mut self) {
        self.decoder.reset();
    }
}
