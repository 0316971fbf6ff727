//! Implements Candle's traits of a device and a storage. Every op is one call into `ops`.

use super::adapter::Options;
use super::device::WebGpuDevice;
use super::ops;
use super::storage::WebGpuStorage;
use crate::backend::{BackendDevice, BackendStorage};
use crate::conv::{
    Geometry, ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D,
};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::watch::{Switches, Watched};
use crate::{CpuStorage, DType, DeviceLocation, Error, Layout, Result, Shape, WithDType};

impl BackendDevice for WebGpuDevice {
    type Storage = WebGpuStorage;

    fn new(ordinal: usize) -> Result<Self> {
        Self::with_options(ordinal, &Options::default())
    }

    fn location(&self) -> DeviceLocation {
        self.place()
    }

    fn same_device(&self, rhs: &Self) -> bool {
        self.id() == rhs.id()
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<WebGpuStorage> {
        let mut storage = self.alloc(shape.elem_count(), dtype, "zeros")?;
        let zero = Scalar::zero(dtype);
        ops::fill::const_set(&mut storage, zero, &Layout::contiguous(shape))?;
        Ok(storage)
    }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<WebGpuStorage> {
        self.alloc(shape.elem_count(), dtype, "alloc")
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<WebGpuStorage> {
        self.upload(data)
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<WebGpuStorage> {
        match storage {
            CpuStorage::U8(data) => self.upload(data),
            CpuStorage::U32(data) => self.upload(data),
            CpuStorage::I16(data) => self.upload(data),
            CpuStorage::I32(data) => self.upload(data),
            CpuStorage::I64(data) => self.upload(data),
            CpuStorage::BF16(data) => self.upload(data),
            CpuStorage::F16(data) => self.upload(data),
            CpuStorage::F32(data) => self.upload(data),
            CpuStorage::F64(data) => self.upload(data),
            CpuStorage::F8E4M3(data) => self.upload(data),
            other => {
                let dtype = other.dtype();
                Err(self.unsupported(
                    "upload",
                    dtype,
                    "this dtype supports storage only, on the CPU",
                ))
            }
        }
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<WebGpuStorage> {
        self.storage_from_cpu_storage(&storage)
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<WebGpuStorage> {
        ops::random::uniform(self, shape.elem_count(), dtype, lo, up)
    }

    fn rand_normal(
        &self,
        shape: &Shape,
        dtype: DType,
        mean: f64,
        std: f64,
    ) -> Result<WebGpuStorage> {
        ops::random::normal(self, shape.elem_count(), dtype, mean, std)
    }

    fn set_seed(&self, seed: u64) -> Result<()> {
        self.start_sequence(seed);
        Ok(())
    }

    fn get_current_seed(&self) -> Result<u64> {
        Ok(self.seed())
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu().queue.synchronize()
    }
}

impl Watched for WebGpuStorage {
    const NAME: &'static str = "webgpu";

    fn switches(&self) -> Switches {
        self.device().switches()
    }

    fn device_name(&self) -> &str {
        self.device().name()
    }

    fn failure(text: String) -> Error {
        Error::WebGpu(text).bt()
    }
}

impl BackendStorage for WebGpuStorage {
    type Device = WebGpuDevice;

    fn try_clone(&self, _layout: &Layout) -> Result<Self> {
        ops::elementwise::copy(self, &Layout::contiguous(self.len()))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn device(&self) -> &WebGpuDevice {
        &self.device
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        self.begin_read()?.wait()
    }

    methods_by_ops!();
}
