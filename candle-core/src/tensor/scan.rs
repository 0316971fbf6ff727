//! Running sums.

use std::sync::Arc;

use crate::op::{BackpropOp, Op};
use crate::shape::Dim;
use crate::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor};

const OP: &str = "cumsum";
/// Elements of a block. Elements within blocks are added sequentially, for all blocks at once, before the blocks' sums.
const BLOCK: usize = 16;

/// The running sum of the last dimension on the CPU and on WebGPU. In the graph it provides the gradient for any device and dimension.
struct CumSum {
    dim: usize,
}

impl CustomOp1 for CumSum {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let sums = crate::cpu_backend::cumsum(storage, layout, OP)?;
        Ok((sums, layout.shape().clone()))
    }

    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        storage: &crate::WebGpuStorage,
        layout: &Layout,
    ) -> Result<(crate::WebGpuStorage, Shape)> {
        let sums = crate::webgpu_backend::ops::scan::cumsum(storage, layout)?;
        Ok((sums, layout.shape().clone()))
    }

    /// An element enters its own sum and all later ones.
    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let dims = [self.dim];
        let sums = grad_res.flip(&dims)?.cumsum(self.dim)?.flip(&dims)?;
        Ok(Some(sums))
    }
}

impl Tensor {
    /// The running sum along a dimension, in linear time and memory. Sums of 16-bit floats are kept in f32 and rounded once for each element
    /// of the result; integers wrap.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[1f32, 2., f32::INFINITY, 4.], &Device::Cpu)?;
    /// assert_eq!(t.cumsum(0)?.to_vec1::<f32>()?, [1., 3., f32::INFINITY, f32::INFINITY]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the dimension is out of range, or the dtype has no arithmetic.
    pub fn cumsum<D: Dim>(&self, dim: D) -> Result<Self> {
        let dim = dim.to_index(self.shape(), OP)?;
        if self.elem_count() == 0 {
            return Ok(self.clone());
        }
        let last = self.rank() - 1;
        let rows = self.detach().transpose(dim, last)?;
        let sums = if has_kernel(&rows) {
            rows.apply_op1_no_bwd(&CumSum { dim: last })?
        } else {
            sums_of_rows(&rows)?
        };
        let sums = sums.transpose(dim, last)?;
        let op = BackpropOp::new1(self, |arg| {
            Op::CustomOp1(arg, Arc::new(Box::new(CumSum { dim })))
        });
        Ok(sums.view(sums.layout().clone(), op))
    }
}

fn has_kernel(rows: &Tensor) -> bool {
    match &*rows.storage() {
        Storage::Cpu(_) => true,
        #[cfg(feature = "webgpu")]
        Storage::WebGpu(storage) => crate::webgpu_backend::ops::scan::fits(storage, rows.layout()),
        _ => false,
    }
}

/// The running sums of the last dimension, composed of ops that every device supports.
fn sums_of_rows(t: &Tensor) -> Result<Tensor> {
    let dtype = t.dtype();
    let wide = match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => t.to_dtype(DType::F32)?,
        _ => t.clone(),
    };
    let len = t.dims()[t.rank() - 1];
    let sums = in_blocks(&wide.reshape(((), len))?)?;
    sums.to_dtype(dtype)?.reshape(t.shape())
}

/// The running sums of rows `(rows, len)`: the sums within blocks, plus the sum of all earlier blocks.
fn in_blocks(t: &Tensor) -> Result<Tensor> {
    let (rows, len) = t.dims2()?;
    let block = BLOCK.min(len);
    let count = len.div_ceil(block);
    let padded = t.pad_with_zeros(1, 0, count * block - len)?;
    let blocks = padded.reshape((rows, count, block))?;
    let column = |i| blocks.narrow(2, i, 1)?.squeeze(2);
    let mut columns = vec![column(0)?];
    for i in 1..block {
        columns.push((&columns[i - 1] + column(i)?)?);
    }
    let totals = columns[block - 1].clone();
    // Whole columns are copied contiguously and read as rows.
    let within = Tensor::stack(&columns, 0)?.permute((1, 2, 0))?;
    drop(columns);
    let sums = if count == 1 {
        within.contiguous()?
    } else {
        let before = in_blocks(&totals.narrow(1, 0, count - 1)?.contiguous()?)?;
        let rest = within.narrow(1, 1, count - 1)?;
        let rest = rest.broadcast_add(&before.unsqueeze(2)?)?;
        Tensor::cat(&[&within.narrow(1, 0, 1)?, &rest], 1)?
    };
    let sums = sums.reshape((rows, count * block))?;
    sums.narrow(1, 0, len)?.contiguous()
}

#[cfg(test)]
mod tests {
    use super::sums_of_rows;
    use crate::{Device, Result, Tensor};

    /// The form for devices without a kernel.
    #[test]
    fn the_composed_form_is_the_kernels() -> Result<()> {
        for len in [1, 2, 16, 17, 300, 5000] {
            let values = (0..3 * len).map(|i| ((i * 7 % 11) as f32) - 5.);
            let t = Tensor::from_iter(values, &Device::Cpu)?.reshape((3, len))?;
            let kernels = t.cumsum(1)?.to_vec2::<f32>()?;
            assert_eq!(sums_of_rows(&t)?.to_vec2::<f32>()?, kernels, "{len}");
        }
        let inf = f32::INFINITY;
        let t = Tensor::new(&[[1., inf, -2.]], &Device::Cpu)?;
        assert_eq!(sums_of_rows(&t)?.to_vec2::<f32>()?, [[1., inf, inf]]);
        Ok(())
    }
}
