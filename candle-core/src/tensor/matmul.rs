//! Matrix products.

use crate::op::{BackpropOp, Op};
use crate::{Error, Result, Shape, Tensor};

impl Tensor {
    /// The matrix product of the last two dimensions: `(..., m, k)` times `(..., k, n)` gives `(..., m, n)`. All other dimensions are equal
    /// on both sides. Any strides are supported, without a contiguous copy.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let lhs = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let product = lhs.matmul(&lhs.t()?)?;
    /// assert_eq!(product.to_vec2::<f32>()?, [[5., 11.], [11., 25.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a side has fewer than two dimensions, ranks differ, dimensions do not fit, or dtypes or devices differ.
    pub fn matmul(&self, rhs: &Self) -> Result<Self> {
        let mismatch = || {
            Error::ShapeMismatchBinaryOp {
                lhs: self.shape().clone(),
                rhs: rhs.shape().clone(),
                op: "matmul",
            }
            .bt()
        };
        let ([lhs_batch @ .., m, k], [rhs_batch @ .., rhs_k, n]) = (self.dims(), rhs.dims()) else {
            return Err(mismatch());
        };
        if k != rhs_k || lhs_batch != rhs_batch {
            return Err(mismatch());
        }
        self.same_kind(rhs, "matmul")?;
        let shape = Shape::from(lhs_batch).extend(&[*m, *n]);
        let storage = if shape.elem_count() == 0 || *k == 0 {
            shape.checked_byte_count(self.dtype().size_in_bytes())?;
            self.device().zeros(&shape, self.dtype())?
        } else {
            let bmnk = (lhs_batch.iter().product(), *m, *n, *k);
            self.storage()
                .matmul(&rhs.storage(), bmnk, self.layout(), rhs.layout())?
        };
        let op = BackpropOp::new2(self, rhs, Op::Matmul);
        Ok(Self::from_storage(storage, shape, op, false))
    }

    /// Like [`Tensor::matmul`], with the dimensions before the last two broadcast.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let batch = Tensor::ones((5, 2, 3), DType::F32, &Device::Cpu)?;
    /// let weights = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// assert_eq!(batch.broadcast_matmul(&weights)?.dims(), &[5, 2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the shapes do not match, or dtypes or devices differ.
    pub fn broadcast_matmul(&self, rhs: &Self) -> Result<Self> {
        let (lhs_shape, rhs_shape) = self.shape().broadcast_shape_matmul(rhs.shape())?;
        if rhs.rank() == 2 && self.rank() > 2 && self.is_contiguous() && self.elem_count() > 0 {
            // One matrix for the whole batch: merged into a single product with more rows.
            let (k, n) = rhs.dims2()?;
            let rows = self.reshape(((), k))?.matmul(rhs)?;
            let batch_and_rows = &self.dims()[..self.rank() - 1];
            return rows.reshape(Shape::from(batch_and_rows).extend(&[n]));
        }
        self.broadcast_as(lhs_shape)?
            .matmul(&rhs.broadcast_as(rhs_shape)?)
    }

    /// A matrix `(m, k)` times a vector `(k)`.
    ///
    /// # Errors
    /// When the shapes do not fit, or dtypes or devices differ.
    pub fn mv(&self, rhs: &Self) -> Result<Self> {
        self.dims2()?;
        rhs.dims1()?;
        self.matmul(&rhs.unsqueeze(1)?)?.squeeze(1)
    }

    /// The dot product of two vectors of the same length, as a scalar.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// assert_eq!(t.dot(&t)?.to_scalar::<f32>()?, 14.);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a side is not a vector, or lengths, dtypes or devices differ.
    pub fn dot(&self, rhs: &Self) -> Result<Self> {
        self.dims1()?;
        rhs.dims1()?;
        self.mul(rhs)?.sum_all()
    }
}
