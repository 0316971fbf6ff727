//! Layers over quantised weights, from a [`VarBuilder`].

use std::sync::Arc;

use candle_core::quantized::QTensor;
use candle_core::{Module, Result, Tensor};
use candle_nn::LayerNorm;

use super::quantized_var_builder::VarBuilder;
use super::with_tracing::QMatMul;

/// A table of vectors, made dense (f32) when it is loaded.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: candle_nn::Embedding,
}

impl Embedding {
    /// The tensor `weight`, `(d1, d2)`.
    ///
    /// # Errors
    /// If it is missing or has another shape, or the device cannot allocate the memory.
    pub fn new(d1: usize, d2: usize, vb: VarBuilder) -> Result<Self> {
        let table = dense(&vb, (d1, d2), "weight")?;
        Ok(Self {
            table: candle_nn::Embedding::new(table, d2),
        })
    }

    /// The table, `(d1, d2)`.
    pub fn embeddings(&self) -> &Tensor {
        self.table.embeddings()
    }
}

/// From indices of any shape to that shape with `d2` appended.
impl Module for Embedding {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.table.forward(xs)
    }
}

/// A linear layer over a quantised weight.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: QMatMul,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer from its weights, `(out_dim, in_dim)` and `(out_dim)`.
    ///
    /// # Errors
    /// As [`QMatMul::from_weights`].
    pub fn from_arc(weight: Arc<QTensor>, bias: Option<Tensor>) -> Result<Self> {
        Ok(Self::from_weights(QMatMul::from_weights(weight)?, bias))
    }

    /// A layer from its weights, `(out_dim, in_dim)` and `(out_dim)`.
    pub fn from_weights(weight: QMatMul, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }
}

/// From `(.., n, in_dim)` to `(.., n, out_dim)`.
impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.weight.forward(xs)?;
        match &self.bias {
            None => Ok(ys),
            Some(bias) => ys.broadcast_add(bias),
        }
    }
}

/// A layer from the tensors `weight` and `bias`.
///
/// # Errors
/// If one is missing or has another shape.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    linear_b(in_dim, out_dim, true, vb)
}

/// A layer from the tensor `weight`.
///
/// # Errors
/// If it is missing or has another shape.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    linear_b(in_dim, out_dim, false, vb)
}

/// [`linear`] or [`linear_no_bias`], as `bias` says.
///
/// # Errors
/// If a tensor is missing or has another shape.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    let bias = if bias {
        Some(dense(&vb, out_dim, "bias")?)
    } else {
        None
    };
    Ok(Linear::from_weights(
        QMatMul::new(in_dim, out_dim, vb)?,
        bias,
    ))
}

/// A layer norm over the tensors `weight` and `bias`.
///
/// # Errors
/// If one is missing or has another shape.
pub fn layer_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    let (weight, bias) = (dense(&vb, size, "weight")?, dense(&vb, size, "bias")?);
    Ok(LayerNorm::new(weight, bias, eps))
}

/// A layer norm over the tensor `weight`.
///
/// # Errors
/// If it is missing or has another shape.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    Ok(LayerNorm::new_no_bias(dense(&vb, size, "weight")?, eps))
}

/// An RMS norm; see [`candle_nn::RmsNorm`].
#[derive(Debug, Clone)]
pub struct RmsNorm {
    norm: candle_nn::RmsNorm,
}

impl RmsNorm {
    /// A norm over the tensor `weight`.
    ///
    /// # Errors
    /// If it is missing or has another shape.
    pub fn new(size: usize, eps: f64, vb: VarBuilder) -> Result<Self> {
        let weight = dense(&vb, size, "weight")?;
        Ok(Self {
            norm: candle_nn::RmsNorm::new(weight, eps),
        })
    }

    /// A norm from its weight, which is made dense.
    ///
    /// # Errors
    /// If the device cannot allocate the memory.
    pub fn from_qtensor(weight: QTensor, eps: f64) -> Result<Self> {
        let weight = weight.dequantize(&weight.device())?;
        Ok(Self {
            norm: candle_nn::RmsNorm::new(weight, eps),
        })
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.norm.forward(xs)
    }
}

fn dense<S: Into<candle_core::Shape>>(vb: &VarBuilder, shape: S, name: &str) -> Result<Tensor> {
    vb.get(shape, name)?.dequantize(vb.device())
}
