//! Several linear layers over one input as one matmul.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::{linear_no_bias, Linear, VarBuilder};

/// `N` linear layers that read the same input, kept as one layer whose weight is theirs stacked along the output.
///
/// One wide matmul reads the input once and costs one kernel launch; a decoding step is bound by such launches and by
/// memory. Weights that are variables, or results of tracked ops, stay separate: stacking copies them, and an optimizer
/// would go on changing tensors that nobody reads.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_nn::Linear;
/// use candle_transformers::blocks::MergedLinear;
/// # fn main() -> candle_core::Result<()> {
/// let device = Device::Cpu;
/// let first = Linear::new(Tensor::new(&[[1f32, 0.]], &device)?, None);
/// let second = Linear::new(Tensor::new(&[[0f32, 1.], [1., 1.]], &device)?, None);
/// let merged = MergedLinear::new([first, second])?;
/// let [first, second] = merged.forward(&Tensor::new(&[[2f32, 3.]], &device)?)?;
/// assert_eq!(first.to_vec2::<f32>()?, [[2.]]);
/// assert_eq!(second.to_vec2::<f32>()?, [[3., 5.]]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MergedLinear<const N: usize> {
    weights: Weights<N>,
    out_dims: [usize; N],
}

#[derive(Debug, Clone)]
enum Weights<const N: usize> {
    Merged(Linear),
    Separate([Linear; N]),
}

impl<const N: usize> MergedLinear<N> {
    /// Merges `parts`, whose weights have shape `(out_dim, in_dim)` with one `in_dim`. Either all have a bias or none;
    /// where some have one, they stay separate.
    ///
    /// # Errors
    /// If a weight is not two-dimensional, or the weights differ in `in_dim`, dtype or device.
    pub fn new(parts: [Linear; N]) -> Result<Self> {
        let mut out_dims = [0; N];
        let mut in_dims = [0; N];
        for (i, part) in parts.iter().enumerate() {
            (out_dims[i], in_dims[i]) = part.weight().dims2()?;
        }
        if in_dims.iter().any(|in_dim| *in_dim != in_dims[0]) {
            bail!("merged linear: layers over one input, but their input sizes are {in_dims:?}")
        }
        let tracked = |part: &Linear| {
            part.weight().track_op() || part.bias().is_some_and(|bias| bias.track_op())
        };
        let biases: Vec<&Tensor> = parts.iter().filter_map(Linear::bias).collect();
        let biases_agree = biases.is_empty() || biases.len() == N;
        let weights = if N < 2 || !biases_agree || parts.iter().any(tracked) {
            Weights::Separate(parts)
        } else {
            let weight = Tensor::cat(&parts.each_ref().map(Linear::weight), 0)?;
            let bias = match biases.as_slice() {
                [] => None,
                biases => Some(Tensor::cat(biases, 0)?),
            };
            Weights::Merged(Linear::new(weight, bias))
        };
        Ok(Self { weights, out_dims })
    }

    /// Loads layers without bias by name and output size, each as `vb / name / weight`, and merges them.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than `(out_dim, in_dim)`.
    pub fn load(in_dim: usize, parts: [(&str, usize); N], vb: &VarBuilder) -> Result<Self> {
        let parts = parts
            .into_iter()
            .map(|(name, out_dim)| linear_no_bias(in_dim, out_dim, vb.pp(name)))
            .collect::<Result<Vec<_>>>()?;
        match <[Linear; N]>::try_from(parts) {
            Ok(parts) => Self::new(parts),
            Err(parts) => bail!("merged linear: {} layers instead of {N}", parts.len()),
        }
    }

    /// Whether the layers run as one matmul.
    pub fn is_merged(&self) -> bool {
        matches!(self.weights, Weights::Merged(_))
    }

    /// The layers' outputs, `(.., out_dim)` each. Merged, they are views into one tensor.
    ///
    /// # Errors
    /// If the last dimension of `xs` is not the layers' input size.
    pub fn forward(&self, xs: &Tensor) -> Result<[Tensor; N]> {
        let outputs = match &self.weights {
            Weights::Merged(linear) => {
                let all = linear.forward(xs)?;
                let mut start = 0;
                self.out_dims
                    .iter()
                    .map(|&out_dim| {
                        start += out_dim;
                        all.narrow(D::Minus1, start - out_dim, out_dim)
                    })
                    .collect::<Result<Vec<_>>>()?
            }
            Weights::Separate(linears) => linears
                .iter()
                .map(|linear| linear.forward(xs))
                .collect::<Result<Vec<_>>>()?,
        };
        match <[Tensor; N]>::try_from(outputs) {
            Ok(outputs) => Ok(outputs),
            Err(outputs) => bail!("merged linear: {} outputs instead of {N}", outputs.len()),
        }
    }

    /// The layers' outputs side by side: `(.., sum of out_dims)`, contiguous.
    ///
    /// # Errors
    /// If the last dimension of `xs` is not the layers' input size.
    pub fn forward_joined(&self, xs: &Tensor) -> Result<Tensor> {
        match &self.weights {
            Weights::Merged(linear) => linear.forward(xs),
            Weights::Separate(_) => Tensor::cat(&self.forward(xs)?, D::Minus1),
        }
    }
}
