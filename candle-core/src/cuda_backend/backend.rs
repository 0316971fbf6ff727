//! Implements Candle's traits of a device and a storage. Every op is one call into `ops`.

use super::device::CudaDevice;
use super::ops;
use super::storage::CudaStorage;
use crate::backend::{BackendDevice, BackendStorage};
use crate::conv::{
    Geometry, ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D,
};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::{CpuStorage, DType, DeviceLocation, Layout, Result, Shape, WithDType};

impl BackendDevice for CudaDevice {
    type Storage = CudaStorage;

    fn new(ordinal: usize) -> Result<Self> {
        Self::shared(ordinal)
    }

    fn location(&self) -> DeviceLocation {
        self.place()
    }

    fn same_device(&self, rhs: &Self) -> bool {
        self.id() == rhs.id()
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<CudaStorage> {
        let mut storage = self.new_storage(shape.elem_count(), dtype, "zeros")?;
        storage.clear()?;
        Ok(storage)
    }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<CudaStorage> {
        self.new_storage(shape.elem_count(), dtype, "alloc")
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<CudaStorage> {
        CudaStorage::upload(self, &T::to_cpu_storage(data))
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<CudaStorage> {
        CudaStorage::upload(self, storage)
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<CudaStorage> {
        CudaStorage::upload(self, &storage)
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<CudaStorage> {
        ops::random::uniform(self, shape.elem_count(), dtype, lo, up)
    }

    fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<CudaStorage> {
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
        self.wait()
    }
}

impl BackendStorage for CudaStorage {
    type Device = CudaDevice;

    fn try_clone(&self, _layout: &Layout) -> Result<Self> {
        ops::elementwise::copy(self, &Layout::contiguous(self.len()))
    }

    fn dtype(&self) -> DType {
        self.slice.dtype()
    }

    fn device(&self) -> &CudaDevice {
        &self.device
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        self.begin_read()?.wait()
    }

    methods_by_ops!();
}

impl CudaStorage {
    /// Copies to another CUDA device: directly on one card, through the host otherwise.
    pub fn transfer_to_device(&self, dst: &CudaDevice) -> Result<Self> {
        if dst.same_device(&self.device) {
            return self.try_clone(&Layout::contiguous(self.len()));
        }
        Self::upload(dst, &self.read()?)
    }
}
