//! The storage: memory with a dtype.

use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};
use float8::F8E4M3;
use half::{bf16, f16};

use super::device::CudaDevice;
use super::error::{CudaError, WrapErr};
use super::gpu;
use super::launch::Args;
use crate::backend::BackendStorage;
use crate::watch::{Switches, Watched};
use crate::{CpuStorage, DType, Error, Result};

/// Runs a body on the slice inside a [`CudaStorageSlice`], of any type.
macro_rules! on_slice {
    ($slice:expr => |$s:ident| $body:expr) => {
        match $slice {
            CudaStorageSlice::U8($s) => $body,
            CudaStorageSlice::U32($s) => $body,
            CudaStorageSlice::I16($s) => $body,
            CudaStorageSlice::I32($s) => $body,
            CudaStorageSlice::I64($s) => $body,
            CudaStorageSlice::BF16($s) => $body,
            CudaStorageSlice::F16($s) => $body,
            CudaStorageSlice::F32($s) => $body,
            CudaStorageSlice::F64($s) => $body,
            CudaStorageSlice::F8E4M3($s) => $body,
            CudaStorageSlice::F6E2M3($s) => $body,
            CudaStorageSlice::F6E3M2($s) => $body,
            CudaStorageSlice::F4($s) => $body,
            CudaStorageSlice::F8E8M0($s) => $body,
        }
    };
}

macro_rules! storage_slice {
    ($($dtype:ident($ty:ty)),+ $(,)?) => {
        /// Elements of one dtype in the card's memory.
        #[derive(Debug)]
        #[allow(missing_docs, reason = "the variants are the dtypes")]
        pub enum CudaStorageSlice {
            $($dtype(CudaSlice<$ty>),)+
        }

        /// Builds a host storage from the bytes of its elements.
        pub(super) fn host_storage(dtype: DType, bytes: &[u8]) -> CpuStorage {
            match dtype {
                $(DType::$dtype => CpuStorage::$dtype(elements(bytes)),)+
            }
        }

        impl CudaStorageSlice {
            pub(super) fn dtype(&self) -> DType {
                match self {
                    $(Self::$dtype(_) => DType::$dtype,)+
                }
            }

            fn alloc(device: &CudaDevice, len: usize, dtype: DType, op: &'static str) -> Result<Self> {
                Ok(match dtype {
                    $(DType::$dtype => Self::$dtype(device.alloc_slice(len, op)?),)+
                })
            }

            fn upload(device: &CudaDevice, data: &CpuStorage) -> Result<Self> {
                Ok(match data {
                    $(CpuStorage::$dtype(data) => {
                        let mut slice = device.alloc_slice(data.len(), "clone_htod")?;
                        device.upload_bytes(bytes_of(data), &mut slice, "clone_htod")?;
                        Self::$dtype(slice)
                    },)+
                })
            }

            fn download(&self, device: &CudaDevice) -> Result<CpuStorage> {
                Ok(match self {
                    $(Self::$dtype(slice) => CpuStorage::$dtype(read(device, slice)?),)+
                })
            }
        }
    };
}

storage_slice! {
    U8(u8), U32(u32), I16(i16), I32(i32), I64(i64), BF16(bf16), F16(f16), F32(f32), F64(f64),
    F8E4M3(F8E4M3), F6E2M3(u8), F6E3M2(u8), F4(u8), F8E8M0(u8),
}

/// The bytes of elements.
fn bytes_of<T: DeviceRepr>(elements: &[T]) -> &[u8] {
    // SAFETY: types with the same representation on the card are plain bits.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), std::mem::size_of_val(elements)) }
}

/// Converts bytes to elements.
fn elements<T: DeviceRepr + Copy>(bytes: &[u8]) -> Vec<T> {
    let len = bytes.len() / size_of::<T>();
    let mut elements = Vec::with_capacity(len);
    // SAFETY: an element may have any bits; the vector has space for `len` of them, which the copy fills.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            elements.as_mut_ptr() as *mut u8,
            len * size_of::<T>(),
        );
        elements.set_len(len);
    }
    elements
}

fn read<T: DeviceRepr>(device: &CudaDevice, slice: &CudaSlice<T>) -> Result<Vec<T>> {
    match slice.len() {
        0 => Ok(vec![]),
        _ => device.download(slice, "clone_dtoh"),
    }
}

impl CudaDevice {
    /// A storage from the bytes of its elements.
    pub(crate) fn storage_from_bytes(&self, bytes: &[u8], dtype: DType) -> Result<CudaStorage> {
        let len = bytes.len() / dtype.size_in_bytes();
        let mut storage = CudaStorage::alloc(self, len, dtype, "clone_htod")?;
        storage.fill_from(bytes)?;
        Ok(storage)
    }
}

/// Elements of one dtype on a CUDA device.
#[derive(Debug)]
pub struct CudaStorage {
    /// The elements.
    pub slice: CudaStorageSlice,
    /// The device of the elements.
    pub device: CudaDevice,
}

