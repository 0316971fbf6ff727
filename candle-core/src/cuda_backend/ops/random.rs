//! Random numbers. The same seed gives the same sequence on every card, which is also that of the WebGPU backend.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::{CudaDevice, CudaStorage};
use crate::{DType, Result};

/// `len` numbers of a distribution with these parameters.
fn random(
    device: &CudaDevice,
    len: usize,
    dtype: DType,
    op: &'static str,
    normal: bool,
    params: [f64; 3],
) -> Result<CudaStorage> {
    // A recording would draw the same numbers each time.
    device.refuse_while_recording("random number generation")?;
    let dst = device.new_storage(len, dtype, op)?;
    let kernel = Kernel::new(source!("functions", "philox", => "random"))
        .define("T", device.c_type(dtype, op)?)
        .define("NORMAL", normal);
    let (seed, first) = device.draw(len);
    let args = Args::new().storage(&dst).size(len).value(seed).value(first);
    let args = params.into_iter().fold(args, |args, value| match dtype {
        DType::F64 => args.value(value),
        _ => args.value(value as f32),
    });
    device.launch(&kernel, Grid::of_threads(len), args)?;
    Ok(dst)
}

fn check_float(device: &CudaDevice, dtype: DType, op: &'static str) -> Result<()> {
    device.c_type(dtype, op)?;
    if dtype.is_int() {
        Err(device.unsupported(op, dtype, "use a float dtype and convert"))
    } else {
        Ok(())
    }
}

/// The nearest number to `value` in a dtype.
fn nearest(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::BF16 => bf16::from_f64(value).to_f64(),
        DType::F8E4M3 => F8E4M3::from_f64(value).to_f64(),
        DType::F64 => value,
        _ => f64::from(value as f32),
    }
}

/// The next smaller number in a dtype than `value`, which is one too.
fn before(value: f64, dtype: DType) -> f64 {
    // The bit patterns of a dtype's positive numbers ascend, those of its negative ones descend.
    let step = |bits: u16, sign: u16| match bits {
        0 => sign | 1,
        bits if bits == sign => sign | 1,
        bits if bits < sign => bits - 1,
        bits => bits + 1,
    };
    match dtype {
        DType::F16 => f16::from_bits(step(f16::from_f64(value).to_bits(), 1 << 15)).to_f64(),
        DType::BF16 => bf16::from_bits(step(bf16::from_f64(value).to_bits(), 1 << 15)).to_f64(),
        DType::F8E4M3 => {
            let bits = u16::from(F8E4M3::from_f64(value).to_bits());
            F8E4M3::from_bits(step(bits, 1 << 7) as u8).to_f64()
        }
        DType::F64 => value.next_down(),
        _ => f64::from((value as f32).next_down()),
    }
}

/// Uniform numbers in `[lo, up)`, or all `lo` if both are equal; both are rounded to `dtype`.
pub(in crate::cuda_backend) fn uniform(
    device: &CudaDevice,
    len: usize,
    dtype: DType,
    lo: f64,
    up: f64,
) -> Result<CudaStorage> {
    const OP: &str = "rand_uniform";
    check_float(device, dtype, OP)?;
    let (first, end) = (nearest(lo, dtype), nearest(up, dtype));
    let width = end - first;
    let fits = dtype == DType::F64 || (width as f32).is_finite();
    if !(width >= 0.0 && width.is_finite() && fits) {
        crate::bail!(
            "{OP}: needs finite bounds with lo <= up and up - lo within {dtype:?}, got lo = {lo} and up = {up}"
        )
    }
    let last = if width == 0.0 {
        first
    } else {
        before(end, dtype)
    };
    random(device, len, dtype, OP, false, [first, last, width])
}

/// Numbers with this mean and standard deviation.
pub(in crate::cuda_backend) fn normal(
    device: &CudaDevice,
    len: usize,
    dtype: DType,
    mean: f64,
    std: f64,
) -> Result<CudaStorage> {
    const OP: &str = "rand_normal";
    check_float(device, dtype, OP)?;
    if !(mean.is_finite() && std.is_finite() && std >= 0.0) {
        crate::bail!(
            "{OP}: needs a finite mean and a finite std of at least 0, got mean = {mean} and std = {std}"
        )
    }
    random(device, len, dtype, OP, true, [mean, std, 0.0])
}

#[cfg(test)]
mod tests {
    use super::{before, nearest};
    use crate::DType;

    #[test]
    fn the_number_before_is_the_next_smaller_one() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3] {
            for value in [1.0, 0.1, -3.0, 0.0, -0.0, 1e-5, 300.0] {
                let value = nearest(value, dtype);
                let smaller = before(value, dtype);
                assert!(smaller < value);
                let nearest = nearest((smaller + value) / 2.0, dtype);
                assert!(nearest == smaller || nearest == value, "{dtype:?} {value}");
            }
        }
    }
}
