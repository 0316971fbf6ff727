//! Properties that programs query before they choose their kernels, and sharing work between cards.

use candle_core::cuda_backend::cudarc::driver::{result, sys::CUdevice_attribute};
use candle_core::cuda_backend::cudarc::nccl::safe::{Comm, Id, ReduceOp};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice, WrapErr};
use candle_core::{bail, CudaDevice, CudaStorage, Device, DeviceLocation, Result};

pub fn check(device: &Device) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    if device.location() != (DeviceLocation::Cuda { gpu_id: 0 }) || !device.is_cuda() {
        bail!("{:?}", device.location())
    }
    let stream = cuda.cuda_stream();
    let major = stream
        .context()
        .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        .w()?;
    if major < 7 {
        bail!("compute capability {major}")
    }
    let (free, total) = device.with_context(result::mem_get_info).w()?;
    if free == 0 || free > total {
        bail!("{free} bytes of {total} are free")
    }
    if cuda.is_event_tracking() {
        // SAFETY: one stream.
        unsafe { cuda.disable_event_tracking() };
    }
    if cuda.id() != device.as_cuda_device()?.id() {
        bail!("two ids of one device")
    }
    device.synchronize()
}

/// The work of several cards after their parts of a product. It needs several processes, so it is compiled here but not run.
#[allow(dead_code)]
pub fn all_reduce(comm: &Comm, storage: &CudaStorage, device: &CudaDevice) -> Result<CudaStorage> {
    fn sum<T>(comm: &Comm, storage: &CudaStorage, device: &CudaDevice) -> Result<CudaStorage>
    where
        T: CudaDType
            + candle_core::cuda_backend::cudarc::driver::DeviceRepr
            + candle_core::cuda_backend::cudarc::nccl::safe::NcclType,
    {
        let src = storage.as_cuda_slice::<T>()?;
        // SAFETY: the reduction writes all of it.
        let mut dst = unsafe { device.alloc::<T>(src.len()) }?;
        comm.all_reduce(src, &mut dst, &ReduceOp::Sum)
            .map_err(|error| candle_core::Error::Msg(format!("{error:?}")))?;
        Ok(CudaStorage::wrap_cuda_slice(dst, device.clone()))
    }
    match &storage.slice {
        CudaStorageSlice::BF16(_) => sum::<half::bf16>(comm, storage, device),
        CudaStorageSlice::F16(_) => sum::<half::f16>(comm, storage, device),
        CudaStorageSlice::F32(_) => sum::<f32>(comm, storage, device),
        _ => bail!("all_reduce of another dtype"),
    }
}

#[allow(dead_code)]
pub fn join(rank: usize, ranks: usize, id: Id, device: &CudaDevice) -> Result<Comm> {
    Comm::from_rank(device.cuda_stream(), rank, ranks, id)
        .map_err(|error| candle_core::Error::Msg(format!("{error:?}")))
}
