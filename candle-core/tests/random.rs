//! Random numbers on every device: their range and moments and, on GPUs, the exact sequence.

use candle_core::{test_device, DType, Device, Result, Tensor};

#[cfg(any(feature = "cuda", feature = "webgpu"))]
use crate::agree::has_f64;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
}

fn mean_and_std(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let square = |&v: &f32| (f64::from(v) - mean).powi(2);
    (mean, (values.iter().map(square).sum::<f64>() / n).sqrt())
}

fn uniform(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        let like = Tensor::zeros((50, 1001), dtype, device)?;
        let values = values(&like.rand_like(-1., 3.)?)?;
        assert!(values.iter().all(|v| (-1. ..=3.).contains(v)));
        let (mean, std) = mean_and_std(&values);
        // The deviation of a uniform distribution is its width over the root of 12.
        assert!((mean - 1.).abs() < 0.03 && (std - 4. / 12f64.sqrt()).abs() < 0.03);
        assert!(values.iter().any(|&v| v < -0.99) && values.iter().any(|&v| v > 2.95));
    }
    Ok(())
}
test_device!(uniform);

fn normal(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        let like = Tensor::zeros((50, 1001), dtype, device)?;
        let values = values(&like.randn_like(2., 0.5)?)?;
        assert!(values.iter().all(|v| v.is_finite()));
        let (mean, std) = mean_and_std(&values);
        assert!((mean - 2.).abs() < 0.02 && (std - 0.5).abs() < 0.02);
        let within = values.iter().filter(|&&v| (v - 2.).abs() < 0.5).count();
        assert!((within as f64 / values.len() as f64 - 0.6827).abs() < 0.015);
    }
    Ok(())
}
test_device!(normal);

fn shapes_and_limits(device: &Device) -> Result<()> {
    for len in [0usize, 1, 3, 255, 256, 257] {
        let t = Tensor::rand(0f32, 1., len, device)?;
        assert_eq!(values(&t)?.len(), len);
    }
    assert_eq!(values(&Tensor::rand(2f32, 2., 3, device)?)?, [2., 2., 2.]);
    assert_eq!(values(&Tensor::randn(2f32, 0., 3, device)?)?, [2., 2., 2.]);
    assert!(Tensor::rand(1f32, 0., 3, device).is_err());
    assert!(Tensor::rand(f32::NAN, 0., 3, device).is_err());
    assert!(Tensor::randn(0f32, -1., 3, device).is_err());
    assert!(Tensor::zeros(3, DType::U32, device)?
        .rand_like(0., 9.)
        .is_err());
    Ok(())
}
test_device!(shapes_and_limits);

/// Consecutive draws differ.
fn draws_differ(device: &Device) -> Result<()> {
    let (a, b) = (
        Tensor::rand(0f32, 1., 9, device)?,
        Tensor::rand(0f32, 1., 9, device)?,
    );
    assert_ne!(values(&a)?, values(&b)?);
    Ok(())
}
test_device!(draws_differ);

/// Defines a test for each GPU backend; they share one sequence.
#[cfg(any(feature = "cuda", feature = "webgpu"))]
macro_rules! test_gpu {
    ($name:ident) => {
        mod $name {
            #[allow(unused_imports, reason = "of a build without a GPU's feature")]
            use super::*;

            #[cfg(feature = "cuda")]
            #[test]
            fn cuda() -> Result<()> {
                // A separate device, as other tests draw numbers too.
                super::$name(&Device::new_cuda_with_stream(0)?)
            }

            #[cfg(feature = "webgpu")]
            #[test]
            fn webgpu() -> Result<()> {
                super::$name(&Device::new_webgpu(0)?)
            }
        }
    };
}

/// The upper bound is excluded, also after rounding to a dtype with few digits.
#[cfg(any(feature = "cuda", feature = "webgpu"))]
fn the_upper_end_is_left_out(device: &Device) -> Result<()> {
    for dtype in FLOATS {
        let like = Tensor::zeros(100_000, dtype, device)?;
        for (lo, up) in [(0., 1.), (1., 2.), (-1., 0.), (256., 260.)] {
            let values = values(&like.rand_like(lo, up)?)?;
            let inside = |v: &f32| (lo as f32..up as f32).contains(v);
            assert!(values.iter().all(inside), "{dtype:?} {lo} {up}");
        }
    }
    Ok(())
}
#[cfg(any(feature = "cuda", feature = "webgpu"))]
test_gpu!(the_upper_end_is_left_out);

/// The first word of Philox 4x32-10 for counter and key 0 is 6627e8d5 (Random123's known answers). The numbers for the other seed come from
/// a short Python program, which reproduces Random123's known answers too.
#[cfg(any(feature = "cuda", feature = "webgpu"))]
fn follows_philox(device: &Device) -> Result<()> {
    let unit = |n: u32| n as f32 / (1 << 24) as f32;
    device.set_seed(0)?;
    assert_eq!(
        values(&Tensor::rand(0f32, 1., 1, device)?)?,
        [unit(0x6627e8)]
    );
    let seed = 0x0123_4567_89ab_cdef;
    let expected = [12079138, 11389460, 16240169, 11284600, 10496560, 5727707].map(unit);
    device.set_seed(seed)?;
    assert_eq!(device.get_current_seed()?, seed);
    assert_eq!(values(&Tensor::rand(0f32, 1., 6, device)?)?, expected);
    // Smaller draws give the same sequence.
    device.set_seed(seed)?;
    let mut pieces = values(&Tensor::rand(0f32, 1., 1, device)?)?;
    pieces.extend(values(&Tensor::rand(0f32, 1., (1, 5), device)?)?);
    assert_eq!(pieces, expected);
    device.set_seed(seed)?;
    let normal = values(&Tensor::randn(0f32, 1., 6, device)?)?;
    let expected = [
        -0.110069, 0.3810399, 0.2546997, 0.8905808, -0.4162359, -0.5946814,
    ];
    // Logarithm and cosine consist of sums and products, which every GPU computes to within one ULP.
    for (got, want) in normal.iter().zip(expected) {
        assert!((got - want).abs() < 2e-6, "{got} {want}");
    }
    if !has_f64(device)? {
        return Ok(());
    }
    // f64 takes 53 bits of two words.
    device.set_seed(seed)?;
    let expected = [0.7199727377346363, 0.678864742782034, 0.9679895364661081];
    assert_eq!(
        Tensor::rand(0f64, 1., 3, device)?.to_vec1::<f64>()?,
        expected
    );
    device.set_seed(seed)?;
    let normal = Tensor::randn(0f64, 1., 3, device)?.to_vec1::<f64>()?;
    let expected = [
        -0.11006914084459113,
        0.38104010648630754,
        0.25469976461689936,
    ];
    for (got, want) in normal.iter().zip(expected) {
        assert!((got - want).abs() < 1e-14, "{got} {want}");
    }
    Ok(())
}
#[cfg(any(feature = "cuda", feature = "webgpu"))]
test_gpu!(follows_philox);
