//! A tensor of quantised blocks: encoded from floats or read from a file, dequantised, multiplied.

use std::borrow::Cow;

use half::{bf16, f16};

use super::{experts, GgmlDType, QStorage, QuantizedType};
#[cfg(feature = "cuda")]
use crate::CudaStorage;
#[cfg(feature = "webgpu")]
use crate::WebGpuStorage;
use crate::{
    CpuStorage, CustomOp1, DType, Device, DeviceLocation, Error, Layout, Result, Shape, Storage,
    Tensor,
};

/// A tensor of quantised blocks. Blocks run along the last dimension, whose length is a multiple of the block size.
///
/// As a [`CustomOp1`] it is a linear layer's weight `(n, k)`: `x` of shape `(.., m, k)` becomes `(.., m, n)`.
///
/// ```
/// use candle_core::quantized::{GgmlDType, QTensor};
/// use candle_core::{DType, Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::ones((4, 32), DType::F32, &Device::Cpu)?;
/// let weight = QTensor::quantize(&weight, GgmlDType::Q4_0)?;
/// assert_eq!(weight.storage_size_in_bytes(), 4 * 18);
/// let x = Tensor::ones((1, 32), DType::F32, &Device::Cpu)?;
/// assert_eq!(x.apply_op1_no_bwd(&weight)?.dims(), &[1, 4]);
/// # Ok(())
/// # }
/// ```
pub struct QTensor {
    storage: QStorage,
    shape: Shape,
}

impl std::fmt::Debug for QTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QTensor[{:?}; {:?}]", self.shape, self.dtype())
    }
}

/// Number of elements of a shape whose rows are whole blocks of `dtype`.
pub(super) fn check_shape(shape: &Shape, dtype: GgmlDType) -> Result<usize> {
    let elements = shape
        .dims()
        .iter()
        .try_fold(1usize, |count, &dim| count.checked_mul(dim));
    let Some(elements) = elements else {
        return Err(Error::Msg(format!("shape {shape:?} has too many elements")).bt());
    };
    match shape.dims().last() {
        None => Err(Error::Msg(format!("a scalar cannot be quantized to {dtype:?}")).bt()),
        Some(last) if !last.is_multiple_of(dtype.block_size()) => Err(Error::Msg(format!(
            "shape {shape:?} cannot be held as {dtype:?}: the last dimension is not a multiple of the block size {}",
            dtype.block_size()
        ))
        .bt()),
        Some(_) => Ok(elements),
    }
}

/// The elements of a layout in row-major order; copied only if the layout is not contiguous.
fn in_order<'a, T: Copy>(elements: &'a [T], layout: &Layout) -> Cow<'a, [T]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Cow::Borrowed(&elements[start..end]),
        None => Cow::Owned(layout.strided_index().map(|i| elements[i]).collect()),
    }
}

impl QTensor {
    /// A tensor of `shape` over blocks.
    ///
    /// # Errors
    /// When the last dimension is not a multiple of the block size, or the blocks are too few for the shape.
    pub fn new<S: Into<Shape>>(storage: QStorage, shape: S) -> Result<Self> {
        let (shape, dtype) = (shape.into(), storage.dtype());
        let elements = check_shape(&shape, dtype)?;
        let needed = elements / dtype.block_size() * dtype.type_size();
        if storage.size_in_bytes() < needed {
            return Err(Error::Msg(format!(
                "shape {shape:?} of {dtype:?} needs {needed} bytes, but there are {}",
                storage.size_in_bytes()
            ))
            .bt());
        }
        Ok(Self { storage, shape })
    }

    /// Quantises a tensor of floats; the result stays on its device. The encoders run on the CPU: a tensor on a GPU is read back and
    /// encoded, and its blocks are uploaded.
    ///
    /// # Errors
    /// If the last dimension is not a multiple of the block size, the format has no encoder (`IQ1S`, `IQ1M`, `IQ2XXS`, `IQ2XS`, `IQ2S`,
    /// `IQ3XXS`, `IQ3S` and `IQ4XS`), or the device does not support quantised tensors.
    pub fn quantize(src: &Tensor, dtype: GgmlDType) -> Result<Self> {
        Self::quantize_onto(src, dtype, src.device())
    }

    /// Like [`quantize`](Self::quantize), with the bits of ggml's current reference encoder. `quantize` returns Candle's values: for `Q2K`,
    /// `Q4K`, `Q5K` and `Q6K` these come from an older, shorter search with larger errors.
    ///
    /// # Errors
    /// As `quantize`.
    pub fn quantize_as_ggml(src: &Tensor, dtype: GgmlDType) -> Result<Self> {
        Self::quantize_with(src, dtype, src.device(), |blocks, floats| {
            blocks.from_float_as_ggml(floats)
        })
    }

