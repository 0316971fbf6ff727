//! Quantised weights on a Metal device.

use bytemuck::TransparentWrapper;

use super::crossing::{on_metal, Leave};
use super::{MetalDevice, MetalStorage};
use crate::quantized::GgmlDType;
use crate::webgpu_backend::QWebGpuStorage;
use crate::{DType, Layout, Result};

/// GGML blocks on a Metal device; see [`QWebGpuStorage`] for their memory layout.
#[derive(Debug)]
pub struct QMetalStorage(QWebGpuStorage);

impl QMetalStorage {
    /// Allocates blocks of zeros for `elem_count` elements, rounded up to a whole number of blocks.
    ///
    /// # Errors
    /// If the allocation fails.
    pub fn zeros(device: &MetalDevice, elem_count: usize, dtype: GgmlDType) -> Result<Self> {
        let bytes = elem_count.div_ceil(dtype.block_size()) * dtype.type_size();
        Self::from_parts(device, dtype, &[&vec![0; bytes]])
    }

    /// Uploads the bytes of a whole number of blocks, the concatenation of `parts`.
    pub(crate) fn from_parts(
        device: &MetalDevice,
        dtype: GgmlDType,
        parts: &[&[u8]],
    ) -> Result<Self> {
        on_metal(QWebGpuStorage::from_parts(device.webgpu(), dtype, parts))
    }

    /// The inner blocks.
    pub fn webgpu(&self) -> &QWebGpuStorage {
        &self.0
    }

    /// The format.
    pub fn dtype(&self) -> GgmlDType {
        self.0.dtype()
    }

    /// The device.
    pub fn device(&self) -> &MetalDevice {
        MetalDevice::wrap_ref(self.0.device())
    }

    /// Size of the blocks in bytes, in a file's format.
    pub fn storage_size_in_bytes(&self) -> usize {
        self.0.size_in_bytes()
    }

    /// Reads the blocks back in a file's format. Waits for the GPU.
    ///
    /// # Errors
    /// If the read fails.
    pub fn data(&self) -> Result<Vec<u8>> {
        on_metal(self.0.data())
    }

    /// Dequantises the first `elem_count` elements to f32.
    ///
    /// # Errors
    /// If the allocation fails.
    pub fn dequantize(&self, elem_count: usize) -> Result<MetalStorage> {
        self.dequantize_to(elem_count, DType::F32)
    }

    /// Dequantises the first `elem_count` elements to dtype `to`.
    pub(crate) fn dequantize_to(&self, elem_count: usize, to: DType) -> Result<MetalStorage> {
        on_metal(self.0.dequantize(elem_count, to))
    }

    /// Rows of this table `(rows, hidden)` at the given ids, a vector, as f32.
    pub(crate) fn embedding(
        &self,
        rows: usize,
        hidden: usize,
        ids: &MetalStorage,
        ids_l: &Layout,
    ) -> Result<MetalStorage> {
        on_metal(self.0.embedding(ids.webgpu(), ids_l, (rows, hidden)))
    }
}

impl Leave for QWebGpuStorage {
    type Outside = QMetalStorage;
    fn leave(self) -> QMetalStorage {
        QMetalStorage(self)
    }
}
