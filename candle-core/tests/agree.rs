//! Test helpers that compare a device with the CPU: data, views of it, and exact comparisons.

use candle_core::{DType, Device, Result, Tensor};

pub use candle_conformance::{numbers, Tolerance};

/// The dtypes that every device supports.
pub const DTYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::U32,
    DType::U8,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// Whether a device runs fewer cases of a test than there are: a software adapter, or the emulator of CUDA, where each is a kernel to compile,
/// unless `CANDLE_EVERY_CASE=1` is set, as in nightly runs.
pub fn runs_fewer(device: &Device) -> bool {
    let emulated = device.is_cuda() && std::env::var_os("CANDLE_CUDA_EMULATOR_CACHE").is_some();
    (device.is_software_gpu() || emulated) && std::env::var_os("CANDLE_EVERY_CASE").is_none()
}

/// Returns whether the device computes in f64. A WebGPU device without f64 must report that.
pub fn has_f64(device: &Device) -> Result<bool> {
    let error = candle_conformance::f64_error(device)?;
    if let Some(text) = &error {
        assert!(
            text.contains("F64") && text.contains("SHADER_F64"),
            "{text}"
        );
    }
    Ok(error.is_none())
}

/// Returns [`DTYPES`], and f64 where the device has it.
pub fn dtypes(device: &Device) -> Result<Vec<DType>> {
    let f64 = has_f64(device)?.then_some(DType::F64);
    Ok(DTYPES.into_iter().chain(f64).collect())
}

/// Returns the float dtypes among [`dtypes`].
pub fn floats(device: &Device) -> Result<Vec<DType>> {
    Ok(dtypes(device)?
        .into_iter()
        .filter(DType::is_float)
        .collect())
}

/// A change of layout.
pub type View = fn(&Tensor) -> Result<Tensor>;

/// Views of tensors with three dimensions of at least 2 elements each.
pub const VIEWS: [(&str, View); 7] = [
    ("contiguous", |t| Ok(t.clone())),
    ("transposed", |t| t.t()),
    ("permuted", |t| t.permute((1, 0, 2))),
    ("narrowed rows", |t| t.narrow(0, 1, t.dim(0)? - 1)),
    ("narrowed columns", |t| t.narrow(2, 1, t.dim(2)? - 1)),
    ("broadcast", |t| {
        let (a, b, c) = t.dims3()?;
        t.narrow(1, 1, 1)?.broadcast_as((a, b, c))
    }),
    ("one element", |t| {
        t.narrow(0, 1, 1)?.narrow(1, 1, 1)?.narrow(2, 1, 1)
    }),
];

/// Checks shape, dtype and every element. NaN equals NaN; +0 differs from -0.
pub fn assert_same(got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    assert_agree(got, want, None, what)
}

/// Checks shape and dtype, and every element within `tolerance`. NaN equals NaN.
pub fn assert_close(got: &Tensor, want: &Tensor, tolerance: Tolerance, what: &str) -> Result<()> {
    assert_agree(got, want, Some(tolerance), what)
}

fn assert_agree(got: &Tensor, want: &Tensor, near: Option<Tolerance>, what: &str) -> Result<()> {
    let (got, want) = (got.to_device(&Device::Cpu)?, want.to_device(&Device::Cpu)?);
    let compared = candle_conformance::first_difference(&got, &want, near);
    if let Some(difference) = pollster::block_on(compared)? {
        panic!("{what}: {difference}");
    }
    Ok(())
}

/// Runs the same function on the device and on the CPU, and checks that all elements are equal.
pub fn assert_as_on_cpu(
    device: &Device,
    what: &str,
    f: impl Fn(&Device) -> Result<Tensor>,
) -> Result<()> {
    assert_same(&f(device)?, &f(&Device::Cpu)?, what)
}
