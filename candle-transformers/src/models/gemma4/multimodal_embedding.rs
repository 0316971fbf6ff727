//! From an encoder's vectors to tokens of the decoder.

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear_no_bias, Linear, RmsNorm, VarBuilder};

use super::parts::bare_norm;

/// A norm without a weight, and a linear layer.
#[derive(Debug, Clone)]
pub struct MultimodalEmbedder {
    norm: RmsNorm,
    projection: Linear,
}

impl MultimodalEmbedder {
    /// Loads `embedding_projection`, (text_hidden_size, multimodal_hidden_size).
    ///
    /// # Errors
    /// If it is missing or has another shape.
    pub fn new(
        multimodal_hidden_size: usize,
        text_hidden_size: usize,
        eps: f64,
        vb: VarBuilder,
    ) -> Result<Self> {
        let projection = vb.pp("embedding_projection");
        Ok(Self {
            norm: bare_norm(multimodal_hidden_size, eps, &vb)?,
            projection: linear_no_bias(multimodal_hidden_size, text_hidden_size, projection)?,
        })
    }

    /// From (.., multimodal_hidden_size) to (.., text_hidden_size).
    ///
    /// # Errors
    /// If the size, the dtype or the device is another one.
    pub fn forward(&self, soft_features: &Tensor) -> Result<Tensor> {
        self.projection.forward(&self.norm.forward(soft_features)?)
    }
}
