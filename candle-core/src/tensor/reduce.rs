//! Sums, means, extremes and related reductions, over one dimension, several, or all. The `_keepdim` forms keep a
//! reduced dimension with size 1, ready to broadcast.

use crate::op::{BackpropOp, Op, ReduceOp};
use crate::shape::{Dim, Dims};
use crate::{DType, Error, Result, Shape, Tensor};

/// `$name` and `$keepdim` over one dimension.
macro_rules! reduce_dim {
    ($($name:ident $keepdim:ident $op:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        ///
        /// # Errors
        /// When the dimension is out of range or has size 0.
        pub fn $name<D: Dim>(&self, dim: D) -> Result<Self> {
            let dims = [dim.to_index(self.shape(), stringify!($name))?];
            self.reduce(ReduceOp::$op, &dims, false)
        }

        #[doc = concat!($doc, " The dimension stays, with size 1.")]
        ///
        /// # Errors
        /// When the dimension is out of range or has size 0.
        pub fn $keepdim<D: Dim>(&self, dim: D) -> Result<Self> {
            let dims = [dim.to_index(self.shape(), stringify!($keepdim))?];
            self.reduce(ReduceOp::$op, &dims, true)
        }
    )*};
}

impl Tensor {
    reduce_dim! {
        max max_keepdim Max "The greatest element along a dimension.";
        min min_keepdim Min "The least element along a dimension.";
        argmax argmax_keepdim ArgMax "The index of the greatest element along a dimension, as u32; the first of several.";
        argmin argmin_keepdim ArgMin "The index of the least element along a dimension, as u32; the first of several.";
    }

    fn reduce(&self, op: ReduceOp, dims: &[usize], keepdim: bool) -> Result<Self> {
        let mut kept = self.shape().clone();
        for &dim in dims {
            kept = kept.with_size(dim, 1);
        }
        // An empty sum is 0; the others need at least one element.
        if !matches!(op, ReduceOp::Sum) && self.elem_count() == 0 && kept.elem_count() > 0 {
            return Err(Error::EmptyTensor { op: op.name() }.bt());
        }
        let storage = self.storage().reduce_op(op, self.layout(), dims)?;
        let backprop = match op {
            ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max => {
                BackpropOp::new1(self, |t| Op::Reduce(t, op, dims.to_vec()))
            }
            ReduceOp::ArgMin | ReduceOp::ArgMax => BackpropOp::none(),
        };
        if keepdim {
            return Ok(Self::from_storage(storage, kept, backprop, false));
        }
        if backprop.is_none() {
            return Ok(Self::from_storage(
                storage,
                self.shape_without(dims),
                backprop,
                false,
            ));
        }
        // In the graph the reduction keeps its dimensions, so that its gradient broadcasts.
        let out = Self::from_storage(storage, kept, backprop, false);
        out.without_dims(dims)
    }

    fn shape_without(&self, dims: &[usize]) -> Shape {
        let left = (0..self.rank()).filter(|i| !dims.contains(i));
        Shape::from_sizes(left.map(|i| self.dims()[i]))
    }

    /// Drops dimensions of size 1.
    fn without_dims(&self, dims: &[usize]) -> Result<Self> {
        self.reshape(self.shape_without(dims))
    }

    /// The sum over dimensions. An empty sum is 0.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, D};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[[0f32, 1.], [2., 3.]], &Device::Cpu)?;
    /// assert_eq!(t.sum(0)?.to_vec1::<f32>()?, [2., 4.]);
    /// assert_eq!(t.sum_keepdim(D::Minus1)?.to_vec2::<f32>()?, [[1.], [5.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a dimension is out of range or appears twice.
    pub fn sum<D: Dims>(&self, sum_dims: D) -> Result<Self> {
        let dims = sum_dims.to_indexes(self.shape(), "sum")?;
        self.reduce(ReduceOp::Sum, &dims, false)
    }

    /// The sum over dimensions, which are kept with size 1.
    ///
    /// # Errors
    /// When a dimension is out of range or appears twice.
    pub fn sum_keepdim<D: Dims>(&self, sum_dims: D) -> Result<Self> {
        let dims = sum_dims.to_indexes(self.shape(), "sum-keepdim")?;
        self.reduce(ReduceOp::Sum, &dims, true)
    }

