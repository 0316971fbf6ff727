//! RWKV 5, Eagle: [arXiv 2404.05892](https://arxiv.org/abs/2404.05892). A recurrent network: what it keeps of a sequence has a fixed size.

use candle_core::{DType, Device, Result, Tensor};
use serde::Deserialize;

use super::rwkv::Rwkv;
pub use super::rwkv_tokenizer::Tokenizer;
use crate::blocks::Dense;

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Tokens.
    pub vocab_size: usize,
    /// Size of the stream.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Size of all heads; has to be that of the stream.
    pub attention_hidden_size: usize,
    /// In files this is the size of a head of the state.
    #[serde(default = "heads")]
    pub num_attention_heads: usize,
    /// Size of a head.
    pub head_size: usize,
    /// Inner size of what follows attention; `None` for 3.5 times that of the stream, in whole 32s.
    pub intermediate_size: Option<usize>,
    /// Added to the variance in the layers' norms.
    pub layer_norm_epsilon: f64,
    /// Of an implementation in f16; not used.
    pub rescale_every: usize,
}

fn heads() -> usize {
    64
}

/// What a layer keeps of a batch of sequences, in f32.
pub struct StatePerLayer {
    /// What attention was given at the last token, `(b, hidden_size)`.
    pub extract_key_value: Tensor,
    /// `(b, heads, size, size)`.
    pub linear_attention: Tensor,
    /// What follows attention was given at the last token, `(b, hidden_size)`.
    pub feed_forward: Tensor,
}

/// What a model keeps of a batch of sequences. To start others, make a new one.
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
