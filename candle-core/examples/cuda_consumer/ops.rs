//! The program's ops: one body for all dtypes, through candle's own traits.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, DeviceRepr, LaunchConfig, PushKernelArg, ValidAsZeroBits,
};
use candle_core::cuda_backend::{
    kernel_name, Map1, Map1Any, Map2, Map2InPlace, SlicePtrOrNull, WrapErr, S,
};
use candle_core::scalar::Scalar;
use candle_core::{
    bail, builder_arg, CpuStorage, CudaDevice, CudaStorage, CustomOp1, CustomOp2, DType, Device,
    Layout, Result, Shape, Tensor, WithDType,
};

use crate::{expect, kernels};

/// x * by + add.
struct Scale {
    by: f64,
    add: f64,
}

impl Map1 for Scale {
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        src: &CudaSlice<T>,
        dev: &CudaDevice,
        layout: &Layout,
    ) -> Result<CudaSlice<T>> {
        let count = layout.shape().elem_count();
        let info = SlicePtrOrNull::params_from_layout(dev, layout)?;
        let src = &src.slice(layout.start_offset()..);
        let func = kernels::of(dev, "scale", T::DTYPE)?;
        // SAFETY: the kernel writes all of it.
        let out = unsafe { dev.alloc::<T>(count) }?;
        let add: Scalar = T::from_f64(self.add).to_scalar();
        let mut builder = func.builder();
        builder.arg(&out);
        builder.arg(src);
        info.builder_arg(&mut builder);
        builder_arg!(builder, layout.dims().len());
        builder_arg!(builder, T::from_f64(self.by));
        add.builder_arg(&mut builder);
        builder_arg!(builder, count);
        // SAFETY: the parameters are the kernel's.
        unsafe { builder.launch(LaunchConfig::for_num_elems(count as u32)) }.w()?;
        Ok(out)
    }
}

impl CustomOp1 for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("scale is for CUDA")
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let device = storage.device();
        let slice = self.map(&storage.slice, device, layout)?;
        let device = device.clone();
        Ok((CudaStorage { slice, device }, layout.shape().clone()))
    }
}

/// a - 2 b, of contiguous operands.
struct MinusTwice;

impl Map2 for MinusTwice {
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        a: &CudaSlice<T>,
        a_l: &Layout,
        b: &CudaSlice<T>,
        b_l: &Layout,
        dev: &CudaDevice,
    ) -> Result<CudaSlice<T>> {
        let (Some((a_from, a_to)), Some((b_from, b_to))) =
            (a_l.contiguous_offsets(), b_l.contiguous_offsets())
        else {
            bail!("minus_twice takes contiguous operands")
        };
        let count = a_l.shape().elem_count();
        let func = kernels::of(dev, "minus_twice", T::DTYPE)?;
        let out = dev.alloc_zeros::<T>(count)?;
        let (a, b) = (a.slice(a_from..a_to), b.slice(b_from..b_to));
        let mut builder = func.builder();
        builder.arg(&out).arg(&a).arg(&b).arg(&count);
        // SAFETY: the parameters are the kernel's.
        unsafe { builder.launch(LaunchConfig::for_num_elems(count as u32)) }.w()?;
        Ok(out)
    }
}

impl CustomOp2 for MinusTwice {
    fn name(&self) -> &'static str {
        "minus_twice"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        bail!("minus_twice is for CUDA")
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        a_l: &Layout,
        b: &CudaStorage,
        b_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let device = a.device().clone();
        let slice = self.map(&a.slice, a_l, &b.slice, b_l, &device)?;
        Ok((CudaStorage { slice, device }, a_l.shape().clone()))
    }
}

/// Copies the source over the start of the destination.
struct Overwrite;

impl Map2InPlace for Overwrite {
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits>(
        &self,
        dst: &mut CudaSlice<T>,
        _: &Layout,
        src: &CudaSlice<T>,
        _: &Layout,
        dev: &CudaDevice,
    ) -> Result<()> {
        let mut start = dst.slice_mut(..src.len());
        dev.memcpy_dtod(src, &mut start)
    }
}

/// The name of upstream's kernel for a dtype, and a copy.
struct Named(std::cell::RefCell<String>);

impl Map1Any for Named {
    fn f<T: DeviceRepr + WithDType + ValidAsZeroBits, W: Fn(CudaSlice<T>) -> S>(
        &self,
        src: &CudaSlice<T>,
        _: &CudaDevice,
        _: &Layout,
        wrap: W,
    ) -> Result<S> {
        *self.0.borrow_mut() = kernel_name::<T>("ucopy");
        Ok(wrap(src.try_clone().w()?))
    }
}

pub fn check(device: &Device) -> Result<()> {
    let x = Tensor::arange(0f32, 6., device)?.reshape((2, 3))?;
    let scale = Scale { by: 10., add: 1. };
    expect(&x.apply_op1_no_bwd(&scale)?, &[1., 11., 21., 31., 41., 51.])?;
    expect(
        &x.t()?.apply_op1_no_bwd(&scale)?,
        &[1., 31., 11., 41., 21., 51.],
    )?;
    let longs = x.to_dtype(DType::I64)?.apply_op1_no_bwd(&scale)?;
    expect(&longs.to_dtype(DType::F32)?, &[1., 11., 21., 31., 41., 51.])?;
    let ones = x.ones_like()?;
    expect(
        &ones.apply_op2_no_bwd(&x, &MinusTwice)?,
        &[1., -1., -3., -5., -7., -9.],
    )?;
    // Different dtypes are an error that names them.
    match ones.apply_op2_no_bwd(&x.to_dtype(DType::U32)?, &MinusTwice) {
        Err(error) if error.to_string().contains("U32") => {}
        other => bail!("f32 with u32: {other:?}"),
    }

    let cuda = device.as_cuda_device()?;
    let mut dst = S::F32(cuda.clone_htod(&[1f32, 2., 3.])?);
    let src = S::F32(cuda.clone_htod(&[9f32, 8.])?);
    let (long, short) = (Layout::contiguous(3), Layout::contiguous(2));
    Overwrite.map(&mut dst, &long, &src, &short, cuda)?;
    let named = Named(Default::default());
    let S::F32(copy) = named.map(&dst, cuda, &long)? else {
        bail!("the copy has another dtype")
    };
    if cuda.clone_dtoh(&copy)? != [9., 8., 3.] || *named.0.borrow() != "ucopy_f32" {
        bail!("{:?} {:?}", cuda.clone_dtoh(&copy)?, named.0)
    }
    Ok(())
}
