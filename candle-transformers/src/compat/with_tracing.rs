//! Layers that models share and that show up in traces.

use std::sync::Arc;

use candle_core::quantized::QTensor;
use candle_core::{Module, Result, Tensor};

use super::quantized_var_builder::VarBuilder;

/// What filters of traces know this module by.
const TARGET: &str = "candle_transformers::models::with_tracing";

/// A linear layer's quantised weight. Each product is a [`tracing`] span `qmatmul`.
#[derive(Debug, Clone)]
pub struct QMatMul {
    inner: candle_core::quantized::QMatMul,
    span: tracing::Span,
}

impl QMatMul {
    /// The tensor `weight`, `(in_dim, out_dim)`: as in Candle the parameters' names are exchanged, and what it looks for is the shape
    /// `(in_dim, out_dim)`.
    ///
    /// # Errors
    /// If it is missing or has another shape.
    pub fn new(out_dim: usize, in_dim: usize, vb: VarBuilder) -> Result<Self> {
        Self::from_weights(vb.get((in_dim, out_dim), "weight")?)
    }

    /// A weight `(out_dim, in_dim)`; F32, F16 and BF16 become dense.
    ///
    /// # Errors
    /// If the device cannot allocate the memory for a dense weight.
    pub fn from_weights(ws: Arc<QTensor>) -> Result<Self> {
        Ok(Self {
            inner: candle_core::quantized::QMatMul::from_arc(ws)?,
            span: tracing::span!(target: TARGET, tracing::Level::TRACE, "qmatmul"),
        })
    }
}

/// From `(.., n, in_dim)` to `(.., n, out_dim)`.
impl Module for QMatMul {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _inside = self.span.enter();
        self.inner.forward(xs)
    }
}
