//! An addition to a linear layer: the product of two thin matrices, as in LoRA.

use std::ops::Range;

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};

use super::Cut;

/// `b (a x)`, added to a layer's `W x`.
#[derive(Debug, Clone)]
pub struct LowRank {
    a: Tensor,
    b: Tensor,
}

impl LowRank {
    /// From `a` of `(rank, in_dim)` and `b` of `(out_dim, rank)`.
    ///
    /// # Errors
    /// If the shapes are others, or the dtypes differ.
    pub fn new(a: Tensor, b: Tensor) -> Result<Self> {
        let ((rank, _), (_, other)) = (a.dims2()?, b.dims2()?);
        if rank != other || a.dtype() != b.dtype() {
            bail!("{b:?} and {a:?} have no product; expected (out_dim, rank) and (rank, in_dim) of one dtype")
        }
        Ok(Self { a, b })
    }

    /// The sum of two additions to the same layer.
    ///
    /// # Errors
    /// If they do not fit each other.
    pub fn and(&self, other: &Self) -> Result<Self> {
        Self::new(
            Tensor::cat(&[&self.a, &other.a], 0)?,
            Tensor::cat(&[&self.b, &other.b], 1)?,
        )
    }

    /// The shape of the weight that it is added to.
    pub fn dims(&self) -> Result<[usize; 2]> {
        Ok([self.b.dim(0)?, self.a.dim(1)?])
    }

    /// Beside a layer whose outputs are in another order, by a function of `(out_dim, rank)`.
    pub(super) fn map_outputs(self, change: impl FnOnce(Tensor) -> Result<Tensor>) -> Result<Self> {
        Self::new(self.a, change(self.b)?)
    }

    /// Beside a part of the layer's weight; [`Cut::Zeros`] is of no weight.
    ///
    /// # Errors
    /// If the weight has no part like that.
    pub fn cut(&self, cut: &Cut) -> Result<Self> {
        let parts = |tensor: &Tensor, dim, ranges: &[Range<usize>]| {
            let part = |range: &Range<usize>| tensor.narrow(dim, range.start, range.len());
            let parts = ranges.iter().map(part).collect::<Result<Vec<_>>>()?;
            Tensor::cat(&parts, dim)
        };
        match cut.ranges() {
            Some((0, ranges)) => Self::new(self.a.clone(), parts(&self.b, 0, ranges)?),
            Some((_, ranges)) => Self::new(parts(&self.a, 1, ranges)?, self.b.clone()),
            None => bail!("a weight cannot be replaced by zeros beside {:?}", self.b),
        }
    }

    /// The addition to a layer that concatenates the outputs of several: for each, the number of outputs and the addition.
    pub(super) fn stack(parts: Vec<(usize, Option<Self>)>) -> Result<Option<Self>> {
        let total: usize = parts.iter().map(|(outputs, _)| outputs).sum();
        let (mut all_a, mut all_b, mut start) = (Vec::new(), Vec::new(), 0);
        for (outputs, part) in parts {
            if let Some(Self { a, b }) = part {
                let behind = total.saturating_sub(start + outputs);
                all_b.push(b.pad_with_zeros(0, start, behind)?);
                all_a.push(a);
            }
            start += outputs;
        }
        if all_a.is_empty() {
            Ok(None)
        } else {
            Self::new(Tensor::cat(&all_a, 0)?, Tensor::cat(&all_b, 1)?).map(Some)
        }
    }

    pub(super) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        Self::new(self.a.to_dtype(dtype)?, self.b.to_dtype(dtype)?)
    }

    /// The same on `device`, for arguments of `dtype`.
    pub(super) fn place(&self, dtype: DType, device: &Device) -> Result<Self> {
        let place = |tensor: &Tensor| tensor.to_device(device)?.to_dtype(dtype)?.contiguous();
        Self::new(place(&self.a)?, place(&self.b)?)
    }
}

/// From `(.., in_dim)` to `(.., out_dim)`.
impl Module for LowRank {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        let flat = xs.reshape((rows, xs.dim(D::Minus1)?))?;
        let ys = flat.matmul(&self.a.t()?)?.matmul(&self.b.t()?)?;
        let mut dims = xs.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.b.dim(0)?;
        }
        ys.reshape(dims)
    }
}
