//! Quantised blocks on the device, in a file's format.

use cudarc::driver::{CudaStream, DevicePtr, SyncOnDrop};

use super::device::CudaDevice;
use super::error::WrapErr;
use super::ops::quantized as ops;
use super::spares::WeightMemory;
use super::storage::CudaStorage;
use crate::backend::{BackendDevice, BackendStorage};
use crate::quantized::{GgmlDType, QuantizedType};
use crate::{CpuStorage, DType, Error, Layout, Result, Shape};

/// Number of elements whose size in zeros follows the blocks: kernels may read one word past the last, those of other crates a tile.
pub const MATRIX_ROW_PADDING: usize = 512;

/// Blocks of GGML on a CUDA device, in a file's format.
#[derive(Debug)]
pub struct QCudaStorage {
    /// The blocks, then padding.
    data: WeightMemory,
    /// Length of the blocks in bytes.
    len: usize,
    dtype: GgmlDType,
    device: CudaDevice,
}

/// Length of the padding in bytes.
fn padding(dtype: GgmlDType) -> usize {
    MATRIX_ROW_PADDING.div_ceil(dtype.block_size()) * dtype.type_size()
}

/// An error for formats without kernels.
fn check(op: &str, device: &CudaDevice, dtype: GgmlDType) -> Result<()> {
    if ops::is_supported(dtype) {
        return Ok(());
    }
    Err(Error::Msg(format!(
        "{op}: {dtype:?} blocks have no kernels on {:?}; keep them on the CPU, or `QTensor::dequantize` them there onto the device",
        device.location()
    ))
    .bt())
}

impl QCudaStorage {
    /// Allocates blocks of zeros for `el_count` elements.
    ///
    /// # Errors
    /// If the device cannot allocate the memory.
    pub fn zeros(device: &CudaDevice, el_count: usize, dtype: GgmlDType) -> Result<Self> {
        check("quantized zeros", device, dtype)?;
        let len = el_count.div_ceil(dtype.block_size()) * dtype.type_size();
        let (mut data, _) = device.weight_memory(len + padding(dtype), "alloc_zeros")?;
        device.stream().memset_zeros(&mut *data).w()?;
        Ok(Self {
            data,
            len,
            dtype,
            device: device.clone(),
        })
    }

    /// Uploads the bytes of a whole number of blocks, the concatenation of `parts`.
    ///
    /// # Errors
    /// When the device cannot allocate the memory.
    pub(crate) fn from_parts(
        device: &CudaDevice,
        dtype: GgmlDType,
        parts: &[&[u8]],
    ) -> Result<Self> {
        const OP: &str = "quantized from_data";
        check(OP, device, dtype)?;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let (mut data, free) = device.weight_memory(len + padding(dtype), OP)?;
        device.upload_parts(parts, &mut data, free, "memcpy_htod")?;
        let mut rest = data.slice_mut(len..);
        device.stream().memset_zeros(&mut rest).w()?;
        Ok(Self {
            data,
            len,
            dtype,
            device: device.clone(),
        })
    }

    /// The format.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Size of the blocks in bytes, in a file's format.
    pub fn storage_size_in_bytes(&self) -> usize {
        self.len
    }

    /// The address of the first block, for kernels.
    pub(super) fn address(&self) -> u64 {
        // Without event tracking the guard does nothing, and all kernels are in the device's stream.
        self.data.device_ptr(self.device.stream()).0
    }

    /// Dequantises the first `elem_count` elements to f32.
    ///
    /// # Errors
    /// If there are fewer elements, or the device cannot allocate the memory.
    pub fn dequantize(&self, elem_count: usize) -> Result<CudaStorage> {
        self.dequantize_to(elem_count, DType::F32)
    }

    /// Dequantises the first `elem_count` elements to f16.
    ///
    /// # Errors
    /// As [`QCudaStorage::dequantize`].
    pub fn dequantize_f16(&self, elem_count: usize) -> Result<CudaStorage> {
        self.dequantize_to(elem_count, DType::F16)
    }

