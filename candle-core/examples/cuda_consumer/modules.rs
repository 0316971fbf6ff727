//! Kernels from PTX, and the search for upstream's kernels to load in advance.

use candle_core::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::{kernels, CudaError, WrapErr};
use candle_core::{bail, Device, Error, Result};

/// x[i] = x[i] + 1, for one block of threads.
const PTX: &str = "
.version 6.4
.target sm_75
.address_size 64

.visible .entry add_one(.param .u64 x) {
    .reg .b64 %a, %i;
    .reg .b32 %t;
    .reg .f32 %v;
    ld.param.u64 %a, [x];
    cvta.to.global.u64 %a, %a;
    mov.u32 %t, %tid.x;
    mul.wide.u32 %i, %t, 4;
    add.s64 %a, %a, %i;
    ld.global.f32 %v, [%a];
    add.f32 %v, %v, 0f3F800000;
    st.global.f32 [%a], %v;
    ret;
}
";

pub fn check(device: &Device) -> Result<()> {
    preload(device)?;
    missing(device)?;
    // The emulator that replaces a card in tests cannot run PTX.
    let cuda = device.as_cuda_device()?;
    let name = cuda.cuda_stream().context().name().w()?;
    if name.to_lowercase().contains("emulat") {
        println!("{name}: no PTX");
        return Ok(());
    }
    ptx(device)
}

fn ptx(device: &Device) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    let mut x = cuda.clone_htod(&[1f32, 2., 3.])?;
    for _ in 0..2 {
        let func = cuda.get_or_load_custom_func("add_one", "own", PTX)?;
        let mut builder = func.builder();
        builder.arg(&mut x);
        let one_block = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (3, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the kernel changes three numbers.
        unsafe { builder.launch(one_block) }.w()?;
    }
    if cuda.clone_dtoh(&x)? != [3., 4., 5.] {
        bail!("{:?}", cuda.clone_dtoh(&x)?)
    }
    let function = cuda.get_or_load_custom_func("add_one", "own", "")?;
    let _raw = function.into_cuda_function();
    for (kernel, module, text) in [
        ("add_two", "own", PTX),
        ("add_one", "damaged", ".version x"),
    ] {
        match cuda.get_or_load_custom_func(kernel, module, text) {
            Err(error) if error.to_string().contains(module) => {}
            Err(error) => bail!("{error} does not name the module {module}"),
            Ok(_) => bail!("{kernel} in {module}"),
        }
    }
    Ok(())
}

/// Loads every kernel whose name is in a module's PTX, so that no token waits for it.
fn preload(device: &Device) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    let modules = [
        &kernels::AFFINE,
        &kernels::BINARY,
        &kernels::CAST,
        &kernels::UNARY,
    ];
    for module in modules {
        let names = module
            .ptx()
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".visible .entry "))
            .filter_map(|rest| rest.split('(').next());
        for name in names {
            cuda.get_or_load_func(name, module)?;
        }
    }
    Ok(())
}

/// One of upstream's kernels, by name: the error names the replacement.
fn missing(device: &Device) -> Result<()> {
    let error = match device
        .as_cuda_device()?
        .get_or_load_func("affine_f32", &kernels::AFFINE)
    {
        Err(error) => error,
        Ok(_) => return Ok(()),
    };
    let text = error.to_string();
    let inner = match &error {
        Error::WithBacktrace { inner, .. } => inner,
        other => other,
    };
    let is_missing = match inner {
        Error::Cuda(cause) => matches!(
            cause.downcast_ref::<CudaError>(),
            Some(CudaError::MissingKernel { .. })
        ),
        _ => false,
    };
    if !is_missing || !text.contains("affine_f32") || !text.contains("compile") {
        bail!("the error for a kernel that is not there: {text}")
    }
    Ok(())
}