    /// Like [`quantize`](Self::quantize), with a weight for each column: errors in columns with large weights count for more.
    /// `imatrix_weights` has one value for each index of the last dimension; [`super::imatrix_file`] reads them.
    ///
    /// Formats without a weighted search (the floats, `Q8_0`, `Q8_1`, `Q8K`, and those in which each block has one scale) ignore the
    /// weights.
    ///
    /// # Errors
    /// As `quantize`, and if the number of weights differs.
    pub fn quantize_imatrix(
        src: &Tensor,
        imatrix_weights: &[f32],
        dtype: GgmlDType,
    ) -> Result<Self> {
        Self::quantize_imatrix_onto(src, imatrix_weights, dtype, src.device())
    }

    /// Like [`quantize_imatrix`](Self::quantize_imatrix), with the result on `dev`.
    ///
    /// # Errors
    /// As `quantize_imatrix`.
    pub fn quantize_imatrix_onto(
        src: &Tensor,
        imatrix_weights: &[f32],
        dtype: GgmlDType,
        dev: &Device,
    ) -> Result<Self> {
        let columns = src.dims().last().copied().unwrap_or(0);
        if imatrix_weights.len() != columns {
            return Err(Error::Msg(format!(
                "quantize_imatrix: got {} weights for {columns} columns of {:?}",
                imatrix_weights.len(),
                src.shape()
            ))
            .bt());
        }
        Self::quantize_with(src, dtype, dev, |blocks, floats| {
            blocks.from_float_imatrix(floats, imatrix_weights, columns)
        })
    }

    /// Like [`quantize`](Self::quantize), with the result on `dev`.
    ///
    /// # Errors
    /// As `quantize`.
    pub fn quantize_onto(src: &Tensor, dtype: GgmlDType, dev: &Device) -> Result<Self> {
        Self::quantize_with(src, dtype, dev, |blocks, floats| blocks.from_float(floats))
    }

    fn quantize_with(
        src: &Tensor,
        dtype: GgmlDType,
        device: &Device,
        fill: impl FnOnce(&mut dyn QuantizedType, &[f32]),
    ) -> Result<Self> {
        let elements = check_shape(src.shape(), dtype)?;
        if !dtype.has_encoder() {
            return Err(Error::Msg(format!(
                "quantize: {dtype:?} has no encoder here, it can only be read; llama.cpp's llama-quantize makes files of it"
            ))
            .bt());
        }
        let floats = src
            .to_dtype(DType::F32)?
            .to_device(&Device::Cpu)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        Ok(Self {
            storage: QStorage::encode(elements, device, dtype, |blocks| fill(blocks, &floats))?,
            shape: src.shape().clone(),
        })
    }

    /// The format.
    pub fn dtype(&self) -> GgmlDType {
        self.storage.dtype()
    }

    /// The device that holds the blocks.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The shape in elements.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements as f32, on `device`.
    ///
    /// # Errors
    /// When the device cannot allocate the memory.
    pub fn dequantize(&self, device: &Device) -> Result<Tensor> {
        self.floats(DType::F32)?.to_device(device)
    }

    /// The elements as f16, on `device`.
    ///
    /// # Errors
    /// When the device cannot allocate the memory.
    pub fn dequantize_f16(&self, device: &Device) -> Result<Tensor> {
        let floats = self.floats(DType::F16)?;
        floats.to_dtype(DType::F16)?.to_device(device)
    }

    /// The elements on this tensor's device, in f32 or `to`.
    fn floats(&self, to: DType) -> Result<Tensor> {
        let storage = self.storage.dequantize(self.shape.elem_count(), to)?;
        Ok(result(storage, self.shape.clone()))
    }

