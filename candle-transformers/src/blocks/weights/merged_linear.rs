//! Several linear layers over one input as one matmul.

use std::ops::Range;

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::Linear;

use super::{Projection, StoredLinear};

/// `N` linear layers that read the same input, kept as one layer whose weight is theirs stacked along the output.
///
/// One wide matmul reads the input once and costs one kernel launch; a decoding step is bound by such launches and by
/// memory. Weights that are variables, or results of tracked ops, stay separate: stacking copies them, and an optimizer
/// would keep updating tensors that are no longer read. Quantised weights are stacked with neighbours of the same
/// format.
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
    /// Neighbouring layers, stacked; together they are all of them in order.
    groups: Vec<Group>,
    out_dims: [usize; N],
}

#[derive(Debug, Clone)]
struct Group {
    linear: Projection,
    /// The layers in it.
    parts: Range<usize>,
}

impl<const N: usize> MergedLinear<N> {
    /// Merges `parts`, whose weights have shape `(out_dim, in_dim)` with one `in_dim`. Neighbours that all have a bias, or none, are
    /// merged.
    ///
    /// # Errors
    /// If a weight is not two-dimensional, or the weights differ in `in_dim`, dtype or device.
    pub fn new(parts: [Linear; N]) -> Result<Self> {
        let Some(first) = parts.first() else {
            bail!("merged linear: no layers; at least one is required")
        };
        let (dtype, device) = (first.weight().dtype(), first.weight().device().clone());
        if let Some(other) = parts.iter().find(|part| part.weight().dtype() != dtype) {
            bail!(
                "merged linear: weights of different dtypes, {dtype:?} and {:?}",
                other.weight().dtype()
            )
        }
        Self::from_stored(parts.map(StoredLinear::from), dtype, &device)
    }

    /// Places `parts`, whose weights have shape `(out_dim, in_dim)` with one `in_dim`, on `device`, for an input of `dtype`. Neighbours
    /// of one format are merged before they go there, where that is of use.
    ///
    /// # Errors
    /// If a weight is not two-dimensional, the weights differ in `in_dim`, or the device refuses them.
    pub fn from_stored(parts: [StoredLinear; N], dtype: DType, device: &Device) -> Result<Self> {
        let mut shapes = [(0, 0); N];
        for (shape, part) in shapes.iter_mut().zip(&parts) {
            *shape = part.weight.shape().dims2()?;
        }
        let out_dims = checked_out_dims(shapes)?;
        let mut neighbours: Vec<Vec<StoredLinear>> = Vec::new();
        for part in parts {
            match neighbours.last_mut() {
                Some(group)
                    if part.merges(device)
                        && group[0].merges(device)
                        && group[0].kind() == part.kind() =>
                {
                    group.push(part);
                }
                _ => neighbours.push(vec![part]),
            }
        }
        let mut start = 0;
        let mut group = |parts: Vec<StoredLinear>| {
            start += parts.len();
            Ok(Group {
                parts: start - parts.len()..start,
                linear: StoredLinear::stack(parts, dtype, device)?,
            })
        };
        let groups = neighbours.into_iter().map(&mut group);
        Ok(Self {
            groups: groups.collect::<Result<_>>()?,
            out_dims,
        })
    }

    /// Layers that are one already: `linear` has the outputs of all, `out_dims` of each.
    pub fn joined(linear: Projection, out_dims: [usize; N]) -> Self {
        let groups = vec![Group {
            linear,
            parts: 0..N,
        }];
        Self { groups, out_dims }
    }

    /// The layers for an input of `dtype`.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let groups = self.groups.iter().map(|group| {
            Ok(Group {
                linear: group.linear.to_dtype(dtype)?,
                parts: group.parts.clone(),
            })
        });
        Ok(Self {
            groups: groups.collect::<Result<_>>()?,
            out_dims: self.out_dims,
        })
    }

    /// The merged layer, if they run as one matmul: it returns the concatenated outputs.
    pub fn merged(&self) -> Option<&Projection> {
        match self.groups.as_slice() {
            [group] => Some(&group.linear),
            _ => None,
        }
    }

    /// Whether the layers run as one matmul.
    pub fn is_merged(&self) -> bool {
        self.groups.len() == 1
    }

    /// The layers' outputs, `(.., out_dim)` each. Merged, they are views into one tensor.
    ///
    /// # Errors
    /// If the last dimension of `xs` is not the layers' input size.
    pub fn forward(&self, xs: &Tensor) -> Result<[Tensor; N]> {
        let mut outputs = Vec::with_capacity(N);
        for group in &self.groups {
            let all = group.linear.forward(xs)?;
            let mut start = 0;
            for &out_dim in &self.out_dims[group.parts.clone()] {
                outputs.push(all.narrow(D::Minus1, start, out_dim)?);
                start += out_dim;
            }
        }
        match <[Tensor; N]>::try_from(outputs) {
            Ok(outputs) => Ok(outputs),
            Err(outputs) => bail!("merged linear: {} outputs instead of {N}", outputs.len()),
        }
    }

    /// The concatenated outputs of the layers: `(.., sum of out_dims)`, contiguous.
    ///
    /// # Errors
    /// If the last dimension of `xs` is not the layers' input size.
    pub fn forward_joined(&self, xs: &Tensor) -> Result<Tensor> {
        let outputs = self.groups.iter().map(|group| group.linear.forward(xs));
        match outputs.collect::<Result<Vec<_>>>()?.as_slice() {
            [all] => Ok(all.clone()),
            outputs => Tensor::cat(outputs, D::Minus1),
        }
    }
}

/// The output sizes of layers that have to have one input size.
fn checked_out_dims<const N: usize>(shapes: [(usize, usize); N]) -> Result<[usize; N]> {
    let in_dims = shapes.map(|(_, in_dim)| in_dim);
    if in_dims.iter().any(|in_dim| *in_dim != in_dims[0]) {
        bail!("merged linear: the layers must have equal input sizes, found {in_dims:?}")
    }
    Ok(shapes.map(|(out_dim, _)| out_dim))
}