    pub(crate) fn dequantize_to(&self, elem_count: usize, dtype: DType) -> Result<CudaStorage> {
        self.holds(elem_count, "dequantize")?;
        ops::dequantize(self, 0, elem_count, dtype)
    }

    /// # Errors
    /// If the blocks have fewer elements.
    fn holds(&self, elements: usize, op: &str) -> Result<()> {
        let held = self.len / self.dtype.type_size() * self.dtype.block_size();
        if elements <= held {
            return Ok(());
        }
        Err(Error::Msg(format!(
            "{op}: requested {elements} elements, but the {:?} blocks hold {held}",
            self.dtype
        ))
        .bt())
    }

    /// Replaces the blocks by a device's floats, encoded on the CPU: the floats are read back, and the blocks uploaded.
    ///
    /// # Errors
    /// If `src` is not of floats, or not a whole number of blocks.
    pub fn quantize(&mut self, src: &CudaStorage) -> Result<()> {
        self.quantize_onto(&src.to_cpu_storage()?)
    }

    /// Like [`QCudaStorage::quantize`], with a weight for each of the `n_per_row` columns.
    ///
    /// # Errors
    /// As `quantize`, and if the number of weights differs.
    pub fn quantize_imatrix(
        &mut self,
        src: &CudaStorage,
        imatrix_weights: &[f32],
        n_per_row: usize,
    ) -> Result<()> {
        self.quantize_imatrix_onto(&src.to_cpu_storage()?, imatrix_weights, n_per_row)
    }

    /// Like [`QCudaStorage::quantize_imatrix`], from floats on the CPU.
    ///
    /// # Errors
    /// As `quantize_imatrix`.
    pub fn quantize_imatrix_onto(
        &mut self,
        src: &CpuStorage,
        imatrix_weights: &[f32],
        n_per_row: usize,
    ) -> Result<()> {
        if imatrix_weights.len() != n_per_row {
            crate::bail!(
                "quantize_imatrix: got {} weights for {n_per_row} columns",
                imatrix_weights.len()
            );
        }
        self.encode(src, |blocks, floats| {
            blocks.from_float_imatrix(floats, imatrix_weights, n_per_row);
        })
    }

    /// Like [`QCudaStorage::quantize`], from floats on the CPU.
    ///
    /// # Errors
    /// As `quantize`.
    pub fn quantize_onto(&mut self, src: &CpuStorage) -> Result<()> {
        self.encode(src, |blocks, floats| blocks.from_float(floats))
    }

    fn encode(
        &mut self,
        src: &CpuStorage,
        fill: impl FnOnce(&mut dyn QuantizedType, &[f32]),
    ) -> Result<()> {
        let floats: Vec<f32> = match src {
            CpuStorage::F32(floats) => floats.clone(),
            CpuStorage::F16(floats) => floats.iter().map(|x| x.to_f32()).collect(),
            CpuStorage::BF16(floats) => floats.iter().map(|x| x.to_f32()).collect(),
            CpuStorage::F64(floats) => floats.iter().map(|x| *x as f32).collect(),
            other => return Err(Error::UnsupportedDTypeForOp(other.dtype(), "quantize").bt()),
        };
        if !floats.len().is_multiple_of(self.dtype.block_size()) {
            crate::bail!(
                "quantize: {} elements are not a whole number of {:?} blocks of {}",
                floats.len(),
                self.dtype,
                self.dtype.block_size()
            );
        }
        let mut blocks = self.dtype.cpu_zeros(floats.len());
        if !floats.is_empty() {
            fill(&mut *blocks, &floats);
        }
        *self = Self::from_parts(
            &self.device,
            self.dtype,
            &[crate::quantized::bytes(&*blocks)],
        )?;
        Ok(())
    }

    /// Rows of this table `(rows, hidden)` by their ids, integers of any strides, as f32. An id that is out of range is an error of the
    /// next readback.
    ///
    /// # Errors
    /// If the blocks are not such a table, or the ids are floats.
    pub fn embedding(
        &self,
        rows: usize,
        hidden: usize,
        ids: &CudaStorage,
        ids_l: &Layout,
    ) -> Result<CudaStorage> {
        self.holds(rows * hidden, "quantized embedding")?;
        ops::embedding(self, (ids, ids_l), (rows, hidden))
    }

