//! Quantised blocks.

use bytemuck::TransparentWrapper;

use super::crossing::{on_metal, Leave};
use super::{MetalDevice, MetalStorage};
use crate::quantized::GgmlDType;
use crate::webgpu_backend::QWebGpuStorage;
use crate::{DType, Layout, Result};

/// Blocks of GGML on a Metal device; how they are laid out there, [`QWebGpuStorage`] says.
#[derive(Debug)]
pub struct QMetalStorage(QWebGpuStorage);

impl QMetalStorage {
    /// Blocks of zeros for `elem_count` elements, rounded up to a whole number of blocks.
    ///
    /// # Errors
    /// When the device refuses the memory.
    pub fn zeros(device: &MetalDevice, elem_count: usize, dtype: GgmlDType) -> Result<Self> {
        let bytes = elem_count.div_ceil(dtype.block_size()) * dtype.type_size();
        Self::from_data(device, dtype, &vec![0; bytes])
    }

    /// Blocks from their bytes, which are a whole number of blocks.
    pub(crate) fn from_data(device: &MetalDevice, dtype: GgmlDType, data: &[u8]) -> Result<Self> {
        on_metal(QWebGpuStorage::from_data(device.webgpu(), dtype, data))
    }

    /// The blocks inside.
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

    /// Bytes of the blocks, as a file holds them.
    pub fn storage_size_in_bytes(&self) -> usize {
        self.0.size_in_bytes()
    }

    /// The bytes of the blocks, as a file holds them. Waits for the GPU.
    ///
    /// # Errors
    /// When reading them back fails.
    pub fn data(&self) -> Result<Vec<u8>> {
        on_metal(self.0.data())
    }

    /// The first `elem_count` elements as f32.
    ///
    /// # Errors
    /// When the device refuses the memory.
    pub fn dequantize(&self, elem_count: usize) -> Result<MetalStorage> {
        self.dequantize_to(elem_count, DType::F32)
    }

    /// The first `elem_count` elements in dtype `to`.
    pub(crate) fn dequantize_to(&self, elem_count: usize, to: DType) -> Result<MetalStorage> {
        on_metal(self.0.dequantize(elem_count, to))
    }

    /// Rows of the table `(rows, hidden)` held here by their ids, a vector, as f32.
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
