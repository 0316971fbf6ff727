//! The storage: memory with a dtype. Its ops are in `ops`.

use super::device::WebGpuDevice;
use super::memory::Memory;
use super::queue::Binding;
use super::readback::RawRead;
use super::warm_up::is_warming;
use crate::{CpuStorage, DType, Error, Result, WithDType};

/// Elements of one dtype on the GPU.
#[derive(Debug)]
pub struct WebGpuStorage {
    memory: Memory,
    len: usize,
    pub(super) dtype: DType,
    pub(super) device: WebGpuDevice,
}

impl WebGpuStorage {
    pub(super) fn new(memory: Memory, len: usize, dtype: DType, device: WebGpuDevice) -> Self {
        Self {
            memory,
            len,
            dtype,
            device,
        }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bytes(&self) -> u64 {
        self.len as u64 * self.dtype.size_in_bytes() as u64
    }

    /// Whether all of it fits one binding.
    pub(super) fn fits_binding(&self) -> bool {
        !matches!(self.memory, Memory::Chunks { .. }) && self.bytes() <= self.device.max_binding()
    }

    /// The whole storage as a kernel's binding.
    pub(super) fn binding(&self) -> Binding<'_> {
        match &self.memory {
            _ if !self.fits_binding() => Binding::TooLarge(self.bytes()),
            Memory::One(buffer) => Binding::Buffer(buffer),
            Memory::Window { buffer, offset } => Binding::Window(buffer, *offset),
            Memory::Chunks { .. } => Binding::TooLarge(self.bytes()),
        }
    }

    /// Another handle of the same memory.
    pub(super) fn share(&self) -> Self {
        Self::new(
            self.memory.clone(),
            self.len,
            self.dtype,
            self.device.clone(),
        )
    }

    /// Another handle of the same memory, with its bits as elements of `dtype`: writes to one are visible in the other.
    ///
    /// It covers the whole storage, so the bytes must be whole elements of `dtype`. Bytes are in little-endian order, as in a file.
    ///
    /// # Errors
    /// [`Error::WebGpu`] if they are not. [`Error::UnsupportedOnDevice`] if the device does not support `dtype`.
    pub fn bitcast(&self, dtype: DType) -> Result<Self> {
        self.device.elem(dtype, "bitcast")?;
        let (bytes, size) = (self.bytes(), dtype.size_in_bytes() as u64);
        if !bytes.is_multiple_of(size) {
            return Err(Error::WebGpu(format!(
                "bitcast: {} elements of {:?} have {bytes} bytes, not a whole number of {dtype:?} elements of {size} bytes: \
                 use a narrower part",
                self.len, self.dtype
            ))
            .bt());
        }
        let len = (bytes / size) as usize;
        Ok(Self::new(
            self.memory.clone(),
            len,
            dtype,
            self.device.clone(),
        ))
    }

    /// Elements `first..first + len` as a storage that fits a binding, and the index of the first one in it. `None` if they are too many or
    /// span two buffers. The memory is shared: writes to one are visible in the other.
    pub(super) fn window(&self, first: usize, len: usize) -> Option<(Self, usize)> {
        if self.fits_binding() {
            return Some((self.share(), first));
        }
        let size = self.dtype.size_in_bytes();
        let (begin, end) = (first * size, (first + len) * size);
        let limit = self.device.max_binding();
        let (memory, start) = self.memory.window(begin as u64, end as u64, limit)?;
        let shift = (begin - start as usize) / size;
        let window = Self::new(memory, shift + len, self.dtype, self.device.clone());
        Some((window, shift))
    }

    /// Like [`WebGpuStorage::window`], starting at `first` itself; also `None` if a binding cannot start there.
    pub(super) fn aligned_window(&self, first: usize, len: usize) -> Option<Self> {
        let size = self.dtype.size_in_bytes();
        let (begin, end) = ((first * size) as u64, ((first + len) * size) as u64);
        let (memory, start) = self.memory.window(begin, end, self.device.max_binding())?;
        let window = || Self::new(memory, len, self.dtype, self.device.clone());
        (start == begin).then(window)
    }

    /// Starts copying the elements to the host, without waiting.
    pub fn begin_read(&self) -> Result<PendingRead> {
        let raw = if is_warming(self.device.gpu().id()) {
            None
        } else {
            Some(
                self.device
                    .gpu()
                    .queue
                    .begin_read(&self.memory, self.bytes())?,
            )
        };
        Ok(PendingRead {
            raw,
            dtype: self.dtype,
            len: self.len,
        })
    }
}

/// Builds a host storage from a storage's bytes, which `feed` passes in order in chunks of whole elements.
fn cpu_storage(
    len: usize,
    dtype: DType,
    feed: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<()>,
) -> Result<CpuStorage> {
    fn read<T: WithDType + bytemuck::Pod>(
        len: usize,
        feed: impl FnOnce(&mut dyn FnMut(&[u8])) -> Result<()>,
    ) -> Result<CpuStorage> {
        let mut data: Vec<T> = Vec::with_capacity(len);
        feed(&mut |bytes| match bytemuck::try_cast_slice(bytes) {
            Ok(elements) => data.extend_from_slice(elements),
            Err(_) => data.extend(bytemuck::pod_collect_to_vec::<u8, T>(bytes)),
        })?;
        Ok(T::to_cpu_storage_owned(data))
    }
    match dtype {
        DType::U8 => read::<u8>(len, feed),
        DType::U32 => read::<u32>(len, feed),
        DType::I16 => read::<i16>(len, feed),
        DType::I32 => read::<i32>(len, feed),
        DType::I64 => read::<i64>(len, feed),
        DType::BF16 => read::<half::bf16>(len, feed),
        DType::F16 => read::<half::f16>(len, feed),
        DType::F32 => read::<f32>(len, feed),
        DType::F64 => read::<f64>(len, feed),
        DType::F8E4M3 => {
            let mut data = Vec::with_capacity(len);
            feed(&mut |bytes| {
                data.extend(bytes.iter().copied().map(float8::F8E4M3::from_bits));
            })?;
            Ok(CpuStorage::F8E4M3(data))
        }
        other => crate::bail!("a WebGPU storage cannot hold {other:?}"),
    }
}

/// A copy of a storage to the host, in flight.
pub struct PendingRead {
    /// `None` while kernels are only compiled: the result is then zeros.
    raw: Option<RawRead>,
    dtype: DType,
    len: usize,
}

impl PendingRead {
    /// Waits without blocking the thread: the form for browsers, and for native programs with an executor.
    ///
    /// # Errors
    /// The device failed, or a kernel found an index out of range since the last check.
    pub async fn finish(self) -> Result<CpuStorage> {
        if let Some(raw) = &self.raw {
            raw.arrive().await?;
        }
        self.take()
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// The device failed, or a kernel found an index out of range since the last check. Always an error in a browser, since its threads
    /// must not block: use [`finish`](Self::finish) there.
    pub fn wait(self) -> Result<CpuStorage> {
        if let Some(raw) = &self.raw {
            raw.wait()?;
        }
        self.take()
    }

    fn take(self) -> Result<CpuStorage> {
        let bytes = self.len * self.dtype.size_in_bytes();
        cpu_storage(self.len, self.dtype, |read| match self.raw {
            Some(raw) => raw.take(read),
            None => {
                read(&vec![0; bytes]);
                Ok(())
            }
        })
    }
}
