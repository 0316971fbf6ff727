//! Quantised blocks on a device.

use std::borrow::Cow;

#[cfg(not(feature = "cuda"))]
use super::absent::cuda;
#[cfg(not(feature = "metal"))]
use super::absent::metal;
#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "metal")]
use super::metal;
use super::{GgmlDType, QuantizedType};
#[cfg(feature = "webgpu")]
use crate::webgpu_backend::QWebGpuStorage;
use crate::{DType, Device, Error, Layout, Result, Storage};

/// Quantised blocks on a device.
pub enum QStorage {
    /// On the CPU.
    Cpu(Box<dyn QuantizedType>),
    /// On a Metal device.
    Metal(metal::QMetalStorage),
    /// On a CUDA device.
    Cuda(cuda::QCudaStorage),
    /// On a WebGPU device.
    #[cfg(feature = "webgpu")]
    WebGpu(QWebGpuStorage),
}

impl QStorage {
    /// Blocks of `dtype` on `device`, from their bytes. On the CPU owned bytes are not copied if their alignment allows it; a WebGPU or
    /// Metal device rearranges them, see `webgpu_backend`.
    ///
    /// # Errors
    /// If the bytes are not a whole number of blocks, or the device cannot allocate the memory.
    pub fn from_data(data: Cow<'_, [u8]>, device: &Device, dtype: GgmlDType) -> Result<Self> {
        match device {
            Device::Cpu => {
                check_blocks(data.len(), dtype)?;
                Ok(Self::Cpu(dtype.from_data(data)))
            }
            _ => Self::from_parts(&[&data], device, dtype),
        }
    }

    /// Blocks of `dtype` on `device`, from the concatenation of `parts`, each of whole blocks. A GPU's memory is filled from each part where
    /// it is: the parts are not joined on the host.
    ///
    /// # Errors
    /// As [`from_data`](Self::from_data).
    pub fn from_parts(parts: &[&[u8]], device: &Device, dtype: GgmlDType) -> Result<Self> {
        for part in parts {
            check_blocks(part.len(), dtype)?;
        }
        match device {
            Device::Cpu => Ok(Self::Cpu(dtype.from_data(parts.concat().into()))),
            Device::Cuda(device) => {
                cuda::QCudaStorage::from_parts(device, dtype, parts).map(Self::Cuda)
            }
            Device::Metal(device) => {
                metal::QMetalStorage::from_parts(device, dtype, parts).map(Self::Metal)
            }
            #[cfg(feature = "webgpu")]
            Device::WebGpu(device) => {
                QWebGpuStorage::from_parts(device, dtype, parts).map(Self::WebGpu)
            }
        }
    }

    /// Blocks for `elem_count` elements, encoded by `fill` on the CPU (all encoders run there) and then copied to `device`.
    pub(super) fn encode(
        elem_count: usize,
        device: &Device,
        dtype: GgmlDType,
        fill: impl FnOnce(&mut dyn QuantizedType),
    ) -> Result<Self> {
        let mut blocks = dtype.cpu_zeros(elem_count);
        if elem_count > 0 {
            fill(&mut *blocks);
        }
        match device {
            Device::Cpu => Ok(Self::Cpu(blocks)),
            device => Self::from_data(Cow::Borrowed(bytes(&*blocks)), device, dtype),
        }
    }

    /// The blocks for kernels in WGSL: those of WebGPU, or the inner ones of Metal.
    #[cfg(feature = "webgpu")]
    pub(super) fn as_wgpu(&self) -> Option<&QWebGpuStorage> {
        match self {
            Self::WebGpu(blocks) => Some(blocks),
            #[cfg(feature = "metal")]
            Self::Metal(blocks) => Some(blocks.webgpu()),
            _ => None,
        }
    }

    pub(super) fn dtype(&self) -> GgmlDType {
        match self {
            Self::Cpu(blocks) => blocks.dtype(),
            Self::Metal(blocks) => blocks.dtype(),
            Self::Cuda(blocks) => blocks.dtype(),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(blocks) => blocks.dtype(),
        }
    }

    pub(super) fn device(&self) -> Device {
        match self {
            Self::Cpu(_) => Device::Cpu,
            Self::Metal(blocks) => Device::Metal(blocks.device().clone()),
            Self::Cuda(blocks) => Device::Cuda(blocks.device().clone()),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(blocks) => Device::WebGpu(blocks.device().clone()),
        }
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        match self {
            Self::Cpu(blocks) => blocks.storage_size_in_bytes(),
            Self::Metal(blocks) => blocks.storage_size_in_bytes(),
            Self::Cuda(blocks) => blocks.storage_size_in_bytes(),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(blocks) => blocks.size_in_bytes(),
        }
    }

