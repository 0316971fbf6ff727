//! Storages from outside: borrowed, accessed through a pointer, built from slices.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, ValidAsZeroBits,
};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice, WrapErr};
use candle_core::{bail, CudaStorage, DType, Device, Result, Shape, Storage, Tensor};

use crate::{expect, kernels};

pub fn check(device: &Device) -> Result<()> {
    pointers(device)?;
    literals(device)?;
    copies(device)?;
    wrong_dtype(device)
}

/// A tensor's elements as an address for a kernel: the memory must not be freed before the kernel has read it, so the guard is returned
/// too.
fn address_of<'a, T: CudaDType + DeviceRepr>(
    storage: &'a CudaStorage,
    offset: usize,
    stream: &'a CudaStream,
) -> Result<u64> {
    let slice = storage.as_cuda_slice::<T>()?;
    let (base, _guard) = slice.device_ptr(stream);
    Ok(base + (offset * std::mem::size_of::<T>()) as u64)
}

fn pointers(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 12., device)?
        .reshape((3, 4))?
        .narrow(0, 1, 2)?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        bail!("{:?} is not a CUDA device", x.device())
    };
    let cuda = storage.device();
    let stream = cuda.cuda_stream();
    let whole = address_of::<f32>(storage, 0, &stream)?;
    let part = address_of::<f32>(storage, layout.start_offset(), &stream)?;
    if part - whole != 16 {
        bail!("the second row is {} bytes after the first", part - whole)
    }
    let view = storage
        .as_cuda_slice::<f32>()?
        .slice(layout.start_offset()..);
    let (same, _guard) = view.device_ptr(view.stream());
    if same != part || cuda.clone_dtoh(&view)? != [4., 5., 6., 7., 8., 9., 10., 11.] {
        bail!("a view is at another place")
    }
    Ok(())
}

fn filled<T>(device: &Device, count: usize) -> Result<CudaSlice<T>>
where
    T: DeviceRepr + ValidAsZeroBits,
{
    device.as_cuda_device()?.alloc_zeros::<T>(count)
}

/// Storages built from slices, for each of the types.
fn literals(device: &Device) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    let storages = [
        CudaStorage {
            slice: CudaStorageSlice::F32(filled(device, 4)?),
            device: cuda.clone(),
        },
        CudaStorage {
            slice: CudaStorageSlice::BF16(filled(device, 4)?),
            device: cuda.clone(),
        },
        CudaStorage {
            slice: CudaStorageSlice::F16(filled(device, 4)?),
            device: cuda.clone(),
        },
        CudaStorage::wrap_cuda_slice(filled::<u32>(device, 4)?, cuda.clone()),
        CudaStorage::wrap_cuda_slice(filled::<i64>(device, 4)?, cuda.clone()),
        CudaStorage::wrap_cuda_slice(filled::<u8>(device, 4)?, cuda.clone()),
    ];
    let dtypes = [
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::U32,
        DType::I64,
        DType::U8,
    ];
    for (storage, dtype) in storages.into_iter().zip(dtypes) {
        let x = Tensor::from((Storage::Cuda(storage), Shape::from((2, 2))));
        if x.dtype() != dtype {
            bail!("{:?} instead of {dtype:?}", x.dtype())
        }
        expect(&x.to_dtype(DType::F32)?, &[0.; 4])?;
    }
    Ok(())
}

fn copies(device: &Device) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    let host = vec![1f32, 2., 3.];
    let mut first = cuda.clone_htod(&host)?;
    // SAFETY: written in the next line.
    let mut second = unsafe { cuda.alloc::<f32>(3) }?;
    cuda.memcpy_dtod(&first, &mut second)?;
    cuda.memcpy_htod(&[7f32, 8., 9.], &mut first)?;
    let mut back = vec![0f32; 3];
    cuda.memcpy_dtoh(&second, &mut back)?;
    if back != host || cuda.clone_dtoh(&first)? != [7., 8., 9.] {
        bail!("copies mix: {back:?}")
    }
    // Written only through the address, as a kernel from a static library would.
    let mut storage = CudaStorage::wrap_cuda_slice(second, cuda.clone());
    let stream = cuda.cuda_stream();
    {
        let slice = storage.as_cuda_slice_mut::<f32>()?;
        let (address, _guard) = slice.device_ptr_mut(&stream);
        kernels::fill(cuda, address, 0.5, 3)?;
    }
    let there = storage.transfer_to_device(cuda)?;
    let storage = Storage::Cuda(there);
    expect(&Tensor::from((storage, Shape::from(3))), &[0.5; 3])
}

/// Another type than the storage's is an error with both.
fn wrong_dtype(device: &Device) -> Result<()> {
    let x = Tensor::zeros(2, DType::F32, device)?;
    let (storage, _) = x.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        bail!("no CUDA device")
    };
    match storage.as_cuda_slice::<u32>() {
        Err(error) if error.to_string().contains("F32") => Ok(()),
        Err(error) => bail!("{error} does not name the dtype"),
        Ok(_) => bail!("f32 was taken for u32"),
    }
}

/// A second stream in addition to the device's: events order them.
pub fn second_stream(device: &Device) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    let main = cuda.cuda_stream();
    let side = main.context().new_stream().w()?;
    let x = Tensor::new(&[1f32, 2., 3., 4.], device)?;
    let (storage, _) = x.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        bail!("no CUDA device")
    };
    let mut copy = filled::<f32>(device, 4)?;
    let written = main.record_event(None).w()?;
    side.wait(&written).w()?;
    side.memcpy_dtod(storage.as_cuda_slice::<f32>()?, &mut copy)
        .w()?;
    let copied = side.record_event(None).w()?;
    main.wait(&copied).w()?;
    let copy = CudaStorage::wrap_cuda_slice(copy, cuda.clone());
    let copy = Tensor::from((Storage::Cuda(copy), Shape::from(4)));
    expect(&(copy + x.clone())?, &[2., 4., 6., 8.])?;

    // Another device of the same card, with another stream: tensors are copied between them.
    let other = Device::new_cuda_with_stream(0)?;
    if other.same_device(device) {
        bail!("a device with a separate stream is the same device")
    }
    expect(&x.to_device(&other)?.to_device(device)?, &[1., 2., 3., 4.])
}
