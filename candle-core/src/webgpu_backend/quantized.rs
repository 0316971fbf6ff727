//! Quantised blocks on the device.

use super::ops;
use super::ops::quantized::Format;
use super::queue::Binding;
use super::{WebGpuDevice, WebGpuStorage};
use crate::backend::BackendStorage;
use crate::quantized::GgmlDType;
use crate::{CpuStorage, DType, Layout, Result};

/// Blocks of GGML on a WebGPU device. Floats are stored as in a tensor, quantised blocks in planes (`ops/quantized/format.rs`).
#[derive(Debug)]
pub struct QWebGpuStorage {
    dtype: GgmlDType,
    blocks: usize,
    planes: Vec<WebGpuStorage>,
    /// Upper bound on the elements' magnitude.
    reach: f32,
}

/// The storage of the elements of blocks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Blocks<'a> {
    /// A tensor's storage, for formats that are floats.
    Floats(&'a WebGpuStorage),
    Planes(Format),
}

/// Granularity of the start of windows, in units: every plane is then at a multiple of the 256 bytes at which bindings can begin, since a
/// unit has whole words in each.
const WINDOW_UNITS: usize = 64;

/// The planes of some elements.
pub(super) struct Window {
    planes: Vec<WebGpuStorage>,
    /// The index of the first element.
    pub(super) offset: usize,
}

impl Window {
    /// The planes themselves.
    #[cfg(test)]
    pub(super) fn into_planes(self) -> Vec<WebGpuStorage> {
        self.planes
    }

    /// The planes as a kernel's bindings.
    pub(super) fn bindings(&self) -> Vec<Binding<'_>> {
        self.planes.iter().map(ops::bind).collect()
    }
}

