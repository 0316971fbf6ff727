//! `Device::Metal`: an actual adapter on Apple's systems; elsewhere, with `CANDLE_METAL_EMULATED=1`, any adapter that WebGPU finds.

#[path = "agree.rs"]
#[allow(dead_code, unused_imports)]
mod agree;
#[path = "matrix.rs"]
mod matrix;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::metal_backend::{MetalError, QMetalStorage};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{
    op, CpuStorage, CustomOp1, CustomOp2, Device, DeviceLocation, Error, InplaceOp1, Layout,
    MetalStorage, Module, Result, Shape, Tensor, WebGpuStorage,
};

fn metal() -> Result<Device> {
    Device::new_metal(0)
}

/// Returns the error within a backtrace.
fn bare(error: &Error) -> &Error {
    match error {
        Error::WithBacktrace { inner, .. } => bare(inner),
        other => other,
    }
}

#[test]
fn it_is_found_as_programs_expect() -> Result<()> {
    assert!(candle_core::utils::metal_is_available());
    let device = Device::metal_if_available(0)?;
    assert!(device.is_metal() && !device.is_webgpu() && !device.is_cpu() && !device.is_cuda());
    assert!(device.is_wgpu() && device.supports_bf16());
    assert_eq!(device.location(), DeviceLocation::Metal { gpu_id: 0 });
    assert!(device.as_webgpu_device().is_err());
    let handle = device.as_metal_device()?;
    handle.wait_until_completed()?;
    let other = metal()?;
    assert!(device.same_device(&device.clone()) && !device.same_device(&other));
    assert_ne!(handle.id(), other.as_metal_device()?.id());
    let Some(found) = Device::probe()
        .into_iter()
        .find(|probe| probe.name == "metal")
    else {
        panic!("no backend is called metal");
    };
    assert!(found.found?.is_metal());
    let t = Tensor::new(&[[1f32, 2.], [3., 4.]], &device)?;
    assert!(t.device().is_metal());
    assert!(format!("{t}").contains("metal:0"), "{t}");
    let product = t.matmul(&t.t()?)?;
    assert!(product.device().same_device(&device));
    assert_eq!(product.to_vec2::<f32>()?, [[5., 11.], [11., 25.]]);
    let there = product.to_device(&other)?;
    assert!(there.device().same_device(&other));
    let back = there.to_device(&Device::Cpu)?;
    assert_eq!(back.to_vec2::<f32>()?, product.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn results_are_read_without_blocking() -> Result<()> {
    let t = Tensor::arange(0f32, 6., &metal()?)?.reshape((2, 3))?.t()?;
    let pending = t.flatten_all()?.begin_to_vec1::<f32>()?;
    let rows = pollster::block_on(t.to_vec2_async::<f32>())?;
    assert_eq!(rows, [[0., 3.], [1., 4.], [2., 5.]]);
    assert_eq!(pending.wait()?, [0., 3., 1., 4., 2., 5.]);
    pollster::block_on(t.device().synchronize_async())
}

#[test]
fn errors_are_those_of_metal() -> Result<()> {
    let Err(error) = Device::new_metal(4096) else {
        panic!("no machine has 4096 adapters");
    };
    let Error::Metal(MetalError::Message(text)) = bare(&error) else {
        panic!("{error}");
    };
    assert!(text.contains("no Metal adapter 4096"), "{text}");
    let device = metal()?;
    let ints = Tensor::new(&[[1u32, 2]], &device)?;
    let Err(error) = ints.exp() else {
        panic!("u32 has no exponential");
    };
    let name = format!("metal ({})", device.as_metal_device()?.webgpu().name());
    let text = error.to_string();
    assert!(text.contains("exp") && text.contains(&name), "{text}");
    // The error is reported when the results are read.
    let out_of_range = Tensor::new(&[2u32], &device)?;
    let selected = ints.t()?.index_select(&out_of_range, 0)?;
    let Err(error) = selected.to_vec2::<u32>() else {
        panic!("there are two rows");
    };
    assert!(
        matches!(bare(&error), Error::InvalidIndex { .. }),
        "{error}"
    );
    for other in [Device::new_webgpu(0)?, metal()?, Device::Cpu] {
        let Err(error) = ints.broadcast_add(&ints.to_device(&other)?) else {
            panic!("two devices");
        };
        let Error::DeviceMismatchBinaryOp { lhs, rhs, .. } = bare(&error) else {
            panic!("{error}");
        };
        assert_eq!((*lhs, *rhs), (device.location(), other.location()));
    }
    Ok(())
}

/// `x²`, with an implementation for each backend.
struct Square {
    own: bool,
}

impl CustomOp1 for Square {
    fn name(&self) -> &'static str {
        "square"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("not on the CPU")
    }

    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        if self.own {
            let square = storage.unary_impl::<op::Sqr>(layout)?;
            return Ok((square, layout.shape().clone()));
        }
        let (square, shape) = self.webgpu_fwd(storage.webgpu(), layout)?;
        Ok((square.into(), shape))
    }

    fn webgpu_fwd(
        &self,
        storage: &WebGpuStorage,
        layout: &Layout,
    ) -> Result<(WebGpuStorage, Shape)> {
        assert!(!self.own, "this has a form for Metal");
        Ok((
            storage.unary_impl::<op::Sqr>(layout)?,
            layout.shape().clone(),
        ))
    }
}

