//! Quantised blocks on a device.

use std::borrow::Cow;

use super::absent::{cuda, metal};
use super::{GgmlDType, QuantizedType};
use crate::{CpuStorage, DType, Device, Error, Result};

/// Quantised blocks on a device.
pub enum QStorage {
    /// On the CPU.
    Cpu(Box<dyn QuantizedType>),
    /// On a Metal device.
    Metal(metal::QMetalStorage),
    /// On a CUDA device.
    Cuda(cuda::QCudaStorage),
}

/// The error for what a device cannot hold or do with quantised tensors.
pub(super) fn unsupported(op: &'static str, dtype: GgmlDType, device: &Device) -> Error {
    Error::UnsupportedOnDevice {
        op,
        dtype: DType::U8,
        device: format!("{:?}", device.location()),
        hint: format!(
            "blocks of {dtype:?} are on the CPU only; keep the tensor there, or `dequantize` it to this device"
        ),
    }
    .bt()
}

/// The CPU, or the error that names the other device.
fn on_cpu(op: &'static str, dtype: GgmlDType, device: &Device) -> Result<()> {
    match device {
        Device::Cpu => Ok(()),
        other => Err(unsupported(op, dtype, other)),
    }
}

impl QStorage {
    /// Blocks of `dtype` from their bytes, on `device`. Owned bytes are not copied where their alignment allows it.
    ///
    /// # Errors
    /// `UnsupportedOnDevice` where the device has no quantised tensors; bytes that are no whole number of blocks.
    pub fn from_data(data: Cow<'_, [u8]>, device: &Device, dtype: GgmlDType) -> Result<Self> {
        on_cpu("quantized from_data", dtype, device)?;
        if !data.len().is_multiple_of(dtype.type_size()) {
            return Err(Error::Msg(format!(
                "{} bytes are no whole number of {dtype:?} blocks of {} bytes",
                data.len(),
                dtype.type_size()
            ))
            .bt());
        }
        Ok(Self::Cpu(dtype.from_data(data)))
    }

    /// Blocks of zeros for `elem_count` elements.
    pub(super) fn zeros(elem_count: usize, device: &Device, dtype: GgmlDType) -> Result<Self> {
        on_cpu("quantize", dtype, device)?;
        Ok(Self::Cpu(dtype.cpu_zeros(elem_count)))
    }

    /// The blocks on the CPU.
    pub(super) fn cpu(&self) -> &dyn QuantizedType {
        match self {
            Self::Cpu(blocks) => &**blocks,
            Self::Metal(absent) => absent.never(),
            Self::Cuda(absent) => absent.never(),
        }
    }

    pub(super) fn cpu_mut(&mut self) -> &mut dyn QuantizedType {
        match self {
            Self::Cpu(blocks) => &mut **blocks,
            Self::Metal(absent) => absent.never(),
            Self::Cuda(absent) => absent.never(),
        }
    }

    pub(super) fn dtype(&self) -> GgmlDType {
        self.cpu().dtype()
    }

    pub(super) fn device(&self) -> Device {
        Device::Cpu
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.cpu().storage_size_in_bytes()
    }

    pub(super) fn dequantize(&self, elem_count: usize) -> Result<CpuStorage> {
        self.cpu().dequantize(elem_count)
    }

    pub(super) fn data(&self) -> Cow<'_, [u8]> {
        let blocks = self.cpu();
        // SAFETY: a `QuantizedType` holds `storage_size_in_bytes` bytes from `as_ptr` on for as long as it is borrowed.
        let bytes =
            unsafe { std::slice::from_raw_parts(blocks.as_ptr(), blocks.storage_size_in_bytes()) };
        Cow::Borrowed(bytes)
    }

    /// The address of the first block, on the device.
    ///
    /// # Errors
    /// None on the CPU.
    pub fn device_ptr(&self) -> Result<*const u8> {
        Ok(self.cpu().as_ptr())
    }
}