impl QWebGpuStorage {
    /// Uploads the bytes of a whole number of blocks, the concatenation of `parts`.
    ///
    /// # Errors
    /// If the allocation fails.
    pub(crate) fn from_parts(
        device: &WebGpuDevice,
        dtype: GgmlDType,
        parts: &[&[u8]],
    ) -> Result<Self> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let (planes, reach) = match Format::of(dtype) {
            Some(format) => ops::quantized::upload(device, format, dtype, parts)?,
            None => {
                let floats = match dtype {
                    GgmlDType::F16 => DType::F16,
                    GgmlDType::BF16 => DType::BF16,
                    _ => DType::F32,
                };
                (vec![device.upload_parts(parts, floats)?], 0.)
            }
        };
        Ok(Self {
            dtype,
            blocks: bytes / dtype.type_size(),
            planes,
            reach,
        })
    }

    /// The format.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// The device.
    pub fn device(&self) -> &WebGpuDevice {
        self.planes[0].device()
    }

    /// Size of the blocks in bytes, in a file's format. Some formats take up to 4 percent more on the device; those with tables (IQ, TQ,
    /// MXFP4) take 4.6 or 5 bits per element in addition to these bytes.
    pub(crate) fn size_in_bytes(&self) -> usize {
        self.blocks * self.dtype.type_size()
    }

    /// Reads the blocks back in a file's format. Waits for the GPU.
    pub(crate) fn data(&self) -> Result<Vec<u8>> {
        match self.blocks() {
            Blocks::Planes(format) => ops::quantized::download(format, &self.planes, self.blocks),
            Blocks::Floats(floats) => Ok(match floats.to_cpu_storage()? {
                CpuStorage::F16(floats) => bytemuck::cast_slice(&floats).to_vec(),
                CpuStorage::BF16(floats) => bytemuck::cast_slice(&floats).to_vec(),
                floats => bytemuck::cast_slice(floats.as_slice::<f32>()?).to_vec(),
            }),
        }
    }

    pub(super) fn blocks(&self) -> Blocks<'_> {
        match Format::of(self.dtype) {
            Some(format) => Blocks::Planes(format),
            None => Blocks::Floats(&self.planes[0]),
        }
    }

    /// A power of two that scales all elements into the range of an f16 without losing small ones.
    pub(super) fn f16_factor(&self) -> f32 {
        if self.reach == 0. || !self.reach.is_finite() {
            return 1.;
        }
        // `reach` is below 2^(log2 + 1); the largest f16 is almost 2^16.
        2f32.powi((14 - self.reach.log2().floor() as i32).clamp(-100, 100))
    }

    /// Whether every plane fits a binding.
    pub(super) fn fits_binding(&self) -> bool {
        self.planes.iter().all(WebGpuStorage::fits_binding)
    }

    /// Number of elements for which every plane fits a binding, wherever they begin, and also a result of `bytes` for each.
    pub(super) fn window_elements(&self, format: Format, bytes: usize) -> usize {
        let unit = format.unit_elements();
        let plane_bytes = format.unit_words().into_iter().max().unwrap_or(1) * 4;
        let units = self.device().max_binding() as usize / plane_bytes.max(unit * bytes);
        // Elements before the requested ones at the start of a window.
        let before = if units > 2 * WINDOW_UNITS {
            WINDOW_UNITS
        } else {
            1
        };
        // A binding may begin at a multiple of this many elements, in a result of any dtype.
        let aligned = 256usize.div_ceil(unit);
        (units.saturating_sub(before) / aligned).max(1) * aligned * unit
    }

    /// Number of rows of `k` elements for which every plane fits a binding.
    pub(super) fn window_rows(&self, format: Format, k: usize) -> usize {
        if self.fits_binding() {
            return usize::MAX;
        }
        match self.window_elements(format, 0) / k.max(1) {
            rows @ ..8 => rows.max(1),
            rows => rows / 8 * 8,
        }
    }

    /// The planes of some elements, within what bindings cover.
    pub(super) fn window(&self, format: Format, first: usize, elements: usize) -> Result<Window> {
        let planes = self.planes.iter().take(format.bindings());
        if self.fits_binding() {
            let planes = planes.map(WebGpuStorage::share).collect();
            return Ok(Window {
                planes,
                offset: first,
            });
        }
        let unit = format.unit_elements();
        let end = (first + elements).div_ceil(unit);
        let words = format.unit_words();
        let largest = words.iter().max().copied().unwrap_or(1) * 4;
        let aligned = first / unit / WINDOW_UNITS * WINDOW_UNITS;
        let start = if (end - aligned) * largest <= self.device().max_binding() as usize {
            aligned
        } else {
            // Small bindings, which cannot hold the elements before.
            first / unit
        };
        let mut windows = Vec::with_capacity(4);
        for (plane, words) in planes.zip(words) {
            let (first, len) = (start * words, (end - start) * words);
            windows.push(match plane.aligned_window(first, len) {
                Some(window) => window,
                // It spans two buffers, or a binding cannot begin there.
                None => ops::elementwise::copy(plane, &Layout::contiguous_with_offset(len, first))?,
            });
        }
        Ok(Window {
            planes: windows,
            offset: first - start * unit,
        })
    }

    /// The first `elements` elements, in dtype `to`.
    pub(crate) fn dequantize(&self, elements: usize, to: DType) -> Result<WebGpuStorage> {
        match self.blocks() {
            Blocks::Planes(format) => {
                ops::quantized::dequantize(self, format, (0, elements), 1., (to, false))
            }
            Blocks::Floats(floats) => {
                ops::elementwise::to_dtype(floats, &Layout::contiguous(elements), to)
            }
        }
    }

    /// Rows of this table `(rows, hidden)` at the given ids, a vector, as f32.
    pub(crate) fn embedding(
        &self,
        ids: &WebGpuStorage,
        ids_l: &Layout,
        table: (usize, usize),
    ) -> Result<WebGpuStorage> {
        match self.blocks() {
            Blocks::Planes(format) => ops::quantized::embedding(self, format, (ids, ids_l), table),
            Blocks::Floats(floats) => {
                // A selection skips the greatest number of a dtype, but here it is an ordinary id.
                let ids = ops::elementwise::to_dtype(ids, ids_l, DType::I64)?;
                let ids_l = Layout::contiguous(ids_l.shape());
                let table_l = Layout::contiguous(table);
                let rows = ops::indexing::index_select(floats, &ids, &table_l, &ids_l, 0)?;
                let elements = ids_l.shape().elem_count() * table.1;
                ops::elementwise::to_dtype(&rows, &Layout::contiguous(elements), DType::F32)
            }
        }
    }

    /// `lhs (m, k)` times the rows `first_row .. first_row + n` of `k` elements transposed, `(m, n)`, in the dtype of `lhs`; sums are f32.
    pub(crate) fn matmul_t(
        &self,
        first_row: usize,
        mkn: (usize, usize, usize),
        lhs: &WebGpuStorage,
        lhs_l: &Layout,
    ) -> Result<WebGpuStorage> {
        ops::matmul::matmul_t(self, first_row, mkn, lhs, lhs_l)
    }
}
