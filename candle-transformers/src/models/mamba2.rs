//! Mamba 2: [arXiv 2405.21060](https://arxiv.org/abs/2405.21060). As Mamba with one decay for each head, which lets a prompt be computed in
//! chunks of matmuls.

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::{Embedding, Linear, RmsNorm, VarBuilder};
use serde::Deserialize;

use crate::blocks::recurrence::{causal_conv, softplus, wide};
use crate::blocks::StateSpaceHeads;

/// Tokens that the convolution sees.
const D_CONV: usize = 4;

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Size of the residual stream.
    #[serde(alias = "hidden_size")]
    pub d_model: usize,
    /// Layers.
    #[serde(alias = "num_hidden_layers")]
    pub n_layer: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Numbers that each channel keeps.
    #[serde(alias = "state_size", default = "sixty_four")]
    pub d_state: usize,
    /// Expansion factor of a layer's inner size.
    #[serde(default = "two")]
    pub expand: usize,
    /// Channels of a head.
    #[serde(alias = "head_dim", default = "sixty_four")]
    pub headdim: usize,
    /// Groups of heads that read and write by the same vectors.
    #[serde(alias = "n_groups", default = "one")]
    pub ngroups: usize,
    /// The token table is padded to a multiple of this.
    #[serde(default = "sixteen")]
    pub pad_vocab_size_multiple: usize,
}

fn sixty_four() -> usize {
    64
}

fn sixteen() -> usize {
    16
}

fn two() -> usize {
    2
}

fn one() -> usize {
    1
}

impl Config {
    fn vocab_size(&self) -> usize {
        let vocab = self.vocab_size;
        vocab
            .checked_next_multiple_of(self.pad_vocab_size_multiple)
            .unwrap_or(vocab)
    }

    fn heads(&self) -> Result<StateSpaceHeads> {
        let inner = self.d_model.saturating_mul(self.expand);
        if self.headdim == 0 || !inner.is_multiple_of(self.headdim) {
            bail!(
                "mamba2: {inner} channels cannot be split into heads of {}",
                self.headdim
            )
        }
        let heads = StateSpaceHeads {
            count: inner / self.headdim,
            head_dim: self.headdim,
            groups: self.ngroups,
            state: self.d_state,
        };
        heads.check("mamba2")?;
        Ok(heads)
    }
}

/// The state of a batch of sequences. For other sequences, make a new one.
pub struct State {
    /// The recurrent state of each layer's heads, `(b, heads, headdim, d_state)`.
    pub hs: Vec<Tensor>,
    /// The last four inputs of each layer's convolution, `(b, channels, 4)`.
    pub conv_states: Vec<Tensor>,
    /// Tokens seen.
    pub pos: usize,
}

impl State {
    /// That of a batch which has seen nothing.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or the device has no memory for it.
    pub fn new(batch_size: usize, cfg: &Config, dtype: DType, device: &Device) -> Result<Self> {
        let heads = cfg.heads()?;
        let (mut hs, mut conv_states) = (Vec::new(), Vec::new());
        for _ in 0..cfg.n_layer {
            let shape = (batch_size, heads.count, heads.head_dim, heads.state);
            hs.push(Tensor::zeros(shape, dtype, device)?);
            let shape = (batch_size, heads.channels(), D_CONV);
            conv_states.push(Tensor::zeros(shape, dtype, device)?);
        }
        Ok(Self {
            hs,
            conv_states,
            pos: 0,
        })
    }
}

/// The block of a layer, applied to the norm of the stream.
#[derive(Clone, Debug)]
pub struct Mamba2Block {
    in_proj: Linear,
    conv_weight: Tensor,
    conv_bias: Tensor,
    /// The logarithms of the decays for a step of size 1.
    a: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    out_proj: Linear,
    norm: RmsNorm,
    heads: StateSpaceHeads,
    layer_idx: usize,
}

impl Mamba2Block {
    /// Loads the block. `layer_idx` is its index in a [`State`].
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(layer_idx: usize, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let heads = cfg.heads()?;
        let (inner, conv, count) = (heads.inner(), heads.channels(), heads.count);
        let conv_weight = vb.get((conv, 1, D_CONV), "conv1d.weight")?;
        let projected = inner + conv + count;
        Ok(Self {
            in_proj: candle_nn::linear_no_bias(cfg.d_model, projected, vb.pp("in_proj"))?,
            conv_weight: conv_weight.squeeze(1)?,
            conv_bias: vb.get(conv, "conv1d.bias")?,
            a: vb.get(count, "A_log")?.exp()?.neg()?,
            d: vb.get(count, "D")?,
            dt_bias: vb.get(count, "dt_bias")?,
            out_proj: candle_nn::linear_no_bias(inner, cfg.d_model, vb.pp("out_proj"))?,
            norm: candle_nn::rms_norm(inner, 1e-5, vb.pp("norm"))?,
            heads,
            layer_idx,
        })
    }

