//! What the encoders and the decoder share.

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear_no_bias, Linear, RmsNorm, VarBuilder};

/// The norm of vectors of `size` without a weight.
pub fn bare_norm(size: usize, eps: f64, vb: &VarBuilder) -> Result<RmsNorm> {
    let ones = Tensor::ones(size, vb.dtype(), vb.device())?;
    Ok(RmsNorm::new(ones, eps))
}

/// Whether a file has a tensor that others lack. A source that has every name, such as zeros, is not a file and counts as lacking it.
pub fn has(vb: &VarBuilder, name: &str) -> bool {
    vb.contains_tensor(name) && !vb.contains_tensor("a name that no file has")
}

/// A linear layer whose inputs and outputs are clamped where a file says to what.
#[derive(Debug, Clone)]
pub struct ClippedLinear {
    linear: Linear,
    /// The least and the largest.
    inputs: Option<[Tensor; 2]>,
    outputs: Option<[Tensor; 2]>,
}

impl ClippedLinear {
    /// Loads `weight`, or as files have it that may clamp `linear.weight`, and `{input,output}_{min,max}` if they are there.
    pub fn load(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Self> {
        let inner = vb.pp("linear");
        if !has(&inner, "weight") {
            return Ok(Self {
                linear: linear_no_bias(in_dim, out_dim, vb)?,
                inputs: None,
                outputs: None,
            });
        }
        let bounds = |side: &str| -> Result<Option<[Tensor; 2]>> {
            let [least, largest] = ["min", "max"].map(|end| format!("{side}_{end}"));
            if has(&vb, &least) {
                Ok(Some([vb.get((), &least)?, vb.get((), &largest)?]))
            } else {
                Ok(None)
            }
        };
        Ok(Self {
            linear: linear_no_bias(in_dim, out_dim, inner)?,
            inputs: bounds("input")?,
            outputs: bounds("output")?,
        })
    }
}

fn clamped(xs: Tensor, bounds: &Option<[Tensor; 2]>) -> Result<Tensor> {
    match bounds {
        Some([least, largest]) => xs.broadcast_maximum(least)?.broadcast_minimum(largest),
        None => Ok(xs),
    }
}

/// From (.., in_dim) to (.., out_dim).
impl Module for ClippedLinear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.linear.forward(&clamped(xs.clone(), &self.inputs)?)?;
        clamped(ys, &self.outputs)
    }
}
