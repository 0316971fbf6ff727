//! RWKV 5, Eagle: [arXiv 2404.05892](https://arxiv.org/abs/2404.05892). A recurrent network: what it keeps of a sequence has a fixed size.

use candle_core::{DType, Device, Result, Tensor};
use serde::Deserialize;

use super::rwkv::Rwkv;
pub use super::rwkv_tokenizer::Tokenizer;
use crate::blocks::Dense;

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Total size of the heads; has to equal `hidden_size`.
    pub attention_hidden_size: usize,
    /// In files this is the size of a head of the state.
    #[serde(default = "heads")]
    pub num_attention_heads: usize,
    /// Head dimension.
    pub head_size: usize,
    /// Inner size of the feed-forward blocks; `None` for 3.5 times `hidden_size`, rounded to a multiple of 32.
    pub intermediate_size: Option<usize>,
    /// Epsilon of the layers' norms, added to the variance.
    pub layer_norm_epsilon: f64,
    /// A detail of implementations in f16; not used.
    pub rescale_every: usize,
}

fn heads() -> usize {
    64
}

/// The state of a batch of sequences in one layer, in f32.
pub struct StatePerLayer {
    /// The input of attention at the last token, `(b, hidden_size)`.
    pub extract_key_value: Tensor,
    /// `(b, heads, size, size)`.
    pub linear_attention: Tensor,
    /// The input of the feed-forward block at the last token, `(b, hidden_size)`.
    pub feed_forward: Tensor,
}

/// The state of a batch of sequences. For other sequences, make a new one.
pub struct State {
    /// By layer.
    pub per_layer: Vec<StatePerLayer>,
    /// Tokens seen.
    pub pos: usize,
}

impl State {
    /// That of a batch which has seen nothing.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn new(batch_size: usize, cfg: &Config, dev: &Device) -> Result<Self> {
        let hidden = cfg.hidden_size;
        let heads = hidden.checked_div(cfg.num_attention_heads).unwrap_or(0);
        let size = hidden.checked_div(heads).unwrap_or(0);
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, dev);
        let layer = |_| {
            Ok(StatePerLayer {
                extract_key_value: zeros(&[batch_size, hidden])?,
                linear_attention: zeros(&[batch_size, heads, size, size])?,
                feed_forward: zeros(&[batch_size, hidden])?,
            })
        };
        Ok(Self {
            per_layer: (0..cfg.num_hidden_layers)
                .map(layer)
                .collect::<Result<_>>()?,
            pos: 0,
        })
    }
}

/// The language model.
pub type Model = Rwkv<5, Dense>;
