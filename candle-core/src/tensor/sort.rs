//! Sorting along the last dimension.

use crate::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, D};

const OP: &str = "arg_sort_last_dim";

struct ArgSort {
    asc: bool,
}

impl CustomOp1 for ArgSort {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let indexes = crate::cpu_backend::arg_sort(storage, layout, self.asc, OP)?;
        Ok((indexes, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &crate::CudaStorage,
        layout: &Layout,
    ) -> Result<(crate::CudaStorage, Shape)> {
        let indexes = crate::cuda_backend::ops::sort::arg_sort(storage, layout, self.asc, OP)?;
        Ok((indexes, layout.shape().clone()))
    }

    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        storage: &crate::WebGpuStorage,
        layout: &Layout,
    ) -> Result<(crate::WebGpuStorage, Shape)> {
        let indexes = crate::webgpu_backend::ops::sort::arg_sort(storage, layout, self.asc, OP)?;
        Ok((indexes, layout.shape().clone()))
    }
}

impl Tensor {
    /// The indexes, as u32, that sort the last dimension: ascending, or descending if `asc` is false.
    ///
    /// The order is total and stable: equal elements keep their order either way, -0 equals 0, and NaN is greater than every
    /// number, so it comes last in ascending order and first in descending order. Indexes have no gradient.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[[3f32, 1., 2.], [1., f32::NAN, 1.]], &Device::Cpu)?;
    /// assert_eq!(t.arg_sort_last_dim(true)?.to_vec2::<u32>()?, [[1, 2, 0], [0, 2, 1]]);
    /// assert_eq!(t.arg_sort_last_dim(false)?.to_vec2::<u32>()?, [[0, 2, 1], [1, 0, 2]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// For a scalar, for rows of more elements than u32 can index, and for a dtype without arithmetic.
    pub fn arg_sort_last_dim(&self, asc: bool) -> Result<Tensor> {
        if self.rank() == 0 {
            crate::bail!("{OP}: a scalar has no dimension to sort")
        }
        self.apply_op1_no_bwd(&ArgSort { asc })
    }

    /// The elements of the last dimension in sorted order, and their original indexes as u32; see [`Tensor::arg_sort_last_dim`] for the
    /// order. Gradients of the sorted elements flow to the original elements.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[3f32, 1., 2.], &Device::Cpu)?;
    /// let (sorted, indexes) = t.sort_last_dim(true)?;
    /// assert_eq!(sorted.to_vec1::<f32>()?, [1., 2., 3.]);
    /// assert_eq!(indexes.to_vec1::<u32>()?, [1, 2, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::arg_sort_last_dim`].
    pub fn sort_last_dim(&self, asc: bool) -> Result<(Tensor, Tensor)> {
        let indexes = self.arg_sort_last_dim(asc)?;
        Ok((self.gather(&indexes, D::Minus1)?, indexes))
    }
}
