//! The layers between the embeddings and what a model is used for.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::Config;
use crate::blocks::encoder::{EncoderLayer, Seen};

/// Attention and a feed-forward block, each normed after its residual.
#[derive(Debug, Clone)]
pub struct BertLayer(EncoderLayer);

/// All layers.
#[derive(Debug, Clone)]
pub struct BertEncoder {
    /// In the order in which they run.
    pub layers: Vec<BertLayer>,
}

impl BertEncoder {
    /// Loads the weights of `layer.N`: `attention.self.{query,key,value}`, `attention.output.{dense,LayerNorm}`,
    /// `intermediate.dense`, `output.{dense,LayerNorm}`.
    ///
    /// # Errors
    /// If the heads do not divide the hidden size, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let layers = config.layer()?;
        let layers = layers.load_dense(config.num_hidden_layers, vb, "layer")?;
        Ok(Self {
            layers: layers.into_iter().map(BertLayer).collect(),
        })
    }

    /// From (batch, seq, hidden_size) to the same shape. `attention_mask` is added to the scores of attention: it broadcasts to
    /// (batch, heads, seq, seq), and is 0 where a token may be attended to and very negative where it is hidden.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, hidden_states: &Tensor, attention_mask: &Tensor) -> Result<Tensor> {
        self.run(hidden_states.clone(), Some(attention_mask))
    }

    pub(super) fn run(&self, mut xs: Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let seen = Seen {
            mask,
            ..Seen::default()
        };
        for layer in &self.layers {
            xs = layer.0.forward(xs, &seen)?;
        }
        Ok(xs)
    }
}
