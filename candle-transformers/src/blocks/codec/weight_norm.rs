//! Kernels under weight normalisation, [arXiv 1602.07868](https://arxiv.org/abs/1602.07868): a length for each of the first dimension's
//! rows, times the row's direction.

use candle_core::{bail, Result, Tensor};
use candle_nn::{Conv1d, Conv1dConfig, ConvTranspose1d, ConvTranspose1dConfig, VarBuilder};

use super::wide;

/// Under which names a file has a kernel. All are understood; these are the ones that are looked for first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelNames {
    /// `weight_g` and `weight_v`: PyTorch's, up to version 2.0.
    Pair,
    /// `parametrizations.weight.original0` and `original1`: PyTorch's since.
    Parametrized,
    /// `weight`: the product, for inference.
    Product,
}

impl KernelNames {
    /// The names of length and direction.
    fn pair(self) -> Option<[&'static str; 2]> {
        match self {
            Self::Pair => Some(["weight_g", "weight_v"]),
            Self::Parametrized => Some([
                "parametrizations.weight.original0",
                "parametrizations.weight.original1",
            ]),
            Self::Product => None,
        }
    }

    fn are_in(self, vb: &VarBuilder) -> bool {
        match self.pair() {
            Some(names) => names.iter().all(|name| vb.contains_tensor(name)),
            None => vb.contains_tensor("weight"),
        }
    }

    /// The kernel of this shape.
    ///
    /// # Errors
    /// It is there under none of the names, or has another shape.
    pub fn kernel(self, dims: (usize, usize, usize), vb: &VarBuilder) -> Result<Tensor> {
        let all = [self, Self::Pair, Self::Parametrized, Self::Product];
        let found = all.into_iter().find(|names| names.are_in(vb));
        let Some([length, direction]) = found.unwrap_or(self).pair() else {
            return vb.get(dims, "weight");
        };
        let length = vb.get((dims.0, 1, 1), length)?;
        let direction = vb.get(dims, direction)?;
        // A sum of squares leaves the range of f16.
        let (dtype, wide) = (direction.dtype(), wide(direction.dtype()));
        let direction = direction.to_dtype(wide)?;
        let norm = direction.sqr()?.sum_keepdim((1, 2))?.sqrt()?;
        let scale = (length.to_dtype(wide)? / norm)?;
        direction.broadcast_mul(&scale)?.to_dtype(dtype)
    }

    /// A convolution with kernels (outputs, inputs / groups, size), and `bias` if it has one.
    ///
    /// # Errors
    /// Those of [`kernel`](Self::kernel); a size is 0, or the groups do not divide the inputs.
    pub fn conv1d(
        self,
        [inputs, outputs, size]: [usize; 3],
        bias: bool,
        config: Conv1dConfig,
        vb: VarBuilder,
    ) -> Result<Conv1d> {
        there_are([inputs, outputs, size])?;
        let weight = self.kernel((outputs, share(inputs, config.groups)?, size), &vb)?;
        let bias = bias.then(|| vb.get(outputs, "bias")).transpose()?;
        Ok(Conv1d::new(weight, bias, config))
    }

    /// A transposed convolution with kernels (inputs, outputs / groups, size), and `bias` if it has one.
    ///
    /// # Errors
    /// Those of [`kernel`](Self::kernel); a size is 0, or the groups do not divide the outputs.
    pub fn conv_transpose1d(
        self,
        [inputs, outputs, size]: [usize; 3],
        bias: bool,
        config: ConvTranspose1dConfig,
        vb: VarBuilder,
    ) -> Result<ConvTranspose1d> {
        there_are([inputs, outputs, size])?;
        let weight = self.kernel((inputs, share(outputs, config.groups)?, size), &vb)?;
        let bias = bias.then(|| vb.get(outputs, "bias")).transpose()?;
        Ok(ConvTranspose1d::new(weight, bias, config))
    }
}

fn there_are(sizes: [usize; 3]) -> Result<()> {
    if sizes.contains(&0) {
        bail!("conv: input channels, output channels and the kernel's size must be at least 1, not {sizes:?}")
    }
    Ok(())
}

fn share(channels: usize, groups: usize) -> Result<usize> {
    match channels.checked_rem(groups) {
        Some(0) => Ok(channels / groups),
        _ => bail!("conv: {channels} channels cannot be split into {groups} groups"),
    }
}