    /// Rows of a table `(rows, hidden)` by their ids (integers of any shape), as f32. The result's shape is that of the ids, then `hidden`.
    /// Only the requested rows are dequantised.
    ///
    /// # Errors
    /// If this is not a table, an id is out of range, or the ids are on another device.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        self.selected(ids, self.shape.dims2()?)
    }

    /// The matrices of experts, as f32, for weights `(experts, n, k)` and `ids` (integers of any shape). The result's shape is that of the
    /// ids, then `(n, k)`. Only the requested matrices are dequantised, and the ids stay on their device.
    ///
    /// # Errors
    /// If these are not matrices, an id is out of range (if the device can detect it), or the ids are on another device.
    pub(super) fn matrices(&self, ids: &Tensor) -> Result<Tensor> {
        let (count, n, k) = self.shape.dims3()?;
        let shape = ids.shape().clone().extend(&[n, k]);
        self.selected(ids, (count, n * k))?.reshape(shape)
    }

    fn selected(&self, ids: &Tensor, (rows, hidden): (usize, usize)) -> Result<Tensor> {
        self.same_device(ids, "quantized embedding")?;
        let numbers = ids.flatten_all()?;
        // A GPU's kernel reads integers of any dtype; a conversion would cost as much as this kernel.
        let numbers = if ids.device().is_cpu() || numbers.dtype().is_float() {
            numbers.to_dtype(DType::I64)?
        } else {
            numbers
        };
        let (numbers, layout) = numbers.storage_and_layout();
        let storage = self.storage.embedding((&numbers, layout), (rows, hidden))?;
        Ok(result(storage, ids.shape().clone().extend(&[hidden])))
    }

    fn same_device(&self, rhs: &Tensor, op: &'static str) -> Result<()> {
        if rhs.device().same_device(&self.device()) {
            return Ok(());
        }
        Err(self.elsewhere(rhs.device().location(), op))
    }

    /// Bytes of the blocks.
    pub fn storage_size_in_bytes(&self) -> usize {
        self.storage.size_in_bytes()
    }

    /// The bytes of the blocks in a file's format. On a GPU they are read back, which waits.
    ///
    /// # Errors
    /// None on the CPU.
    pub fn data(&self) -> Result<Cow<'_, [u8]>> {
        self.storage.data()
    }

    /// A mixture-of-experts layer: these are the weights `(experts, n, k)`, `ids` `(batch, topk)` are the experts of each token, and `x` is
    /// `(batch, topk, k)`, or `(batch, 1, k)` for the same input to all of a token's experts. The result is `(batch, topk, n)`.
    ///
    /// # Errors
    /// When the shapes do not match or an id is not below the number of experts.
    pub fn indexed_moe_forward(&self, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (count, n, k) = self.shape.dims3()?;
        self.same_device(x, "indexed_moe_forward")?;
        experts::route(x, ids, (count, n, k), |expert, rows| {
            rows.apply_op1_no_bwd(&Rows {
                weight: self,
                first: expert * n,
                n,
                k,
            })
        })
    }

    /// The address of the blocks on their device.
    ///
    /// # Errors
    /// None on the CPU.
    pub fn device_ptr(&self) -> Result<*const u8> {
        self.storage.device_ptr()
    }

    /// The address of the blocks for work in `stream`, and a guard that has to live until this work is queued.
    ///
    /// # Errors
    /// For blocks on devices other than CUDA.
    #[cfg(feature = "cuda")]
    pub fn device_ptr_with_guard<'a>(
        &'a self,
        stream: &'a crate::cuda_backend::cudarc::driver::CudaStream,
    ) -> Result<(
        *const u8,
        crate::cuda_backend::cudarc::driver::SyncOnDrop<'a>,
    )> {
        self.storage.device_ptr_with_guard(stream)
    }

    /// The products of one row with several weights in one call, or `None` if the device has no kernel for it. The CPU has none: apply the
    /// weights one at a time.
    ///
    /// # Errors
    /// None.
    pub fn gemv_fused_shared_lhs(ts: &[&Self], lhs: &Tensor) -> Result<Option<Vec<Tensor>>> {
        // The signature is Candle's; no device has a kernel yet.
        let _ = (ts, lhs);
        Ok(None)
    }

    /// The products of one token with the experts in `ids`, in one call, or `None` if the device has no kernel for it. The CPU has none:
    /// use [`indexed_moe_forward`](Self::indexed_moe_forward), which supports any number of tokens.
    ///
    /// # Errors
    /// None.
    pub fn indexed_gemv(&self, x: &Tensor, ids: &Tensor) -> Result<Option<Tensor>> {
        let _ = (x, ids);
        Ok(None)
    }
}

pub(super) fn result(storage: Storage, shape: Shape) -> Tensor {
    Tensor::from_storage(storage, shape, crate::op::BackpropOp::none(), false)
}

/// Some of the rows of a weight, `(n, k)`.
struct Rows<'a> {
    weight: &'a QTensor,
    first: usize,
    n: usize,
    k: usize,
}

const MATMUL: &str = "qmatmul";

impl Rows<'_> {
    /// The number of rows of `layout` and the result's shape, if the sizes match.
    fn check(&self, layout: &Layout) -> Result<(usize, Shape)> {
        match layout.dims().split_last() {
            Some((&last, rows)) if last == self.k && !rows.is_empty() => {
                let shape = Shape::from_dims(rows).extend(&[self.n]);
                Ok((rows.iter().product(), shape))
            }
            _ => Err(Error::ShapeMismatchBinaryOp {
                lhs: layout.shape().clone(),
                rhs: self.weight.shape.clone(),
                op: MATMUL,
            }
            .bt()),
        }
    }
}