    /// From the norm of the stream at one token, `(b, d_model)`, to what is added to the stream.
    ///
    /// # Errors
    /// If the state was created by a different model or batch.
    pub fn forward(&self, xs: &Tensor, state: &mut State) -> Result<Tensor> {
        self.forward_prefill(&xs.unsqueeze(1)?, state, 1)?
            .squeeze(1)
    }

    /// From the norm of the stream at several tokens, `(b, t, d_model)`, to what is added to the stream; in chunks of `chunk_size` tokens.
    /// They continue what `state` holds.
    ///
    /// # Errors
    /// If there are no tokens, the chunks have none, or the state was created by a different model or batch.
    pub fn forward_prefill(
        &self,
        xs: &Tensor,
        state: &mut State,
        chunk_size: usize,
    ) -> Result<Tensor> {
        let layer = self.layer_idx;
        let (Some(h), Some(inputs)) = (state.hs.get_mut(layer), state.conv_states.get_mut(layer))
        else {
            bail!("mamba2: the state has no layer {layer}; it was created by a different model")
        };
        let t = xs.dim(1)?;
        if t == 0 {
            bail!("mamba2: no tokens; at least one is required")
        }
        let (inner, conv) = (self.heads.inner(), self.heads.channels());
        let projected = self.in_proj.forward(xs)?;
        let part = |start, len| projected.narrow(D::Minus1, start, len);
        let gate = part(0, inner)?;
        let step = part(inner + conv, self.heads.count)?;
        let step = softplus(&step.broadcast_add(&self.dt_bias)?)?;
        let through = part(inner, conv)?.transpose(1, 2)?.contiguous()?;
        // The state has one more input than the convolution still needs.
        let (mixed, _) = causal_conv(
            &through,
            &inputs.narrow(2, 1, D_CONV - 1)?,
            &self.conv_weight,
            Some(&self.conv_bias),
        )?;
        let all = Tensor::cat(&[&*inputs, &through], 2)?;
        *inputs = all.narrow(2, t, D_CONV)?.contiguous()?;
        let mixed = mixed.silu()?.transpose(1, 2)?;

        let wide = wide(xs.dtype());
        let mut kept = h.transpose(2, 3)?.contiguous()?.to_dtype(wide)?;
        let step = step.to_dtype(wide)?;
        let both = [&self.a, &self.d];
        let ys = self
            .heads
            .scan(&mixed, &step, both, &mut kept, chunk_size)?;
        *h = kept.transpose(2, 3)?.contiguous()?.to_dtype(h.dtype())?;

        let ys = (ys.to_dtype(gate.dtype())? * gate.silu()?)?;
        self.out_proj.forward(&self.norm.forward(&ys)?)
    }
}

/// A layer.
#[derive(Clone, Debug)]
pub struct ResidualBlock {
    mixer: Mamba2Block,
    norm: RmsNorm,
}

impl ResidualBlock {
    /// Loads the layer. `layer_idx` is its index in a [`State`].
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(layer_idx: usize, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            mixer: Mamba2Block::new(layer_idx, cfg, vb.pp("mixer"))?,
            norm: candle_nn::rms_norm(cfg.d_model, 1e-5, vb.pp("norm"))?,
        })
    }

    fn forward(&self, xs: &Tensor, state: &mut State, chunk_size: usize) -> Result<Tensor> {
        let normed = self.norm.forward(xs)?;
        self.mixer.forward_prefill(&normed, state, chunk_size)? + xs
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
    /// Loads `embeddings`, `layers.*` and `norm_f`: in checkpoints they are below `backbone`. The output layer is `lm_head` next to
    /// `backbone` if the file has it, else the token table.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let embedding = candle_nn::embedding(cfg.vocab_size(), cfg.d_model, vb.pp("embeddings"))?;
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

    /// The logits, `(b, vocab)`, of what follows one token of each sequence, `(b)`.
    ///
    /// # Errors
    /// If the state was created by a different model or batch.
    pub fn forward(&self, input_ids: &Tensor, state: &mut State) -> Result<Tensor> {
        self.forward_prefill(&input_ids.unsqueeze(1)?, state, 1)?
            .squeeze(1)
    }

    /// The logits, `(b, t, vocab)`, of what follows each of the token ids, `(b, t)`, which continue what `state` holds; in chunks of `chunk_size`
    /// tokens.
    ///
    /// # Errors
    /// If there are no tokens, the chunks have none, or the state was created by a different model or batch.
    pub fn forward_prefill(
        &self,
        input_ids: &Tensor,
        state: &mut State,
        chunk_size: usize,
    ) -> Result<Tensor> {
        let (_, t) = input_ids.dims2()?;
        let mut xs = self.embedding.forward(input_ids)?;
        for layer in &self.layers {
            xs = layer.forward(&xs, state, chunk_size)?;
        }
        state.pos += t;
        self.lm_head.forward(&self.norm_f.forward(&xs)?)
    }

    /// The dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}
