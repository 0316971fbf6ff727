//! Gradients of resampling. Along each dimension an element of the result is a weighted sum of elements of the argument; its
//! gradient goes back to them with the same weights.

use super::{Grads, Node};
use crate::backend::BackendStorage;
use crate::resample::{linear, nearest as nearest_indices, Mix};
use crate::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// Adds the slices of `t` along `dim` to the slices at `indices` of a result with `size` slices.
fn fold(t: &Tensor, dim: usize, size: usize, indices: Vec<usize>) -> Result<Tensor> {
    let indices = indices.into_iter().map(u32::try_from);
    let indices = indices.collect::<std::result::Result<Vec<_>, _>>()?;
    let mut dims = t.dims().to_vec();
    dims[dim] = size;
    super::zeros(dims, t)?.index_add(&Tensor::new(indices, t.device())?, t, dim)
}

/// The dimensions that are resampled, those after batch and channels, last first.
fn resampled_dims(arg: &Tensor) -> impl Iterator<Item = (usize, usize)> + '_ {
    arg.dims().iter().copied().enumerate().skip(2).rev()
}

pub(super) fn nearest(grads: &mut Grads, node: &Node, arg: &Tensor) -> Result<()> {
    grads.add(arg, || {
        let mut grad = node.grad.clone();
        for (dim, size) in resampled_dims(arg) {
            let indices = nearest_indices(size, grad.dims()[dim]);
            grad = fold(&grad, dim, size, indices)?;
        }
        Ok(grad)
    })
}

pub(super) fn bilinear(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    align_corners: bool,
) -> Result<()> {
    grads.add(arg, || {
        linear_grad(&node.grad, arg, align_corners, [None; 2])
    })
}

/// The gradient of linear resampling; `scales` are those of height and width.
fn linear_grad(
    grad: &Tensor,
    arg: &Tensor,
    align_corners: bool,
    scales: [Option<f64>; 2],
) -> Result<Tensor> {
    let mut grad = grad.clone();
    for (dim, size) in resampled_dims(arg) {
        let mixes = linear(size, grad.dims()[dim], align_corners, scales[dim - 2]);
        let mut weight_dims = vec![1; grad.rank()];
        weight_dims[dim] = mixes.len();
        let part = |i: usize| {
            let weight = |mix: &Mix| [1. - mix.second, mix.second][i];
            let weights: Vec<f64> = mixes.iter().map(weight).collect();
            let weights = Tensor::from_vec(weights, weight_dims.as_slice(), &crate::Device::Cpu)?
                .to_dtype(grad.dtype())?
                .to_device(grad.device())?;
            let indices = mixes.iter().map(|mix| mix.indices[i]).collect();
            fold(&grad.broadcast_mul(&weights)?, dim, size, indices)
        };
        grad = (part(0)? + part(1)?)?;
    }
    Ok(grad)
}

/// Bilinear resampling by scales that are not the ratios of the sizes; `Op::UpsampleBilinear2D` has no fields for them.
pub(crate) struct ScaledBilinear {
    pub target: (usize, usize),
    pub align_corners: bool,
    /// Scales of height and width.
    pub scales: (f64, f64),
}

impl CustomOp1 for ScaledBilinear {
    fn name(&self) -> &'static str {
        "upsample_bilinear2d"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Self {
            target: (h, w),
            align_corners,
            scales,
        } = *self;
        let (b, c, _, _) = layout.shape().dims4()?;
        let (scale_h, scale_w) = (Some(scales.0), Some(scales.1));
        let out = storage.upsample_bilinear2d(layout, h, w, align_corners, scale_h, scale_w)?;
        Ok((out, Shape::from((b, c, h, w))))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let scales = [Some(self.scales.0), Some(self.scales.1)];
        linear_grad(grad_res, arg, self.align_corners, scales).map(Some)
    }
}