impl CustomOp1 for Rows<'_> {
    fn name(&self) -> &'static str {
        MATMUL
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (k, n) = (self.k, self.n);
        let (m, shape) = self.check(layout)?;
        let QStorage::Cpu(blocks) = &self.weight.storage else {
            return Err(self.weight.elsewhere(DeviceLocation::Cpu, MATMUL));
        };
        let product = |lhs: &[f32]| {
            let mut dst = vec![0f32; m * n];
            blocks.matmul_t_from(self.first, (m, k, n), lhs, &mut dst)?;
            Ok::<_, Error>(dst)
        };
        let dst = match storage {
            CpuStorage::F32(lhs) => CpuStorage::F32(product(&in_order(lhs, layout))?),
            CpuStorage::F16(lhs) if self.first == 0 => {
                let mut dst = vec![f16::ZERO; m * n];
                blocks.matmul_t_f16((m, k, n), &in_order(lhs, layout), &mut dst)?;
                CpuStorage::F16(dst)
            }
            CpuStorage::F16(lhs) => {
                let lhs: Vec<_> = in_order(lhs, layout).iter().map(|v| v.to_f32()).collect();
                CpuStorage::F16(product(&lhs)?.into_iter().map(f16::from_f32).collect())
            }
            CpuStorage::BF16(lhs) => {
                let lhs: Vec<_> = in_order(lhs, layout).iter().map(|v| v.to_f32()).collect();
                CpuStorage::BF16(product(&lhs)?.into_iter().map(bf16::from_f32).collect())
            }
            other => {
                use crate::backend::BackendStorage;
                return Err(Error::UnsupportedDTypeForOp(other.dtype(), MATMUL).bt());
            }
        };
        Ok((dst, shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        use crate::backend::BackendStorage;
        let (_, shape) = self.check(layout)?;
        let blocks = self.weight.on_cuda(storage.device(), MATMUL)?;
        let dst = blocks.matmul_t(self.first, (self.n, self.k), storage, layout)?;
        Ok((dst, shape))
    }

    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        storage: &WebGpuStorage,
        layout: &Layout,
    ) -> Result<(WebGpuStorage, Shape)> {
        use crate::backend::BackendStorage;
        let (m, shape) = self.check(layout)?;
        let blocks = self.weight.on_webgpu(storage.device(), MATMUL)?;
        let dst = blocks.matmul_t(self.first, (m, self.k, self.n), storage, layout)?;
        Ok((dst, shape))
    }
}

impl QTensor {
    /// The error for an argument on another device than the blocks.
    fn elsewhere(&self, argument: DeviceLocation, op: &'static str) -> Error {
        Error::DeviceMismatchBinaryOp {
            lhs: argument,
            rhs: self.device().location(),
            op,
        }
        .bt()
    }

    /// The blocks, if they are on `device`, the device of `op`'s argument.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_cuda(
        &self,
        device: &crate::CudaDevice,
        op: &'static str,
    ) -> Result<&super::cuda::QCudaStorage> {
        use crate::backend::BackendDevice;
        match &self.storage {
            QStorage::Cuda(blocks) if blocks.is_on(device) => Ok(blocks),
            _ => Err(self.elsewhere(device.location(), op)),
        }
    }

    /// The blocks, if they are on `device`, the device of `op`'s argument.
    #[cfg(feature = "webgpu")]
    pub(crate) fn on_webgpu(
        &self,
        device: &crate::WebGpuDevice,
        op: &'static str,
    ) -> Result<&crate::webgpu_backend::QWebGpuStorage> {
        use crate::backend::BackendDevice;
        let blocks = self.storage.as_wgpu();
        match blocks.filter(|blocks| blocks.device().same_device(device)) {
            Some(blocks) => Ok(blocks),
            None => Err(self.elsewhere(device.location(), op)),
        }
    }

    /// All rows of this matrix.
    fn rows(&self) -> Result<Rows<'_>> {
        let (n, k) = self.shape.dims2()?;
        Ok(Rows {
            weight: self,
            first: 0,
            n,
            k,
        })
    }
}

impl CustomOp1 for QTensor {
    fn name(&self) -> &'static str {
        MATMUL
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.rows()?.cpu_fwd(storage, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        self.rows()?.cuda_fwd(storage, layout)
    }

    #[cfg(feature = "webgpu")]
    fn webgpu_fwd(
        &self,
        storage: &WebGpuStorage,
        layout: &Layout,
    ) -> Result<(WebGpuStorage, Shape)> {
        self.rows()?.webgpu_fwd(storage, layout)
    }

    /// The gradient with respect to `x`; the weight has none.
    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let weight = self.dequantize(arg.device())?.to_dtype(arg.dtype())?;
        let (n, _) = self.shape.dims2()?;
        let rows = arg.elem_count() / arg.dim(crate::D::Minus1)?.max(1);
        let grad = grad_res.reshape((rows, n))?.matmul(&weight)?;
        Ok(Some(grad.reshape(arg.shape())?))
    }
}
