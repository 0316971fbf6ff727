//! Helpers for tests: one body for every device, and values rounded to compare.

use crate::{DType, Result, Tensor};

/// Runs one test body, `fn name(device: &Device) -> Result<()>`, on every device of this build.
///
/// `test_device!(name)` generates a module `name` with the test `cpu`, with `webgpu` if `candle-core` has that feature, and with `cuda` and
/// `metal` by the features of the tested crate (`metal` outside of Apple's systems with `CANDLE_METAL_EMULATED=1`). The form with four
/// names, as in upstream, names the tests itself; the one on WebGPU is `name::webgpu`. Each test opens another device, so that none waits
/// for another's work or receives its faults. If the features request a device that the machine lacks, its test fails: a skipped test would
/// look like a passed one.
///
/// ```
/// use candle_core::{test_device, Device, Result, Tensor};
///
/// fn doubling(device: &Device) -> Result<()> {
///     let t = (Tensor::new(&[1f32, 2.], device)? * 2.)?;
///     assert_eq!(t.to_vec1::<f32>()?, [2., 4.]);
///     Ok(())
/// }
///
/// test_device!(doubling);
/// # doubling(&Device::Cpu).unwrap();
/// ```
#[macro_export]
macro_rules! test_device {
    ($fn_name: ident) => {
        mod $fn_name {
            $crate::test_device!(@test cpu, super::$fn_name, $crate::Device::Cpu);

            #[cfg(feature = "cuda")]
            $crate::test_device!(@test cuda, super::$fn_name, $crate::Device::new_cuda_with_stream(0)?);

            #[cfg(feature = "metal")]
            $crate::test_device!(@test metal, super::$fn_name, $crate::Device::new_metal(0)?);

            $crate::with_webgpu! {
                $crate::test_device!(@test webgpu, super::$fn_name, $crate::Device::new_webgpu(0)?);
            }
        }
    };
    ($fn_name: ident, $test_cpu: ident, $test_cuda: ident, $test_metal: ident) => {
        $crate::test_device!(@test $test_cpu, $fn_name, $crate::Device::Cpu);

        #[cfg(feature = "cuda")]
        $crate::test_device!(@test $test_cuda, $fn_name, $crate::Device::new_cuda_with_stream(0)?);

        #[cfg(feature = "metal")]
        $crate::test_device!(@test $test_metal, $fn_name, $crate::Device::new_metal(0)?);

        $crate::with_webgpu! {
            mod $fn_name {
                $crate::test_device!(@test webgpu, super::$fn_name, $crate::Device::new_webgpu(0)?);
            }
        }
    };
    (@test $test: ident, $body: path, $device: expr) => {
        #[test]
        fn $test() -> ::std::result::Result<(), impl ::std::fmt::Debug> {
            // Bodies may return any error: the device's becomes a panic with the same text.
            let device = || -> $crate::Result<$crate::Device> { Ok($device) };
            let device = device().expect("this build has the device's feature, but the machine lacks the device");
            $body(&device)
        }
    };
}

/// Checks that shapes and elements are equal.
pub fn assert_tensor_eq(t1: &Tensor, t2: &Tensor) -> Result<()> {
    assert_eq!(t1.shape(), t2.shape());
    assert_eq!(t1.dtype(), t2.dtype());
    let equal = t1.flatten_all()?.eq(&t2.flatten_all()?)?.to_vec1::<u8>()?;
    let differing = equal.iter().position(|&equal| equal == 0);
    assert_eq!(differing, None, "elements differ:\n{t1}\n{t2}");
    Ok(())
}

/// The tensor as f32.
fn as_f32(t: &Tensor) -> Result<Tensor> {
    t.to_dtype(DType::F32)
}

fn round(x: f32, digits: i32) -> f32 {
    let scale = 10f32.powi(digits);
    (x * scale).round() / scale
}

/// A scalar, rounded to `digits` after the point.
pub fn to_vec0_round(t: &Tensor, digits: i32) -> Result<f32> {
    Ok(round(as_f32(t)?.to_vec0()?, digits))
}

/// A vector's elements, rounded to `digits` after the point.
pub fn to_vec1_round(t: &Tensor, digits: i32) -> Result<Vec<f32>> {
    let data: Vec<f32> = as_f32(t)?.to_vec1()?;
    Ok(data.into_iter().map(|x| round(x, digits)).collect())
}

/// A matrix's rows, rounded to `digits` after the point.
pub fn to_vec2_round(t: &Tensor, digits: i32) -> Result<Vec<Vec<f32>>> {
    t.dims2()?;
    (0..t.dim(0)?)
        .map(|i| to_vec1_round(&t.get(i)?, digits))
        .collect()
}

/// The elements of a tensor of three dimensions, rounded to `digits` after the point.
pub fn to_vec3_round(t: &Tensor, digits: i32) -> Result<Vec<Vec<Vec<f32>>>> {
    t.dims3()?;
    (0..t.dim(0)?)
        .map(|i| to_vec2_round(&t.get(i)?, digits))
        .collect()
}