/// `x + y` with a WebGPU implementation only.
struct Sum;

impl CustomOp2 for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("not on the CPU")
    }

    fn webgpu_fwd(
        &self,
        s1: &WebGpuStorage,
        l1: &Layout,
        s2: &WebGpuStorage,
        l2: &Layout,
    ) -> Result<(WebGpuStorage, Shape)> {
        Ok((s1.binary_impl::<op::Add>(s2, l1, l2)?, l1.shape().clone()))
    }
}

/// Sets elements to 7 in place; `none` has no GPU implementation.
struct Seven;

impl InplaceOp1 for Seven {
    fn name(&self) -> &'static str {
        "seven"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle_core::bail!("not on the CPU")
    }

    fn webgpu_fwd(&self, storage: &mut WebGpuStorage, layout: &Layout) -> Result<()> {
        storage.const_set(candle_core::scalar::Scalar::F32(7.), layout)
    }
}

struct CpuOnly;

impl CustomOp1 for CpuOnly {
    fn name(&self) -> &'static str {
        "cpu-only"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("is not called")
    }
}

#[test]
fn custom_ops_run_their_form_for_metal_or_for_webgpu() -> Result<()> {
    let t = Tensor::new(&[[1f32, 2.], [3., 4.]], &metal()?)?.t()?;
    for own in [true, false] {
        let square = t.apply_op1_no_bwd(&Square { own })?;
        assert!(square.device().is_metal());
        assert_eq!(square.to_vec2::<f32>()?, [[1., 9.], [4., 16.]]);
    }
    let sum = t.apply_op2_no_bwd(&t, &Sum)?;
    assert_eq!(sum.to_vec2::<f32>()?, [[2., 6.], [4., 8.]]);
    sum.narrow(0, 1, 1)?.inplace_op1(&Seven)?;
    assert_eq!(sum.to_vec2::<f32>()?, [[2., 6.], [7., 7.]]);
    let Err(error) = t.apply_op1_no_bwd(&CpuOnly) else {
        panic!("it has no form for a GPU");
    };
    assert!(matches!(bare(&error), Error::Metal(_)), "{error}");
    assert!(error.to_string().contains("cpu-only"), "{error}");
    Ok(())
}

