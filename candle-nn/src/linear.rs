//! The linear layer, `xs weight^T + bias`.

use crate::{init, Init, VarBuilder};
use candle_core::{Module, Result, Tensor};

/// `xs weight^T + bias`, with `weight` of shape (out_dim, in_dim) and `bias` of shape (out_dim), or none.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer from its weights: (out_dim, in_dim) and (out_dim). They are checked when the layer is applied.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// The weight, of shape (out_dim, in_dim).
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, of shape (out_dim).
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

/// From (…, n, in_dim) to (…, n, out_dim), with any number of batch dimensions.
impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = match xs.dims() {
            [batch @ .., n, in_dim] if !batch.is_empty() && xs.is_contiguous() => {
                // One product over all rows is faster than a batch of small ones.
                let rows = batch.iter().product::<usize>() * n;
                let ys = xs.reshape((rows, *in_dim))?.matmul(&self.weight.t()?)?;
                let mut dims = xs.dims().to_vec();
                dims[xs.rank() - 1] = ys.dim(1)?;
                ys.reshape(dims)?
            }
            [batch @ .., _, _] if !batch.is_empty() => {
                xs.matmul(&self.weight.broadcast_left(batch)?.t()?)?
            }
            _ => xs.matmul(&self.weight.t()?)?,
        };
        match &self.bias {
            None => Ok(ys),
            Some(bias) => ys.broadcast_add(bias),
        }
    }
}

/// A layer with a bias, from the tensors `weight` and `bias` of `vb`. Where they are new, the weight is Kaiming normal and the
/// bias uniform within `1 / sqrt(in_dim)` of 0.
///
/// # Errors
/// A tensor is missing or has another shape.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = weight(in_dim, out_dim, &vb)?;
    let bound = 1. / (in_dim as f64).sqrt();
    let init = Init::Uniform {
        lo: -bound,
        up: bound,
    };
    let bias = vb.get_with_hints(out_dim, "bias", init)?;
    Ok(Linear::new(weight, Some(bias)))
}

/// A layer without a bias, from the tensor `weight` of `vb`; see [`linear`].
///
/// # Errors
/// The tensor is missing or has another shape.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    Ok(Linear::new(weight(in_dim, out_dim, &vb)?, None))
}

/// [`linear`] or [`linear_no_bias`], as `bias` says.
///
/// # Errors
/// A tensor is missing or has another shape.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    if bias {
        linear(in_dim, out_dim, vb)
    } else {
        linear_no_bias(in_dim, out_dim, vb)
    }
}

fn weight(in_dim: usize, out_dim: usize, vb: &VarBuilder) -> Result<Tensor> {
    vb.get_with_hints((out_dim, in_dim), "weight", init::DEFAULT_KAIMING_NORMAL)
}
