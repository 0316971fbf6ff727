//! A step that is recorded once and run many times.

use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::{CudaFunc, SlicePtrOrNull, WrapErr};
use candle_core::{bail, CudaDevice, DType, Device, Result};

use crate::kernels;

/// x = the transpose of x as two rows of three, plus one. Layout and `note` are copied from the host: the recording must not read host
/// memory later.
fn step(
    cuda: &CudaDevice,
    func: &CudaFunc,
    x: &mut CudaSlice<f32>,
    note: &mut CudaSlice<u32>,
) -> Result<()> {
    let info = SlicePtrOrNull::params_from_vec(cuda, vec![3, 2, 1, 3])?;
    cuda.memcpy_htod(&vec![7u32, 8], note)?;
    // SAFETY: the kernel writes all of it.
    let mut out = unsafe { cuda.alloc::<f32>(6) }?;
    let (rank, by, add, count) = (2usize, 1f32, 1f32, 6usize);
    let mut builder = func.builder();
    builder.arg(&mut out).arg(&*x);
    info.builder_arg(&mut builder);
    builder.arg(&rank).arg(&by).arg(&add).arg(&count);
    // SAFETY: the parameters are the kernel's.
    unsafe { builder.launch(LaunchConfig::for_num_elems(6)) }.w()?;
    cuda.memcpy_dtod(&out, x)
}

fn on_host(x: [f32; 6]) -> [f32; 6] {
    std::array::from_fn(|i| x[i / 2 + i % 2 * 3] + 1.)
}

pub fn check(device: &Device) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    let stream = cuda.cuda_stream();
    let func = kernels::of(cuda, "scale", DType::F32)?;
    let mut want = [1f32, 2., 3., 4., 5., 6.];
    let mut x = cuda.clone_htod(&want)?;
    let mut note = cuda.alloc_zeros::<u32>(2)?;

    let guard = cuda.enable_cuda_graph_htod_cache();
    step(cuda, &func, &mut x, &mut note)?;
    want = on_host(want);
    device.synchronize()?;
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .w()?;
    let captures = stream.capture_status().w()?;
    let recorded = step(cuda, &func, &mut x, &mut note);
    let (read, new) = (cuda.clone_dtoh(&x), cuda.clone_htod(&[1u8, 2, 3]));
    let graph = stream
        .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .w()?;
    drop(guard);
    recorded?;
    if captures != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        bail!("{captures:?}")
    }
    if read.is_ok() || new.is_ok() {
        bail!("a read, or a copy that nobody made before, was captured")
    }
    let Some(graph) = graph else {
        bail!("nothing was captured")
    };
    // The host's data at that time is freed or overwritten.
    cuda.memcpy_htod(&[0u32, 0], &mut note)?;
    for _ in 0..3 {
        graph.launch().w()?;
        want = on_host(want);
    }
    let (got, note) = (cuda.clone_dtoh(&x)?, cuda.clone_dtoh(&note)?);
    if got != want || note != [7, 8] {
        bail!("{got:?} instead of {want:?}; {note:?}")
    }
    Ok(())
}