/// A Rust type of a [`CudaStorage`]'s elements.
pub trait CudaDType: Sized {
    /// The storage's elements, if they are of this type.
    fn as_cuda_slice(storage: &CudaStorage) -> Result<&CudaSlice<Self>>;
    /// Like [`CudaDType::as_cuda_slice`], mutable.
    fn as_cuda_slice_mut(storage: &mut CudaStorage) -> Result<&mut CudaSlice<Self>>;
    /// Wraps these elements as a storage.
    fn wrap_cuda_slice(slice: CudaSlice<Self>, device: CudaDevice) -> CudaStorage;
}

macro_rules! cuda_dtype {
    ($($ty:ty: $dtype:ident),+ $(,)?) => {$(
        impl CudaDType for $ty {
            fn as_cuda_slice(storage: &CudaStorage) -> Result<&CudaSlice<Self>> {
                match &storage.slice {
                    CudaStorageSlice::$dtype(slice) => Ok(slice),
                    other => Err(CudaError::UnexpectedDType {
                        msg: "as_cuda_slice",
                        expected: DType::$dtype,
                        got: other.dtype(),
                    }
                    .into()),
                }
            }

            fn as_cuda_slice_mut(storage: &mut CudaStorage) -> Result<&mut CudaSlice<Self>> {
                match &mut storage.slice {
                    CudaStorageSlice::$dtype(slice) => Ok(slice),
                    other => Err(CudaError::UnexpectedDType {
                        msg: "as_cuda_slice_mut",
                        expected: DType::$dtype,
                        got: other.dtype(),
                    }
                    .into()),
                }
            }

            fn wrap_cuda_slice(slice: CudaSlice<Self>, device: CudaDevice) -> CudaStorage {
                CudaStorage { slice: CudaStorageSlice::$dtype(slice), device }
            }
        }
    )+};
}

cuda_dtype! {
    u8: U8, u32: U32, i16: I16, i32: I32, i64: I64, f16: F16, bf16: BF16, f32: F32, f64: F64,
    F8E4M3: F8E4M3,
}

impl CudaStorage {
    /// Wraps these elements as a storage.
    pub fn wrap_cuda_slice<T: CudaDType>(slice: CudaSlice<T>, device: CudaDevice) -> Self {
        T::wrap_cuda_slice(slice, device)
    }

    /// The elements.
    ///
    /// # Errors
    /// If they are of another type.
    pub fn as_cuda_slice<T: CudaDType>(&self) -> Result<&CudaSlice<T>> {
        T::as_cuda_slice(self)
    }

    /// The elements, mutable.
    ///
    /// # Errors
    /// If they are of another type.
    pub fn as_cuda_slice_mut<T: CudaDType>(&mut self) -> Result<&mut CudaSlice<T>> {
        T::as_cuda_slice_mut(self)
    }

    pub(super) fn alloc(
        device: &CudaDevice,
        len: usize,
        dtype: DType,
        op: &'static str,
    ) -> Result<Self> {
        Ok(Self {
            slice: CudaStorageSlice::alloc(device, len, dtype, op)?,
            device: device.clone(),
        })
    }

    pub(super) fn upload(device: &CudaDevice, data: &CpuStorage) -> Result<Self> {
        Ok(Self {
            slice: CudaStorageSlice::upload(device, data)?,
            device: device.clone(),
        })
    }

    /// Copies the bytes of all elements.
    fn fill_from(&mut self, bytes: &[u8]) -> Result<()> {
        let device = &self.device;
        on_slice!(&mut self.slice => |s| device.upload_bytes(bytes, s, "memcpy_htod"))
    }

    pub(super) fn download(&self) -> Result<CpuStorage> {
        self.slice.download(&self.device)
    }

    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        on_slice!(&self.slice => |s| s.len())
    }

    /// The first element's address on the card.
    pub(super) fn address(&self) -> u64 {
        // Without event tracking the guard does nothing, and all kernels are in the device's stream.
        on_slice!(&self.slice => |s| s.device_ptr(self.device.stream()).0)
    }

    /// Sets all bits to 0.
    pub(super) fn clear(&mut self) -> Result<()> {
        let bytes = self.len() * self.dtype().size_in_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.device.stream();
        self.device.context().bind_to_thread().w()?;
        // SAFETY: the range is all of this storage's memory.
        unsafe {
            cudarc::driver::result::memset_d8_async(self.address(), 0, bytes, stream.cu_stream())
        }
        .w()
    }
}

impl Watched for CudaStorage {
    const NAME: &'static str = gpu::NAME;

    fn switches(&self) -> Switches {
        self.device.switches()
    }

    fn device_name(&self) -> &str {
        self.device.name()
    }

    fn failure(text: String) -> Error {
        Error::Cuda(text.into()).bt()
    }
}

impl Args {
    /// A storage's first element.
    pub(super) fn storage(self, storage: &CudaStorage) -> Self {
        self.value(storage.address())
    }

    /// A storage's first element, or a null pointer.
    pub(super) fn storage_or_null(self, storage: Option<&CudaStorage>) -> Self {
        self.value(storage.map_or(0, CudaStorage::address))
    }
}
