//! Mamba: [arXiv 2312.00752](https://arxiv.org/abs/2312.00752). Layers with a state of fixed size, whose decay and input depend on the token.
//! One token at a time.

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::{Embedding, Linear, RmsNorm, VarBuilder};
use serde::Deserialize;

use crate::blocks::recurrence::softplus;

/// Tokens that the convolution sees.
const D_CONV: usize = 4;
/// Numbers that each channel keeps.
const D_STATE: usize = 16;

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Size of the residual stream.
    pub d_model: usize,
    /// Layers.
    pub n_layer: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The token table is padded to a multiple of this.
    pub pad_vocab_size_multiple: usize,
}

impl Config {
    fn vocab_size(&self) -> usize {
        let vocab = self.vocab_size;
        vocab
            .checked_next_multiple_of(self.pad_vocab_size_multiple)
            .unwrap_or(vocab)
    }

    fn dt_rank(&self) -> usize {
        self.d_model.div_ceil(16)
    }

    fn d_inner(&self) -> usize {
        self.d_model.saturating_mul(2)
    }
}

/// The state of a batch of sequences. For other sequences, make a new one.
pub struct State {
    /// The recurrent state of each layer's channels, `(b, d_inner, 16)`.
    pub hs: Vec<Tensor>,
    /// The last inputs of each layer's convolution, `(b, d_inner)`: the token at position `p` has the index `p % 4`.
    pub prev_xs: Vec<[Tensor; D_CONV]>,
    /// Tokens seen.
    pub pos: usize,
}

impl State {
    /// That of a batch which has seen nothing.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn new(batch_size: usize, cfg: &Config, dtype: DType, device: &Device) -> Result<Self> {
        let (mut hs, mut prev_xs) = (Vec::new(), Vec::new());
        for _ in 0..cfg.n_layer {
            let shape = (batch_size, cfg.d_inner(), D_STATE);
            hs.push(Tensor::zeros(shape, dtype, device)?);
            let none = Tensor::zeros((batch_size, cfg.d_inner()), dtype, device)?;
            prev_xs.push(std::array::from_fn(|_| none.clone()));
        }
        Ok(Self {
            hs,
            prev_xs,
            pos: 0,
        })
    }
}

/// The block of a layer, applied to the norm of the stream.
#[derive(Clone, Debug)]
pub struct MambaBlock {
    in_proj: Linear,
    conv_weight: Tensor,
    conv_bias: Tensor,
    x_proj: Linear,
    dt_proj: Linear,
    /// The logarithms of the decays for a step of size 1.
    a: Tensor,
    d: Tensor,
    out_proj: Linear,
    dt_rank: usize,
    layer_index: usize,
    d_inner: usize,
}

impl MambaBlock {
    /// Loads the block. `layer_index` is its index in a [`State`].
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(layer_index: usize, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (d_inner, dt_rank, d_model) = (cfg.d_inner(), cfg.dt_rank(), cfg.d_model);
        let (no_bias, x_size) = (candle_nn::linear_no_bias, dt_rank + 2 * D_STATE);
        let conv = vb.get((d_inner, 1, D_CONV), "conv1d.weight")?;
        let a_log = vb.get((d_inner, D_STATE), "A_log")?;
        Ok(Self {
            in_proj: no_bias(d_model, 2 * d_inner, vb.pp("in_proj"))?,
            conv_weight: conv.squeeze(1)?,
            conv_bias: vb.get(d_inner, "conv1d.bias")?,
            x_proj: no_bias(d_inner, x_size, vb.pp("x_proj"))?,
            dt_proj: candle_nn::linear(dt_rank, d_inner, vb.pp("dt_proj"))?,
            a: a_log.exp()?.neg()?,
            d: vb.get(d_inner, "D")?,
            out_proj: no_bias(d_inner, d_model, vb.pp("out_proj"))?,
            dt_rank,
            layer_index,
            d_inner,
        })
    }

