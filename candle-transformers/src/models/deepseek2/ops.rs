//! Tensor ops that upstream's model is written with. Part of upstream's interface; the model here needs none.

use candle_core::shape::Dim;
use candle_core::{Device, Error, Result, Tensor, D};

/// The indices of a tensor's elements other than 0.
pub trait NonZeroOp {
    /// The indices of the elements that are not 0, in order: `(count, rank)` in u32. The tensor has to be contiguous; this waits for the
    /// device.
    ///
    /// # Errors
    /// If it is not contiguous, or its dtype has no comparison.
    fn nonzero(&self) -> Result<Tensor>;
}

impl NonZeroOp for Tensor {
    fn nonzero(&self) -> Result<Tensor> {
        if !self.is_contiguous() {
            return Err(Error::RequiresContiguous { op: "nonzero" }.bt());
        }
        let host = self.to_device(&Device::Cpu)?.flatten_all()?;
        let holds = host.ne(0f64)?.to_vec1::<u8>()?;
        let dims = self.dims();
        let mut indices = Vec::new();
        let mut count = 0;
        for (at, _) in holds.iter().enumerate().filter(|(_, holds)| **holds != 0) {
            count += 1;
            let mut step = holds.len();
            let mut rest = at;
            for dim in dims {
                step /= dim;
                indices.push((rest / step) as u32);
                rest %= step;
            }
        }
        Tensor::from_vec(indices, (count, dims.len()), self.device())
    }
}

/// The largest elements of rows.
pub struct TopKOutput {
    /// The elements.
    pub values: Tensor,
    /// Their indices, in u32.
    pub indices: Tensor,
}

/// The largest elements of the last dimension.
pub trait TopKLastDimOp {
    /// The `topk` largest elements, the largest first. A gradient flows through the values.
    ///
    /// # Errors
    /// If there are fewer, or the tensor is not contiguous.
    fn topk(&self, topk: usize) -> Result<TopKOutput>;

    /// As [`topk`](Self::topk), in the order of the indices.
    ///
    /// # Errors
    /// As [`topk`](Self::topk).
    fn topk_unsorted(&self, topk: usize) -> Result<TopKOutput>;
}

impl TopKLastDimOp for Tensor {
    fn topk(&self, topk: usize) -> Result<TopKOutput> {
        let order = self.arg_sort_last_dim(false)?;
        let indices = order.narrow(D::Minus1, 0, topk)?.contiguous()?;
        Ok(TopKOutput {
            values: self.gather(&indices, D::Minus1)?,
            indices,
        })
    }

    fn topk_unsorted(&self, topk: usize) -> Result<TopKOutput> {
        let sorted = self.topk(topk)?;
        let order = sorted.indices.arg_sort_last_dim(true)?;
        Ok(TopKOutput {
            values: sorted.values.gather(&order, D::Minus1)?,
            indices: sorted.indices.gather(&order, D::Minus1)?,
        })
    }
}

/// Parts of a dimension.
pub trait SplitOp {
    /// Consecutive parts of these sizes along `dim`, as views. A remainder belongs to no part.
    ///
    /// # Errors
    /// If the dimension is smaller than all of them.
    fn split<D: Dim>(&self, splits: &[usize], dim: D) -> Result<Vec<Tensor>>;
}

impl SplitOp for Tensor {
    fn split<D: Dim>(&self, splits: &[usize], dim: D) -> Result<Vec<Tensor>> {
        let dim = dim.to_index(self.shape(), "split")?;
        let mut start = 0;
        let part = |len: &usize| {
            start += len;
            self.narrow(dim, start - len, *len)
        };
        splits.iter().map(part).collect()
    }
}

/// Counts of numbers.
pub trait BincountOp {
    /// The number of occurrences of each number from 0 to the largest in a vector of u32; at least `minlength` counts. Waits for the
    /// device.
    ///
    /// # Errors
    /// If the tensor is not a vector of u32.
    fn bincount(&self, minlength: u32) -> Result<Vec<u32>>;
}

impl BincountOp for Tensor {
    fn bincount(&self, minlength: u32) -> Result<Vec<u32>> {
        let numbers = self.to_vec1::<u32>()?;
        let largest = numbers.iter().max().copied().unwrap_or(0);
        let len = (largest as usize + 1).max(minlength as usize);
        let mut counts = Vec::new();
        counts.try_reserve_exact(len).map_err(Error::wrap)?;
        counts.resize(len, 0);
        for number in numbers {
            counts[number as usize] += 1;
        }
        Ok(counts)
    }
}