#[test]
fn quantised_weights_are_there() -> Result<()> {
    let device = metal()?;
    let weight = Tensor::arange(0f32, 64. * 5., &Device::Cpu)?.reshape((5, 64))?;
    let weight = ((weight / 100.)? - 1.)?;
    let x = Tensor::arange(0f32, 128., &Device::Cpu)?.reshape((2, 64))?;
    let x = (x / 64.)?;
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::F16] {
        let here = QTensor::quantize(&weight, dtype)?;
        let there = QTensor::quantize(&weight.to_device(&device)?, dtype)?;
        assert!(there.device().is_metal());
        assert_eq!(there.data()?, here.data()?);
        let decoded = there.dequantize(&device)?;
        let want = here.dequantize(&Device::Cpu)?;
        assert_eq!(decoded.to_vec2::<f32>()?, want.to_vec2::<f32>()?);
        let ids = Tensor::new(&[4u32, 0], &device)?;
        let rows = there.embedding(&ids)?;
        assert!(rows.device().is_metal());
        assert_eq!(
            rows.to_vec2::<f32>()?,
            want.index_select(&ids.to_device(&Device::Cpu)?, 0)?
                .to_vec2::<f32>()?
        );
        let got = QMatMul::from_qtensor(there)?.forward(&x.to_device(&device)?)?;
        assert!(got.device().is_metal());
        // A device that multiplies bytes rounds `x` to 8 bits, as the CPU does, whose scales are f16 as well.
        let want = QMatMul::from_qtensor(here)?.forward(&x)?;
        let largest = want.abs()?.max_all()?.to_scalar::<f32>()?;
        let difference = (got.to_device(&Device::Cpu)? - want)?.abs()?.max_all()?;
        let difference = difference.to_scalar::<f32>()? / largest;
        assert!(difference < 1e-3, "{dtype:?}: {difference}");
    }
    let zeros = QMetalStorage::zeros(device.as_metal_device()?, 64, GgmlDType::Q4_0)?;
    assert_eq!(zeros.data()?, [0; 36]);
    assert!(zeros.device().same_device(device.as_metal_device()?));
    let Err(error) = QStorage::Metal(zeros).device_ptr() else {
        panic!("buffers have no address");
    };
    assert!(error.to_string().contains("metal ("), "{error}");
    Ok(())
}

#[test]
fn the_feature_alone_opens_nothing_elsewhere() {
    const CHILD: &str = "CANDLE_CORE_TEST_METAL";
    if std::env::var_os(CHILD).is_some() {
        let found = Device::new_metal(0);
        if cfg!(target_vendor = "apple") {
            assert!(found.is_ok_and(|device| device.is_metal()))
        } else {
            assert!(matches!(found, Err(Error::NotCompiledWithMetalSupport)))
        }
        let Ok(device) = Device::metal_if_available(0) else {
            panic!("the CPU is always there");
        };
        assert_eq!(device.is_cpu(), !cfg!(target_vendor = "apple"));
        return;
    }
    let program = std::env::current_exe().expect("this program has a path");
    let child = std::process::Command::new(program)
        .args(["the_feature_alone_opens_nothing_elsewhere", "--exact"])
        .env(CHILD, "1")
        .env_remove("CANDLE_METAL_EMULATED")
        .output()
        .expect("this program starts again");
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// The environment variables of the WebGPU backend apply here too.
#[test]
fn ops_are_verified_where_the_environment_says_so() {
    const CHILD: &str = "CANDLE_CORE_TEST_METAL_VERIFY";
    struct Wrong;
    impl CustomOp1 for Wrong {
        fn name(&self) -> &'static str {
            "wrong"
        }
        fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
            Ok((storage.affine(layout, 1., 1.)?, layout.shape().clone()))
        }
        fn webgpu_fwd(&self, s: &WebGpuStorage, layout: &Layout) -> Result<(WebGpuStorage, Shape)> {
            Ok((s.affine(layout, 1., 2.)?, layout.shape().clone()))
        }
    }
    if std::env::var_os(CHILD).is_some() {
        let device = metal().expect("a device");
        let t = Tensor::new(&[1f32, 2.], &device).expect("two numbers");
        let error = t.apply_op1_no_bwd(&Wrong).expect_err("a difference");
        assert!(matches!(bare(&error), Error::Metal(_)), "{error}");
        assert!(
            error.to_string().contains("wrong [2] F32: element 0"),
            "{error}"
        );
        // To the CPU, and back to the device.
        let bytes = Tensor::arange(0u8, 12, &device).expect("bytes");
        let image = bytes.reshape((1, 1, 3, 4)).expect("an image");
        let resized = image.upsample_bilinear2d(5, 5, true).expect("a fallback");
        assert!(resized.device().is_metal());
        return;
    }
    let program = std::env::current_exe().expect("this program has a path");
    let child = std::process::Command::new(program)
        .args([
            "ops_are_verified_where_the_environment_says_so",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .env("CANDLE_WEBGPU_VERIFY", "1")
        .env("CANDLE_WEBGPU_FALLBACK", "1")
        .output()
        .expect("this program starts again");
    let text = String::from_utf8_lossy(&child.stdout);
    let log = String::from_utf8_lossy(&child.stderr);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}\n{log}"
    );
    assert!(log.contains("runs on the CPU"), "{log}");
}
