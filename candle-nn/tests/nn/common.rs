//! Inputs in every layout, and comparison within a tolerance.

use candle_core::{DType, Device, Result, Tensor};

/// Dtypes with the tolerance of an op that computes in f32 and rounds once: twice the unit roundoff of f16 and bf16; for f32
/// and f64 what sums over some thousand terms and a GPU's `exp` leave. See [`assert_close`].
pub fn dtypes(dev: &Device) -> Vec<(DType, f64)> {
    let mut dtypes = vec![(DType::F32, 1e-5), (DType::F16, 1e-3), (DType::BF16, 8e-3)];
    // WGSL has no f64 on the adapters at hand.
    if dev.is_cpu() {
        dtypes.push((DType::F64, 1e-12));
    }
    dtypes
}

candle_core::with_webgpu! {
    /// A device on which a binding reaches 4 KiB.
    pub fn small_bindings() -> Result<Device> {
        let options = candle_core::webgpu_backend::Options {
            max_binding: Some(4 << 10),
            ..Default::default()
        };
        let device = candle_core::WebGpuDevice::with_options(0, &options)?;
        Ok(Device::WebGpu(device))
    }
}

/// Whether a kernel takes a third of a second to compile: on a software adapter and on the emulator of CUDA.
pub fn compiles_slowly(dev: &Device) -> bool {
    dev.is_software_gpu()
        || dev.is_cuda() && std::env::var_os("CANDLE_CUDA_EMULATOR_CACHE").is_some()
}

/// One case in this many runs if compiling is slow: `n`, or in the default run the first prime number from `4 n` on; otherwise `quick`.
pub fn every(dev: &Device, n: usize, quick: usize) -> usize {
    match (compiles_slowly(dev), std::env::var_os("CANDLE_EVERY_CASE")) {
        (false, _) => quick,
        (true, Some(_)) => n,
        (true, None) => prime_from(4 * n),
    }
}

/// Whether a device runs fewer cases of a test than there are: by day where compiling is slow.
pub fn runs_fewer(dev: &Device) -> bool {
    compiles_slowly(dev) && std::env::var_os("CANDLE_EVERY_CASE").is_none()
}

/// A prime number is coprime to the lengths of most lists.
fn prime_from(n: usize) -> usize {
    let is_prime = |n: &usize| *n > 1 && (2..*n).all(|by| !n.is_multiple_of(by));
    (n..).find(is_prime).unwrap_or(n)
}

/// The cases that a device runs of a test in which nearly each is a kernel to compile: all of them on the CPU and on a graphics card. Where
/// compiling is slow, every `n`-th at night (`CANDLE_EVERY_CASE=1`), and by day every one of [`every`]. Both are coprime to the lengths of the
/// test's lists, so that each entry of a list meets others of the other lists.
pub struct Cases {
    every: usize,
    count: usize,
}

impl Cases {
    pub fn new(dev: &Device, n: usize) -> Self {
        let every = every(dev, n, 1);
        Self { every, count: 0 }
    }

    /// Counts one more, and says whether it is run.
    pub fn takes_next(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(self.every)
    }
}

/// Converts `t` to the dtype in which the reference of an op is computed.
pub fn reference(t: &Tensor) -> Result<Tensor> {
    let dtype = match t.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    t.to_device(&Device::Cpu)?.to_dtype(dtype)
}

/// Numbers between -2 and 2 that look random and are the same each time.
pub fn data(dims: &[usize], dtype: DType, dev: &Device) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    let mut state = 12345u32 + count as u32;
    let values: Vec<f32> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.
        })
        .collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(dev)
}

/// Tensors of shape `dims` in different layouts, with a name for each.
pub fn layouts(dims: &[usize], dtype: DType, dev: &Device) -> Result<Vec<(&'static str, Tensor)>> {
    let mut all = vec![("contiguous", data(dims, dtype, dev)?)];
    let last = dims.len() - 1;

    let mut wider = dims.to_vec();
    wider[0] += 2;
    wider[last] += 3;
    let mut narrowed = data(&wider, dtype, dev)?.narrow(last, 2, dims[last])?;
    if last > 0 {
        narrowed = narrowed.narrow(0, 1, dims[0])?;
    }
    all.push(("narrowed with an offset", narrowed));

    let mut doubled = dims.to_vec();
    doubled.push(2);
    let every_second = data(&doubled, dtype, dev)?
        .narrow(dims.len(), 1, 1)?
        .squeeze(dims.len())?;
    all.push(("every second element", every_second));

    if dims.len() >= 2 {
        for (name, a, b) in [
            ("transposed at the end", last - 1, last),
            ("transposed at the front", 0, 1),
        ] {
            let mut swapped = dims.to_vec();
            swapped.swap(a, b);
            all.push((name, data(&swapped, dtype, dev)?.transpose(a, b)?));
        }
        let mut single = dims.to_vec();
        single[0] = 1;
        let broadcast = data(&single, dtype, dev)?.broadcast_as(dims)?;
        all.push(("broadcast", broadcast));
    }
    if dims.len() == 4 {
        let swapped = [dims[0], dims[2], dims[1], dims[3]];
        let heads = data(&swapped, dtype, dev)?.transpose(1, 2)?;
        all.push(("transposed in the middle", heads));
    }
    Ok(all)
}

/// Asserts equal shapes and, for each element, a difference of at most `tolerance * (1 + |expected|)`, or NaN in both.
#[track_caller]
pub fn assert_close(case: &str, got: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(got.dims(), expected.dims(), "{case}: shapes");
    let (got, expected) = (to_f64(got), to_f64(expected));
    for (i, (&g, &e)) in got.iter().zip(&expected).enumerate() {
        let close =
            (g - e).abs() <= tolerance * (1. + e.abs()) || g == e || g.is_nan() && e.is_nan();
        assert!(
            close,
            "{case}: element {i} is {g}, expected {e} within {tolerance}"
        );
    }
}

/// [`assert_close`] against values written into the test.
#[track_caller]
pub fn assert_values(case: &str, got: &Tensor, expected: &[f64], tolerance: f64) {
    let expected = Tensor::from_slice(expected, got.dims(), &Device::Cpu).unwrap();
    assert_close(case, got, &expected, tolerance);
}

fn to_f64(t: &Tensor) -> Vec<f64> {
    let read = || {
        t.to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1()
    };
    read().unwrap()
}

/// Asserts that the call failed with one line that has all of `parts` in it.
#[track_caller]
pub fn assert_fails<T>(result: Result<T>, parts: &[&str]) {
    let message = match result {
        Ok(_) => panic!("expected an error with {parts:?}"),
        Err(err) => err.to_string(),
    };
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

candle_core::with_webgpu! {
    /// The WebGPU device without some of its adapter's optional features.
    pub fn webgpu_without(features: &str) -> Result<candle_core::WebGpuDevice> {
        let options = candle_core::webgpu_backend::Options {
            without: features.to_string(),
            ..Default::default()
        };
        candle_core::WebGpuDevice::with_options(0, &options)
    }
}
