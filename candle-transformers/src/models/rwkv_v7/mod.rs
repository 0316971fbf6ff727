//! RWKV 7, Goose: [arXiv 2503.14456](https://arxiv.org/abs/2503.14456). The state of a head is a matrix that each token corrects by a generalised
//! delta rule. [`ModelVersion`] has the two variants whose embeddings reach further: into what follows, and into attention.
//!
//! Weights have the names of BlinkDL's checkpoints: `emb`, `blocks.{i}`, `ln_out` and `head`.

mod attention;
mod channel_mix;
mod delta;
mod state;
mod time_mix;

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{Embedding, LayerNorm, Linear, VarBuilder};
use serde::Deserialize;

pub use super::rwkv_tokenizer::Tokenizer;
pub use state::{DeaState, State, StatePerLayer};

use crate::blocks::recurrence::{last, shifted, wide};
use attention::Attention;
use channel_mix::ChannelMix;
use state::{kept, rows};
use time_mix::TimeMix;

/// The variants of RWKV 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum ModelVersion {
    /// The paper's.
    V7,
    /// A matrix for each token (DeepEmbed) scales what follows attention.
    V7a,
    /// As [`V7a`](Self::V7a), and softmax attention (DEA) in parallel with the recurrence, with an embedding of each token in its keys and
    /// values.
    V7b,
}

/// The sizes of a model; checkpoints do not state them.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// The variant.
    pub version: ModelVersion,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Head dimension; default: 64.
    #[serde(default = "head_size")]
    pub head_size: usize,
    /// Inner size of the feed-forward blocks; `None` for 4 times `hidden_size`.
    pub intermediate_size: Option<usize>,
    /// A detail of implementations in f16; not used.
    #[serde(default)]
    pub rescale_every: usize,
}

fn head_size() -> usize {
    64
}

impl Config {
    fn heads(&self) -> Result<usize> {
        let (hidden, size) = (self.hidden_size, self.head_size);
        if size == 0 || hidden == 0 || !hidden.is_multiple_of(size) {
            bail!("rwkv_v7: hidden size {hidden} cannot be split into heads of {size}")
        }
        Ok(hidden / size)
    }

    fn inner(&self) -> usize {
        let default = self.hidden_size.saturating_mul(4);
        self.intermediate_size.unwrap_or(default)
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct Model {
    embeddings: Embedding,
    /// The norm of the embeddings.
    ln0: LayerNorm,
    layers: Vec<Layer>,
    ln_out: LayerNorm,
    head: Linear,
    vocab: usize,
    /// The variant.
    pub version: ModelVersion,
}

#[derive(Debug, Clone)]
struct Layer {
    ln1: LayerNorm,
    ln2: LayerNorm,
    time_mix: TimeMix,
    channel_mix: ChannelMix,
    attention: Option<Attention>,
}

impl Model {
    /// Loads `emb`, `blocks`, `ln_out` and `head`. The tables of the variants are summed with what they add for each token, once.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (hidden, vocab) = (cfg.hidden_size, cfg.vocab_size);
        cfg.heads()?;
        if cfg.num_hidden_layers == 0 {
            bail!("rwkv_v7: num_hidden_layers is 0; it must be at least 1")
        }
        let embeddings = candle_nn::embedding(vocab, hidden, vb.pp("emb"))?;
        let blocks = vb.pp("blocks");
        let ln0 = candle_nn::layer_norm(hidden, 1e-5, blocks.pp("0.ln0"))?;
        let normed = match cfg.version {
            ModelVersion::V7 => None,
            _ => Some(ln0.forward(embeddings.embeddings())?),
        };
        let mut layers = Vec::new();
        for i in 0..cfg.num_hidden_layers {
            layers.push(Layer::load(cfg, i, normed.as_ref(), blocks.pp(i))?);
        }
        Ok(Self {
            embeddings,
            ln0,
            layers,
            ln_out: candle_nn::layer_norm(hidden, 1e-5, vb.pp("ln_out"))?,
            head: candle_nn::linear_no_bias(hidden, vocab, vb.pp("head"))?,
            vocab,
            version: cfg.version,
        })
    }

    /// The logits of what follows each of the token ids `xs`, `(b, t)`, which continue what `state` holds: `(vocab)` for a single token,
    /// `(b, t, vocab)` for more. `token_ids` are the same ids, row by row; [`ModelVersion::V7`] does not read them.
    ///
    /// Rows of a batch continue what they were before. A state of one sequence is continued by every row of a batch.
    ///
    /// # Errors
    /// If there are no ids, `token_ids` has another number of them or one that is not in the vocabulary, or the state was made for another
    /// model or batch. The state is then unchanged.
    pub fn forward(&self, xs: &Tensor, state: &mut State, token_ids: &[u32]) -> Result<Tensor> {
        let ids = match xs.dims() {
            [] | [_] => xs.reshape((1, xs.elem_count()))?,
            [_, _] => xs.clone(),
            dims => bail!("rwkv_v7: token ids have shape {dims:?}; expected (b, t)"),
        };
        let logits = self.logits(&self.hidden(&ids, state, token_ids)?)?;
        match logits.dims() {
            [1, 1, _] => logits.flatten_all(),
            _ => Ok(logits),
        }
    }

    /// The logits, `(vocab)`, of what follows the last of `token_ids`, which continue what `state` holds.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_seq(&self, token_ids: &[u32], state: &mut State) -> Result<Tensor> {
        self.check_ids(token_ids)?;
        let device = self.embeddings.embeddings().device();
        let ids = Tensor::from_slice(token_ids, (1, token_ids.len()), device)?;
        let xs = last(&self.hidden(&ids, state, token_ids)?)?;
        self.logits(&xs)?.squeeze(0)
    }

    fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.ln_out.forward(xs)?)
    }

    fn check_ids(&self, ids: &[u32]) -> Result<()> {
        match ids.iter().find(|id| **id as usize >= self.vocab) {
            Some(id) => bail!(
                "rwkv_v7: token id {id} is not in the vocabulary of {}",
                self.vocab
            ),
            None => Ok(()),
        }
    }

    /// The stream after all layers, `(b, t, hidden)`. `token_ids` are not read by [`ModelVersion::V7`].
    fn hidden(&self, xs: &Tensor, state: &mut State, token_ids: &[u32]) -> Result<Tensor> {
        let (b, t) = xs.dims2()?;
        if b == 0 || t == 0 {
            bail!("rwkv_v7: no tokens; at least one is required")
        }
        state.check(self.layers.len(), self.version)?;
        let tokens = self.tokens(token_ids, (b, t), state)?;
        let now = tokens.as_ref().map(|tokens| &tokens.now);

        let mut xs = self.ln0.forward(&self.embeddings.forward(xs)?)?;
        let mut first = None;
        let mut per_layer = Vec::new();
        let (mut k_cache, mut v_cache, mut q_prev) = (Vec::new(), Vec::new(), Vec::new());
        let seen = tokens.as_ref().and_then(|tokens| tokens.seen.as_ref());
        for (i, (layer, before)) in self.layers.iter().zip(&state.per_layer).enumerate() {
            let attended = match (&layer.attention, &state.dea, seen) {
                (Some(attention), Some(dea), Some((_, seen))) => {
                    let (ys, [k, v, q]) = attention.forward(&xs, dea, i, seen)?;
                    k_cache.push(k);
                    v_cache.push(v);
                    q_prev.push(q);
                    Some(ys)
                }
                _ => None,
            };
            let (ys, after) = layer.forward(&xs, before, attended, &mut first, now)?;
            xs = ys;
            per_layer.push(after);
        }
        state.per_layer = per_layer;
        if let Some((token_ids, _)) = tokens.and_then(|tokens| tokens.seen) {
            state.dea = Some(DeaState {
                token_ids,
                k_cache,
                v_cache,
                q_prev,
            });
        }
        state.pos += t;
        Ok(xs)
    }

    fn tokens(&self, ids: &[u32], (b, t): (usize, usize), state: &State) -> Result<Option<Tokens>> {
        if self.version == ModelVersion::V7 {
            return Ok(None);
        }
        if ids.len() != b * t {
            bail!(
                "rwkv_v7: {} token_ids for {b} rows of {t} tokens; the numbers must match",
                ids.len()
            )
        }
        self.check_ids(ids)?;
        let device = self.embeddings.embeddings().device();
        let seen = match (&state.dea, self.version) {
            (Some(dea), ModelVersion::V7b) => {
                let all = dea.with(ids, b, t)?;
                let by_position = Tensor::from_slice(&all, (all.len() / b, b), device)?;
                Some((all, by_position.t()?.contiguous()?))
            }
            _ => None,
        };
        Ok(Some(Tokens {
            now: Tensor::from_slice(ids, b * t, device)?,
            seen,
        }))
    }
}

