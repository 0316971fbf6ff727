//! Gradients of pooling: each window's gradient goes to its elements, and windows may overlap or leave elements out.

use super::{masked, Grads, Node};
use crate::{Result, Tensor};

/// Size and stride of windows, each `(height, width)`.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    pub size: (usize, usize),
    pub stride: (usize, usize),
}

impl Windows {
    /// A view of `(b, c, h, w)` as windows: `(b, c, h_out, w_out, k_h, k_w)`.
    fn of(self, t: &Tensor) -> Result<Tensor> {
        t.unfold(2, self.size.0, self.stride.0)?
            .unfold(3, self.size.1, self.stride.1)
    }

    /// Repeats each window's value, `(b, c, h_out, w_out)`, for its elements.
    fn spread(self, t: &Tensor) -> Result<Tensor> {
        let (b, c, h, w) = t.dims4()?;
        t.reshape((b, c, h, w, 1, 1))?
            .broadcast_as((b, c, h, w, self.size.0, self.size.1))
    }

    /// The reverse of [`Windows::of`], with the sum where windows overlap and 0 where there is none.
    fn fold(self, t: &Tensor, arg: &Tensor) -> Result<Tensor> {
        let (_, _, h, w) = arg.dims4()?;
        // (b, c, h_out, w_out, k_h, k_w), then without w_out and k_w, then without h_out and k_h.
        let rows = fold_dim(&t.transpose(3, 4)?, 4, w, self.stride.1)?;
        fold_dim(&rows, 2, h, self.stride.0)
    }
}

/// Merges dimension `dim` (windows, `stride` apart) and the next one (elements of a window) into one dimension of
/// `size` elements.
fn fold_dim(t: &Tensor, dim: usize, size: usize, stride: usize) -> Result<Tensor> {
    let (count, len) = (t.dims()[dim], t.dims()[dim + 1]);
    let places = (0..count).flat_map(|i| (0..len).map(move |j| i * stride + j));
    let places = places
        .map(u32::try_from)
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let places = Tensor::new(places, t.device())?;
    let elements = t.flatten(dim, dim + 1)?;
    let mut dims = elements.dims().to_vec();
    dims[dim] = size;
    super::zeros(dims, t)?.index_add(&places, &elements, dim)
}

pub(super) fn avg(grads: &mut Grads, node: &Node, arg: &Tensor, windows: Windows) -> Result<()> {
    let count = windows.size.0 * windows.size.1;
    grads.add(arg, || {
        let share = (&node.grad / count as f64)?;
        windows.fold(&windows.spread(&share)?, arg)
    })
}

/// The first of the greatest elements of a window receives its gradient.
pub(super) fn max(grads: &mut Grads, node: &Node, arg: &Tensor, windows: Windows) -> Result<()> {
    grads.add(arg, || {
        let elements = windows.of(&node.arg(arg).detach())?;
        let greatest = elements.eq(&windows.spread(&node.res.detach())?)?;
        let first = greatest.flatten(4, 5)?.argmax_keepdim(4)?;
        let count = u32::try_from(windows.size.0 * windows.size.1)?;
        let places = Tensor::arange(0, count, arg.device())?;
        let chosen = first.broadcast_eq(&places)?.reshape(greatest.shape())?;
        // A window with NaN has no element that equals its result.
        let chosen = (chosen * greatest)?;
        windows.fold(&masked(&chosen, &windows.spread(&node.grad)?)?, arg)
    })
}