    /// From the norm of the stream at one token, `(b, d_model)`, to what is added to the stream.
    ///
    /// # Errors
    /// If the state was created by a different model or batch.
    pub fn forward(&self, xs: &Tensor, state: &mut State) -> Result<Tensor> {
        let (layer, pos) = (self.layer_index, state.pos);
        let (Some(h), Some(inputs)) = (state.hs.get_mut(layer), state.prev_xs.get_mut(layer))
        else {
            bail!("mamba: the state has no layer {layer}; it was created by a different model")
        };
        let projected = self.in_proj.forward(xs)?;
        let gate = projected.narrow(D::Minus1, self.d_inner, self.d_inner)?;
        inputs[pos % D_CONV] = projected.narrow(D::Minus1, 0, self.d_inner)?;
        let window: [&Tensor; D_CONV] = std::array::from_fn(|i| &inputs[(pos + 1 + i) % D_CONV]);
        let window = Tensor::stack(&window, D::Minus1)?;
        let xs = window.broadcast_mul(&self.conv_weight)?.sum(D::Minus1)?;
        let xs = xs.broadcast_add(&self.conv_bias)?.silu()?;

        let parts = self.x_proj.forward(&xs)?;
        let part = |start, len| parts.narrow(D::Minus1, start, len);
        let step = self
            .dt_proj
            .forward(&part(0, self.dt_rank)?.contiguous()?)?;
        let step = softplus(&step)?;
        let b = part(self.dt_rank, D_STATE)?.unsqueeze(1)?;
        let c = part(self.dt_rank + D_STATE, D_STATE)?.unsqueeze(1)?;

        let decay = step.unsqueeze(D::Minus1)?.broadcast_mul(&self.a)?.exp()?;
        let added = (&step * &xs)?.unsqueeze(D::Minus1)?.broadcast_mul(&b)?;
        *h = ((&*h * decay)? + added)?;
        let ys = h.broadcast_mul(&c)?.sum(D::Minus1)?;
        let ys = (ys + xs.broadcast_mul(&self.d)?)?;
        self.out_proj.forward(&(ys * gate.silu()?)?)
    }
}

/// A layer.
#[derive(Clone, Debug)]
pub struct ResidualBlock {
    mixer: MambaBlock,
    norm: RmsNorm,
}

impl ResidualBlock {
    /// Loads the layer. `layer_index` is its index in a [`State`].
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(layer_index: usize, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            mixer: MambaBlock::new(layer_index, cfg, vb.pp("mixer"))?,
            norm: candle_nn::rms_norm(cfg.d_model, 1e-5, vb.pp("norm"))?,
        })
    }

    fn forward(&self, xs: &Tensor, state: &mut State) -> Result<Tensor> {
        self.mixer.forward(&self.norm.forward(xs)?, state)? + xs
    }
}

/// The language model.
#[derive(Clone, Debug)]
pub struct Model {
    embedding: Embedding,
    layers: Vec<ResidualBlock>,
    norm_f: RmsNorm,
    lm_head: Linear,
    dtype: DType,
}

impl Model {
    /// Loads `embedding`, `layers.*` and `norm_f`: in checkpoints they are below `backbone`. The output layer is `lm_head` next to
    /// `backbone` if the file has it, else the token table.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let embedding = candle_nn::embedding(cfg.vocab_size(), cfg.d_model, vb.pp("embedding"))?;
        let layers = vb.pp("layers");
        let layers = (0..cfg.n_layer).map(|i| ResidualBlock::new(i, cfg, layers.pp(i)));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            norm_f: candle_nn::rms_norm(cfg.d_model, 1e-5, vb.pp("norm_f"))?,
            lm_head: crate::blocks::family::head_beside(&vb, &embedding)?,
            embedding,
            dtype: vb.dtype(),
        })
    }

    /// The logits, `(b, vocab)`, of what follows one token of each sequence, `(b)`. A prompt is given token by token.
    ///
    /// # Errors
    /// If the state was created by a different model or batch.
    pub fn forward(&self, input_ids: &Tensor, state: &mut State) -> Result<Tensor> {
        input_ids.dims1()?;
        let mut xs = self.embedding.forward(input_ids)?;
        for layer in &self.layers {
            xs = layer.forward(&xs, state)?;
        }
        state.pos += 1;
        self.lm_head.forward(&self.norm_f.forward(&xs)?)
    }

    /// The dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}