/// The variants' tables.
struct Tokens {
    /// Those of a call, `(b * t)`.
    now: Tensor,
    /// For [`ModelVersion::V7b`], also those before: as [`DeaState`] has them, and `(b, seq)`.
    seen: Option<(Vec<u32>, Tensor)>,
}

impl Layer {
    fn load(cfg: &Config, index: usize, normed: Option<&Tensor>, vb: VarBuilder) -> Result<Self> {
        let norm = |name| candle_nn::layer_norm(cfg.hidden_size, 1e-5, vb.pp(name));
        let attention = match (cfg.version, normed) {
            (ModelVersion::V7b, Some(normed)) => Some(Attention::load(cfg, normed, vb.pp("qkv"))?),
            _ => None,
        };
        Ok(Self {
            ln1: norm("ln1")?,
            ln2: norm("ln2")?,
            time_mix: TimeMix::load(cfg, index, vb.pp("att"))?,
            channel_mix: ChannelMix::load(cfg, normed, vb.pp("ffn"))?,
            attention,
        })
    }

    /// The stream after the layer, and the layer's state. `attended` is added to the recurrence's result, `first` are the values of the
    /// first layer, and `ids` the tokens.
    fn forward(
        &self,
        xs: &Tensor,
        state: &StatePerLayer,
        attended: Option<Tensor>,
        first: &mut Option<Tensor>,
        ids: Option<&Tensor>,
    ) -> Result<(Tensor, StatePerLayer)> {
        let (b, _, hidden) = xs.dims3()?;
        let normed = self.ln1.forward(xs)?;
        let before = rows(&state.att_x_prev, b, &[hidden])?.to_dtype(xs.dtype())?;
        let att_x_prev = kept(&last(&normed)?, &state.att_x_prev)?;
        let sizes = self.time_mix.state_sizes();
        let mut kv = rows(&state.att_kv, b, &sizes)?.to_dtype(wide(xs.dtype()))?;
        let before = shifted(&normed, &before)?;
        let ys = self.time_mix.forward(&normed, &before, &mut kv, first)?;
        let xs = match attended {
            Some(attended) => ((xs + ys)? + attended)?,
            None => (xs + ys)?,
        };

        let normed = self.ln2.forward(&xs)?;
        let before = rows(&state.ffn_x_prev, b, &[hidden])?.to_dtype(xs.dtype())?;
        let ffn_x_prev = kept(&last(&normed)?, &state.ffn_x_prev)?;
        let before = shifted(&normed, &before)?;
        let ys = self.channel_mix.forward(&normed, &before, ids)?;
        let state = StatePerLayer {
            att_x_prev,
            att_kv: kept(&kv, &state.att_kv)?,
            ffn_x_prev,
        };
        Ok(((xs + ys)?, state))
    }
}

/// A linear layer whose weight is stored as `(in_dim, out_dim)`.
fn transposed(weight: Tensor) -> Result<Linear> {
    Ok(Linear::new(weight.t()?, None))
}