    /// `storage (.., k)` times this weight `(n, k)` transposed: `(.., n)`, in the dtype of `storage`.
    ///
    /// # Errors
    /// When the shapes do not match, or `storage` is not f32, f16 or bf16.
    pub fn fwd(
        &self,
        self_shape: &Shape,
        storage: &CudaStorage,
        layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (n, k) = self_shape.dims2()?;
        let Some((&last, rows)) = layout.dims().split_last() else {
            return Err(mismatch(layout, self_shape));
        };
        if last != k {
            return Err(mismatch(layout, self_shape));
        }
        let dst = self.matmul_t(0, (n, k), storage, layout)?;
        Ok((dst, Shape::from_dims(rows).extend(&[n])))
    }

    /// `lhs (.., k)` times the rows `first_row .. first_row + n` of `k` elements transposed, `(.., n)`, in the dtype of `lhs`.
    pub(crate) fn matmul_t(
        &self,
        first_row: usize,
        (n, k): (usize, usize),
        lhs: &CudaStorage,
        lhs_l: &Layout,
    ) -> Result<CudaStorage> {
        self.holds((first_row + n) * k, "qmatmul")?;
        ops::matmul((lhs, lhs_l), self, first_row, (n, k))
    }

    /// Reads the blocks back in a file's format. Waits for the device.
    ///
    /// # Errors
    /// When the device reports an earlier error.
    pub fn data(&self) -> Result<Vec<u8>> {
        match self.len {
            0 => Ok(vec![]),
            len => self.device.download(&self.data.slice(..len), "clone_dtoh"),
        }
    }

    /// The address of the first block on the device.
    ///
    /// # Errors
    /// None.
    pub fn device_ptr(&self) -> Result<*const u8> {
        Ok(self.address() as *const u8)
    }

    /// The address of the first block for work in `stream`, and a guard that has to live until this work is queued.
    ///
    /// # Errors
    /// None.
    pub fn device_ptr_with_guard<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> Result<(*const u8, SyncOnDrop<'a>)> {
        let (address, guard) = self.data.device_ptr(stream);
        Ok((address as *const u8, guard))
    }

    /// A mixture-of-experts layer: `input (batch, topk or 1, k)` times the matrices of this stack `(experts, n, k)` at `ids (batch, topk)`,
    /// transposed: `(batch, topk, n)`. The ids stay on the device; one that is out of range is an error of the next readback.
    ///
    /// # Errors
    /// When the shapes do not match, or the input is not f32, f16 or bf16.
    pub fn indexed_moe_forward(
        &self,
        self_shape: &Shape,
        input: &CudaStorage,
        input_l: &Layout,
        ids: &CudaStorage,
        ids_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (count, n, k) = self_shape.dims3()?;
        let (batch, topk) = ids_l.shape().dims2()?;
        let (rows, slots, last) = input_l.shape().dims3()?;
        if rows != batch || last != k || (slots != 1 && slots != topk) {
            return Err(mismatch(input_l, self_shape));
        }
        self.holds(count * n * k, "indexed_moe_forward")?;
        let input_l = input_l.broadcast_as((batch, topk, k))?;
        let sizes = (count, n, k);
        let dst = ops::experts(self, sizes, (input, &input_l), (ids, ids_l))?;
        Ok((dst, Shape::from((batch, topk, n))))
    }
}

fn mismatch(lhs: &Layout, rhs: &Shape) -> Error {
    Error::ShapeMismatchBinaryOp {
        lhs: lhs.shape().clone(),
        rhs: rhs.clone(),
        op: "qmatmul",
    }
    .bt()
}

impl QCudaStorage {
    /// Whether the blocks are on `device`.
    pub(crate) fn is_on(&self, device: &CudaDevice) -> bool {
        self.device.same_device(device)
    }
}
