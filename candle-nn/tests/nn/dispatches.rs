//! Number of kernels of the fused ops per token on a GPU: one each, with any options.

use super::common::data;
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{add_norm, norm, norm_add, norm_gate, Norm};
use candle_nn::rotary_emb::{
    rope_append_with, rope_heads_with, CachePosition, HeadNorms, Pairs, Rotation,
};

/// A device that no other test counts on: CUDA devices share a stream unless a separate one is requested.
fn separate(dev: &Device) -> Result<Device> {
    if dev.is_cuda() {
        Device::new_cuda_with_stream(0)
    } else {
        Ok(dev.clone())
    }
}

/// Kernels launched so far, if the device counts them.
fn launches(dev: &Device) -> Result<Option<u64>> {
    #[cfg(feature = "cuda")]
    if dev.is_cuda() {
        return Ok(Some(dev.as_cuda_device()?.stats().launches));
    }
    candle_core::with_webgpu! {
        if dev.is_webgpu() {
            return Ok(Some(dev.as_webgpu_device()?.stats().dispatches));
        }
    }
    let _ = dev;
    Ok(None)
}

#[track_caller]
fn assert_one<T>(dev: &Device, case: &str, op: impl FnOnce() -> Result<T>) -> Result<()> {
    let before = launches(dev)?;
    op()?;
    assert_eq!(launches(dev)?, before.map(|n| n + 1), "{case}");
    Ok(())
}

fn of_heads(dev: &Device) -> Result<()> {
    let dev = &separate(dev)?;
    for dtype in [DType::F32, DType::F16] {
        let of = |dims: &[usize]| data(dims, dtype, dev);
        // As attention has them: heads of a projection.
        let xs = of(&[2, 1, 8, 16])?.transpose(1, 2)?;
        let head_norms = HeadNorms::new(&of(&[16])?, &of(&[16])?, 1e-6)?;
        let positions = Tensor::new(&[3u32, 5], dev)?;
        let (cos, sin) = (of(&[2, 1, 4])?, of(&[2, 1, 4])?);
        for norms in [None, Some(&head_norms)] {
            for angles in [None, Some((&cos, &sin))] {
                let pairs = Pairs::Halves;
                let rotation = Rotation {
                    angles,
                    pairs,
                    norms,
                };
                let case = format!("{dtype:?} {}", norms.is_some());
                assert_one(dev, &case, || rope_heads_with(&xs, &rotation, 4, 2))?;
                for cache_dtype in [dtype, DType::F16] {
                    let cache = data(&[2, 4, 7, 16], cache_dtype, dev)?;
                    for at in [CachePosition::Same(2), CachePosition::PerRow(&positions)] {
                        assert_one(dev, &case, || rope_append_with(&xs, &rotation, &cache, at))?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn of_norms(dev: &Device) -> Result<()> {
    let dev = &separate(dev)?;
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, other, weight, bias) = (of(&[3, 64])?, of(&[3, 64])?, of(&[64])?, of(&[64])?);
    let plain = Norm {
        centred: true,
        weight: None,
        bias: None,
        eps: 1e-5,
    };
    for with in [
        Norm::rms(&weight, 1e-5),
        Norm::layer(&weight, &bias, 1e-5),
        plain,
    ] {
        let case = format!("{with:?}");
        assert_one(dev, &case, || norm(&xs, with))?;
        assert_one(dev, &case, || norm_add(&xs, with, &other))?;
        assert_one(dev, &case, || add_norm(&xs, &other, with))?;
        assert_one(dev, &case, || norm_gate(&xs, with, &other))?;
    }
    Ok(())
}

candle_core::with_webgpu! {
    use super::gated::ALL;
    use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
    use candle_nn::ops::{linear_with, LinearExtras};
    use candle_nn::Activation;
    use std::sync::Arc;

    #[test]
    fn of_linear_layers_webgpu() -> Result<()> {
        let dev = Device::new_webgpu(0)?;
        let of = |dims: &[usize]| data(dims, DType::F32, &dev);
        let (xs, alpha, bias) = (of(&[1, 1, 64])?, of(&[64])?, of(&[32])?);
        let (half, whole) = (of(&[1, 1, 16])?, of(&[1, 1, 32])?);
        let dense = of(&[32, 64])?;
        let blocks = QTensor::quantize_onto(&dense.to_device(&Device::Cpu)?, GgmlDType::Q5_0, &dev)?;
        for weight in [QMatMul::Tensor(dense), QMatMul::QTensor(Arc::new(blocks))] {
            let none = LinearExtras::default();
            let with_bias = LinearExtras { bias: Some(&bias), ..none };
            let normed = LinearExtras { norm: Some((&alpha, 1e-5)), ..with_bias };
            let mut all = vec![
                with_bias,
                normed,
                LinearExtras { residual: Some(&whole), ..with_bias },
                LinearExtras { activation: Some(Activation::NewGelu), ..normed },
            ];
            all.extend(ALL.map(|act| LinearExtras { gate: Some(act), ..normed }));
            all.push(LinearExtras { residual: Some(&half), norm: None, ..all[4] });
            for extras in all {
                let case = format!("{weight:?} {extras:?}");
                assert_one(&dev, &case, || linear_with(&xs, &weight, extras))?;
            }
        }
        Ok(())
    }
}

test_device!(of_heads);
test_device!(of_norms);
