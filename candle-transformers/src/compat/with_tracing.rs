//! Layers that models share and that show up in traces.

use std::sync::Arc;

use candle_core::quantized::QTensor;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2dConfig, LayerNormConfig, VarBuilder};

use super::quantized_var_builder;

/// The module path by which trace filters know this module.
const TARGET: &str = "candle_transformers::models::with_tracing";

macro_rules! span {
    ($name: literal) => {
        tracing::span!(target: TARGET, tracing::Level::TRACE, $name)
    };
}

/// A layer of candle_nn whose calls are spans of this name.
macro_rules! traced {
    ($(#[$doc: meta])* $name: ident, $span: literal, $(#[$forward: meta])*) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name {
            inner: candle_nn::$name,
            span: tracing::Span,
        }

        impl $name {
            fn traced(inner: candle_nn::$name) -> Self {
                let span = span!($span);
                Self { inner, span }
            }
        }

        $(#[$forward])*
        impl Module for $name {
            fn forward(&self, xs: &Tensor) -> Result<Tensor> {
                let _inside = self.span.enter();
                self.inner.forward(xs)
            }
        }
    };
}

traced!(
    /// A table of vectors. Each look-up is a [`tracing`] span `embedding`.
    Embedding,
    "embedding",
    /// From indices of any shape to that shape with the size of a vector appended.
);

impl Embedding {
    /// The tensor `weight`, `(d1, d2)`.
    ///
    /// # Errors
    /// If it is missing or has another shape.
    pub fn new(d1: usize, d2: usize, vb: VarBuilder) -> Result<Self> {
        candle_nn::embedding(d1, d2, vb).map(Self::traced)
    }

    /// A table of two dimensions.
    ///
    /// # Errors
    /// If it has another number of dimensions.
    pub fn from_weights(weights: Tensor) -> Result<Self> {
        let (_, size) = weights.dims2()?;
        Ok(Self::traced(candle_nn::Embedding::new(weights, size)))
    }

    /// The table.
    pub fn embeddings(&self) -> &Tensor {
        self.inner.embeddings()
    }
}

traced!(
    /// A linear layer. Each product is a [`tracing`] span `linear`.
    Linear,
    "linear",
    /// From `(.., in_dim)` to `(.., out_dim)`.
);

impl Linear {
    /// A layer from its weights, `(out_dim, in_dim)` and `(out_dim)`.
    pub fn from_weights(weights: Tensor, bias: Option<Tensor>) -> Self {
        Self::traced(candle_nn::Linear::new(weights, bias))
    }
}

/// A layer from `d1` to `d2`, from the tensors `weight` and, if `b` says so, `bias`.
///
/// # Errors
/// If one is missing or has another shape.
pub fn linear_b(d1: usize, d2: usize, b: bool, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_b(d1, d2, b, vb).map(Linear::traced)
}

/// A layer from `d1` to `d2`, from the tensors `weight` and `bias`.
///
/// # Errors
/// If one is missing or has another shape.
pub fn linear(d1: usize, d2: usize, vb: VarBuilder) -> Result<Linear> {
    linear_b(d1, d2, true, vb)
}

/// A layer from `d1` to `d2`, from the tensor `weight`.
///
/// # Errors
/// If it is missing or has another shape.
pub fn linear_no_bias(d1: usize, d2: usize, vb: VarBuilder) -> Result<Linear> {
    linear_b(d1, d2, false, vb)
}

traced!(
    /// A convolution of images. Each is a [`tracing`] span `conv2d`.
    Conv2d,
    "conv2d",
    /// From `(b, in_channels, h, w)` to `(b, out_channels, ..)`.
);

/// A convolution from the tensors `weight` and `bias`.
///
/// # Errors
/// If one is missing or has another shape.
pub fn conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv2dConfig,
    vs: VarBuilder,
) -> Result<Conv2d> {
    candle_nn::conv2d(in_channels, out_channels, kernel_size, cfg, vs).map(Conv2d::traced)
}

traced!(
    /// A norm with a mean. Each is a [`tracing`] span `layer-norm`.
    LayerNorm,
    "layer-norm",
    /// From `(.., size)` to the same shape.
);

impl LayerNorm {
    /// A norm from its weights, `(size)` each.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self::traced(candle_nn::LayerNorm::new(weight, bias, eps))
    }
}

/// A norm from the tensors `weight` and, unless `c` says otherwise, `bias`.
///
/// # Errors
/// If one is missing or has another shape.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    c: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, c, vb).map(LayerNorm::traced)
}

traced!(
    /// A norm without a mean. Each is a [`tracing`] span `rms-norm`.
    RmsNorm,
    "rms-norm",
    /// From `(.., size)` to the same shape.
);

impl RmsNorm {
    /// A norm from the tensor `weight`.
    ///
    /// # Errors
    /// If it is missing or has another shape.
    pub fn new(size: usize, eps: f64, vb: VarBuilder) -> Result<Self> {
        candle_nn::rms_norm(size, eps, vb).map(Self::traced)
    }

    /// As [`Module::forward`], of ops that gradients go through.
    ///
    /// # Errors
    /// If the last dimension is not `size`.
    pub fn forward_diff(&self, x: &Tensor) -> Result<Tensor> {
        let _inside = self.span.enter();
        self.inner.forward_diff(x)
    }
}

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
    pub fn new(
        out_dim: usize,
        in_dim: usize,
        vb: quantized_var_builder::VarBuilder,
    ) -> Result<Self> {
        Self::from_weights(vb.get((in_dim, out_dim), "weight")?)
    }

    /// A weight `(out_dim, in_dim)`; F32, F16 and BF16 become dense.
    ///
    /// # Errors
    /// If the device cannot allocate the memory for a dense weight.
    pub fn from_weights(ws: Arc<QTensor>) -> Result<Self> {
        Ok(Self {
            inner: candle_core::quantized::QMatMul::from_arc(ws)?,
            span: span!("qmatmul"),
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
