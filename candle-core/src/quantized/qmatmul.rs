//! A linear layer's weight, quantised or not.

use std::sync::Arc;

use super::{experts, GgmlDType, QTensor};
use crate::{CpuStorage, CustomOp1, DType, Layout, Module, Result, Shape, Tensor};

/// A linear layer's weight `(n, k)`: as a [`Module`] it maps `(.., m, k)` to `(.., m, n)`.
#[derive(Clone, Debug)]
pub enum QMatMul {
    /// A quantised weight; the product runs on its blocks.
    QTensor(Arc<QTensor>),
    /// A dense weight; the argument has its dtype.
    Tensor(Tensor),
    /// A dense weight in f16; arguments of other dtypes are converted to f16, and the result back.
    TensorF16(Tensor),
}

/// Whether an environment variable is set to a value other than `0` and the empty one.
fn is_on(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| !value.is_empty() && value != "0")
}

/// The weight in matmul's layout, repeated (as a view) for the batch dimensions of `xs`.
fn transposed(weight: &Tensor, xs: &Tensor) -> Result<Tensor> {
    let batch = xs.rank().saturating_sub(2);
    weight.broadcast_left(&xs.dims()[..batch])?.t()
}

impl QMatMul {
    /// Converts the weight to the form for multiplication: F32, F16 and BF16 become a dense f32 tensor, other formats stay quantised.
    ///
    /// The environment can request dense weights: `CANDLE_DEQUANTIZE_ALL=1` in f32, `CANDLE_DEQUANTIZE_ALL_F16=1` in f16.
    ///
    /// # Errors
    /// When the device cannot allocate the memory for a dense tensor.
    pub fn from_arc(qtensor: Arc<QTensor>) -> Result<Self> {
        let device = qtensor.device();
        let dense = matches!(
            qtensor.dtype(),
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16
        );
        if dense || is_on("CANDLE_DEQUANTIZE_ALL") {
            Ok(Self::Tensor(qtensor.dequantize(&device)?))
        } else if is_on("CANDLE_DEQUANTIZE_ALL_F16") {
            Ok(Self::TensorF16(qtensor.dequantize_f16(&device)?))
        } else {
            Ok(Self::QTensor(qtensor))
        }
    }

    /// Like [`from_arc`](Self::from_arc), for an unshared tensor.
    ///
    /// # Errors
    /// As `from_arc`.
    pub fn from_qtensor(qtensor: QTensor) -> Result<Self> {
        Self::from_arc(Arc::new(qtensor))
    }

    /// The weight as a dense f16 tensor.
    ///
    /// # Errors
    /// When the device cannot allocate the memory.
    pub fn dequantize_f16(&self) -> Result<Tensor> {
        match self {
            Self::QTensor(weight) => weight.dequantize_f16(&weight.device()),
            Self::Tensor(weight) => weight.to_dtype(DType::F16),
            Self::TensorF16(weight) => Ok(weight.clone()),
        }
    }

    /// The product with a dense f16 copy of the weight, created for this call; the result has the dtype of `xs`.
    ///
    /// # Errors
    /// When the shapes do not match.
    pub fn forward_via_f16(&self, xs: &Tensor) -> Result<Tensor> {
        let weight = self.dequantize_f16()?;
        xs.to_dtype(DType::F16)?
            .matmul(&transposed(&weight, xs)?)?
            .to_dtype(xs.dtype())
    }

    /// Rows of the weight by their ids; the result's shape is that of the ids, then the row's length. See [`QTensor::embedding`].
    ///
    /// # Errors
    /// When an id is out of range or the ids are on another device.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::QTensor(table) => table.embedding(ids),
            Self::Tensor(table) | Self::TensorF16(table) => {
                let (_, hidden) = table.dims2()?;
                let shape = ids.shape().clone().extend(&[hidden]);
                table.index_select(&ids.flatten_all()?, 0)?.reshape(shape)
            }
        }
    }

    /// The matrices of experts, for a weight `(experts, n, k)` and `ids` (integers of any shape). The result's shape is that of the ids,
    /// then `(n, k)`. Quantised matrices are dequantised to f32. The ids stay on their device, so the host does not wait. Not in upstream's
    /// interface.
    ///
    /// # Errors
    /// If this is not a stack of matrices, an id is out of range (if the device can detect it), or the ids are on another device.
    pub fn expert_matrices(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::QTensor(weight) => weight.matrices(ids),
            Self::Tensor(weight) | Self::TensorF16(weight) => {
                let (_, n, k) = weight.dims3()?;
                let shape = ids.shape().clone().extend(&[n, k]);
                weight.index_select(&ids.flatten_all()?, 0)?.reshape(shape)
            }
        }
    }

    /// Like [`indexed_moe_forward`](Self::indexed_moe_forward), with ids that stay on their device, so the host does not wait. `None` if
    /// the device has no kernel for these arguments, as on the CPU, or if a gradient is required. A kernel reads the matrices of the
    /// experts again for each token, so it suits few tokens. Not in upstream's interface.
    ///
    /// # Errors
    /// If the shapes do not match or an argument is on another device. An id that is not below the number of experts is an error of the
    /// next readback.
    pub fn expert_rows(&self, x: &Tensor, ids: &Tensor) -> Result<Option<Tensor>> {
        let sizes = match self {
            Self::QTensor(weight) => weight.shape().dims3()?,
            Self::Tensor(weight) | Self::TensorF16(weight) => weight.dims3()?,
        };
        experts::on_device(self, x, ids, sizes)
    }

    /// A mixture-of-experts layer; see [`QTensor::indexed_moe_forward`].
    ///
    /// # Errors
    /// When the shapes do not match or an id is not below the number of experts.
    pub fn indexed_moe_forward(&self, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::QTensor(weight) => weight.indexed_moe_forward(x, ids),
            Self::Tensor(weight) => experts::route(x, ids, weight.dims3()?, |expert, rows| {
                rows.matmul(&weight.get(expert)?.t()?)
            }),
            Self::TensorF16(weight) => {
                let xs = x.to_dtype(DType::F16)?;
                Self::Tensor(weight.clone())
                    .indexed_moe_forward(&xs, ids)?
                    .to_dtype(x.dtype())
            }
        }
    }
}

/// A shared weight in the graph, which passes gradients on to its input.
struct Tracked(Arc<QTensor>);

impl CustomOp1 for Tracked {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.cpu_fwd(storage, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &crate::CudaStorage,
        layout: &Layout,
    ) -> Result<(crate::CudaStorage, Shape)> {
        self.0.cuda_fwd(storage, layout)
    }

    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        storage: &crate::WebGpuStorage,
        layout: &Layout,
    ) -> Result<(crate::WebGpuStorage, Shape)> {
        self.0.webgpu_fwd(storage, layout)
    }

    fn bwd(&self, arg: &Tensor, res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        self.0.bwd(arg, res, grad_res)
    }
}

impl Module for QMatMul {
    /// `xs` of shape `(.., m, k)` times the weight: `(.., m, n)`, in the dtype of `xs`. A gradient flows to `xs`.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::QTensor(weight) if xs.track_op() => xs.apply_op1(Tracked(weight.clone())),
            Self::QTensor(weight) => xs.apply_op1_no_bwd(&**weight),
            Self::Tensor(weight) => xs.matmul(&transposed(weight, xs)?),
            Self::TensorF16(weight) => xs
                .to_dtype(DType::F16)?
                .matmul(&transposed(weight, xs)?)?
                .to_dtype(xs.dtype()),
        }
    }
}