    /// The mean over dimensions.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[[1f32, 2.], [3., 6.]], &Device::Cpu)?;
    /// assert_eq!(t.mean(0)?.to_vec1::<f32>()?, [2., 4.]);
    /// assert_eq!(t.max(1)?.to_vec1::<f32>()?, [2., 6.]);
    /// assert_eq!(t.argmax_keepdim(1)?.to_vec2::<u32>()?, [[1], [1]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a dimension is out of range or appears twice.
    pub fn mean<D: Dims>(&self, mean_dims: D) -> Result<Self> {
        let dims = mean_dims.to_indexes(self.shape(), "mean")?;
        self.mean_over(&dims, false)
    }

    /// The mean over dimensions, which are kept with size 1.
    ///
    /// # Errors
    /// When a dimension is out of range or appears twice.
    pub fn mean_keepdim<D: Dims>(&self, mean_dims: D) -> Result<Self> {
        let dims = mean_dims.to_indexes(self.shape(), "mean-keepdim")?;
        self.mean_over(&dims, true)
    }

    fn mean_over(&self, dims: &[usize], keepdim: bool) -> Result<Self> {
        let count: usize = dims.iter().map(|&dim| self.dims()[dim]).product();
        self.in_wide(|wide| wide.reduce(ReduceOp::Sum, dims, keepdim)? / count as f64)
    }

    /// The result of `f` on this tensor, with floats of 16 and 8 bits converted to f32 until the end: an intermediate sum may overflow them
    /// even if the result does not.
    fn in_wide(&self, f: impl FnOnce(&Self) -> Result<Self>) -> Result<Self> {
        match self.dtype() {
            DType::F16 | DType::BF16 | DType::F8E4M3 => {
                f(&self.to_dtype(DType::F32)?)?.to_dtype(self.dtype())
            }
            _ => f(self),
        }
    }

    /// The unbiased variance along a dimension: squared distances to the mean over `n - 1`.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn var<D: Dim>(&self, dim: D) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "var")?;
        self.var_keepdim(dim)?.without_dims(&[dim])
    }

    /// The unbiased variance along a dimension, which is kept with size 1.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn var_keepdim<D: Dim>(&self, dim: D) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "var-keepdim")?;
        self.in_wide(|wide| {
            let distance = wide.broadcast_sub(&wide.mean_keepdim(dim)?)?;
            distance.sqr()?.sum_keepdim(dim)? / (self.dims()[dim] as f64 - 1.)
        })
    }

    /// `log(sum(exp(x)))` over dimensions, computed without overflow.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[1000f32, 1000.], &Device::Cpu)?;
    /// assert_eq!(t.log_sum_exp(0)?.to_scalar::<f32>()?, 1000. + 2f32.ln());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a dimension is out of range, appears twice or has size 0.
    pub fn log_sum_exp<D: Dims>(&self, sum_dims: D) -> Result<Self> {
        let dims = sum_dims.to_indexes(self.shape(), "log-sum-exp")?;
        self.in_wide(|wide| {
            let mut greatest = wide.detach();
            for &dim in &dims {
                greatest = greatest.max_keepdim(dim)?;
            }
            // An infinite shift would produce NaN for infinite elements.
            let limit = match wide.dtype() {
                DType::F64 => f64::MAX,
                _ => f64::from(f32::MAX),
            };
            let shift = greatest.clamp(-limit, limit)?;
            let sum = wide
                .broadcast_sub(&shift)?
                .exp()?
                .sum_keepdim(dims.as_slice())?;
            (sum.log()? + shift)?.without_dims(&dims)
        })
    }

    /// The Euclidean norm of all elements.
    pub fn norm(&self) -> Result<Self> {
        self.in_wide(|wide| wide.sqr()?.sum_all()?.sqrt())
    }

    /// The sum of all elements, as a scalar.
    pub fn sum_all(&self) -> Result<Tensor> {
        let dims: Vec<usize> = (0..self.rank()).collect();
        self.sum(dims)
    }

    /// The mean of all elements, as a scalar.
    pub fn mean_all(&self) -> Result<Tensor> {
        self.in_wide(|wide| wide.sum_all()? / self.elem_count() as f64)
    }

    /// The greatest of all elements, as a scalar.
    ///
    /// # Errors
    /// When there is no element.
    pub fn max_all(&self) -> Result<Tensor> {
        self.flatten_all()?.max(0)
    }

    /// The least of all elements, as a scalar.
    ///
    /// # Errors
    /// When there is no element.
    pub fn min_all(&self) -> Result<Tensor> {
        self.flatten_all()?.min(0)
    }
}
