//! The layers that read a text.

use candle_core::{DType, Result, Tensor};
use candle_nn::VarBuilder;

use crate::blocks::{Decoder, DecoderSpec, Head};
use crate::models::mistral::Config;

/// A Mistral in which every token sees all others, without windows and without an output layer.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its sizes and constants.
    pub cfg: Config,
    decoder: Decoder,
}

impl Model {
    /// Loads `embed_tokens`, `layers` and `norm`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than it says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let open = Config {
            sliding_window: None,
            ..cfg.clone()
        };
        let spec = DecoderSpec {
            family: "nvembed_v2",
            head: Head::None,
            ..open.spec()?
        };
        let vb = vb.rename_f(|name| name.strip_prefix("model.").unwrap_or(name).to_string());
        Ok(Self {
            cfg: cfg.clone(),
            decoder: Decoder::from_vb(spec, vb)?,
        })
    }

    /// The vectors of the tokens `input_ids`, (batch, seq): (batch, seq, hidden_size). `attn_mask` is 1 where a token is seen and 0 where it
    /// is hidden, (batch, seq) of any dtype; the vectors of hidden tokens mean nothing. `dtype` is part of Candle's interface: scores are
    /// in f32 for all models but those of f64.
    ///
    /// # Errors
    /// If the shapes differ, there are no tokens or more than `max_position_embeddings`.
    pub fn forward(
        &mut self,
        attn_mask: &Tensor,
        input_ids: &Tensor,
        dtype: DType,
    ) -> Result<Tensor> {
        let _ = dtype;
        self.hidden(input_ids, attn_mask)
    }

    /// As [`forward`](Self::forward).
    pub(super) fn hidden(&self, input_ids: &Tensor, attn_mask: &Tensor) -> Result<Tensor> {
        self.decoder.encode(input_ids, attn_mask)?.normed()
    }
}