    /// The first `elem_count` elements on the blocks' device, in f32 or, if the device can dequantise to it directly, in `to`.
    pub(super) fn dequantize(&self, elem_count: usize, to: DType) -> Result<Storage> {
        // Only GPUs dequantise to other dtypes.
        let _ = to;
        match self {
            Self::Cpu(blocks) => blocks.dequantize(elem_count).map(Storage::Cpu),
            Self::Metal(blocks) => blocks.dequantize_to(elem_count, to).map(Storage::Metal),
            Self::Cuda(blocks) => blocks.dequantize_to(elem_count, to).map(Storage::Cuda),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(blocks) => blocks.dequantize(elem_count, to).map(Storage::WebGpu),
        }
    }

    /// Rows of the table `(rows, hidden)` by their ids, a vector on the same device.
    pub(super) fn embedding(
        &self,
        ids: (&Storage, &Layout),
        (rows, hidden): (usize, usize),
    ) -> Result<Storage> {
        const OP: &str = "quantized embedding";
        match (self, ids.0) {
            (Self::Cpu(blocks), Storage::Cpu(storage)) => {
                let numbers = storage.as_slice::<i64>()?;
                let numbers = ids.1.strided_index().map(|i| {
                    u32::try_from(numbers[i]).map_err(|_| {
                        Error::Msg(format!(
                            "{OP}: row {} is out of range; there are {rows}",
                            numbers[i]
                        ))
                        .bt()
                    })
                });
                let numbers = numbers.collect::<Result<Vec<_>>>()?;
                blocks.embedding(&numbers, rows, hidden).map(Storage::Cpu)
            }
            (Self::Cuda(blocks), Storage::Cuda(storage)) => blocks
                .embedding(rows, hidden, storage, ids.1)
                .map(Storage::Cuda),
            (Self::Metal(blocks), Storage::Metal(storage)) => blocks
                .embedding(rows, hidden, storage, ids.1)
                .map(Storage::Metal),
            #[cfg(feature = "webgpu")]
            (Self::WebGpu(blocks), Storage::WebGpu(storage)) => blocks
                .embedding(storage, ids.1, (rows, hidden))
                .map(Storage::WebGpu),
            (_, storage) => Err(Error::DeviceMismatchBinaryOp {
                lhs: storage.device().location(),
                rhs: self.device().location(),
                op: OP,
            }
            .bt()),
        }
    }

    /// The bytes of the blocks in a file's format. On a GPU they are read back.
    pub(super) fn data(&self) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Cpu(blocks) => Ok(Cow::Borrowed(bytes(&**blocks))),
            Self::Metal(blocks) => blocks.data().map(Cow::Owned),
            Self::Cuda(blocks) => blocks.data().map(Cow::Owned),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(blocks) => blocks.data().map(Cow::Owned),
        }
    }

    /// The address of the first block for work in `stream`, and a guard that has to live until this work is queued.
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
        match self {
            Self::Cuda(blocks) => blocks.device_ptr_with_guard(stream),
            other => Err(Error::UnsupportedOnDevice {
                op: "device_ptr_with_guard",
                dtype: DType::U8,
                device: format!("{:?}", other.device().location()),
                hint: format!(
                    "only CUDA devices have streams: move the {:?} blocks to one",
                    other.dtype()
                ),
            }
            .bt()),
        }
    }

    /// The address of the first block, on the device.
    ///
    /// # Errors
    /// On Metal and on WebGPU, where buffers have no address.
    pub fn device_ptr(&self) -> Result<*const u8> {
        match self {
            Self::Cpu(blocks) => Ok(blocks.as_ptr()),
            Self::Metal(blocks) => Err(no_address(&self.device(), blocks.dtype())),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda(absent) => absent.never(),
            #[cfg(feature = "cuda")]
            Self::Cuda(blocks) => blocks.device_ptr(),
            #[cfg(feature = "webgpu")]
            Self::WebGpu(blocks) => Err(no_address(&self.device(), blocks.dtype())),
        }
    }
}

/// An error if bytes are not whole blocks.
fn check_blocks(bytes: usize, dtype: GgmlDType) -> Result<()> {
    if bytes.is_multiple_of(dtype.type_size()) {
        return Ok(());
    }
    Err(Error::Msg(format!(
        "{bytes} bytes are not a whole number of {dtype:?} blocks of {} bytes",
        dtype.type_size()
    ))
    .bt())
}

/// The error for the address of a GPU's buffer.
fn no_address(device: &Device, dtype: GgmlDType) -> Error {
    Error::UnsupportedOnDevice {
        op: "device_ptr",
        dtype: DType::U8,
        device: described(device),
        hint: format!(
            "its buffers have no address; read the {dtype:?} blocks back with `QTensor::data`"
        ),
    }
    .bt()
}

/// A device's name in errors.
fn described(device: &Device) -> String {
    #[cfg(feature = "webgpu")]
    if let Some(gpu) = device.as_wgpu() {
        return gpu.description();
    }
    format!("{:?}", device.location())
}

/// The bytes of blocks on the CPU.
pub(crate) fn bytes(blocks: &dyn QuantizedType) -> &[u8] {
    // SAFETY: a `QuantizedType` holds `storage_size_in_bytes` bytes from `as_ptr` on for as long as it is borrowed.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr(), blocks.storage_size_in_bytes()) }
}
