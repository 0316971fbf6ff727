//! The fused ops on `Device::Metal`: what they give on the CPU, in as many kernels as on WebGPU.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::{
    act_mul, layer_norm, linear_with, rms_norm, sdpa, sigmoid, softmax_last_dim, GatedActivation,
    LinearExtras,
};
use candle_nn::rotary_emb::{rope, rope_append, Pairs};
use std::sync::Arc;

/// Numbers in -1..1 that look like no pattern.
fn data(dims: &[usize], device: &Device) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin()).collect();
    Tensor::from_vec(numbers, dims, device)
}

type Case = (&'static str, fn(&Device) -> Result<Tensor>);

const CASES: [Case; 10] = [
    ("softmax", |dev| softmax_last_dim(&data(&[3, 33], dev)?)),
    ("rms_norm", |dev| {
        rms_norm(&data(&[3, 33], dev)?, &data(&[33], dev)?, 1e-5)
    }),
    ("layer_norm", |dev| {
        let weight = data(&[33], dev)?;
        layer_norm(&data(&[3, 33], dev)?, &weight, &weight, 1e-5)
    }),
    ("sigmoid", |dev| sigmoid(&data(&[5, 7], dev)?.t()?)),
    ("act_mul", |dev| {
        let x = data(&[5, 8], dev)?;
        let (gate, up) = (x.narrow(1, 0, 4)?, x.narrow(1, 4, 4)?);
        act_mul(&gate, &up, GatedActivation::Silu)
    }),
    ("rope", |dev| {
        let (cos, sin) = (data(&[5, 8], dev)?, data(&[5, 8], dev)?);
        rope(&data(&[1, 2, 5, 16], dev)?, &cos, &sin)
    }),
    ("rope_append", |dev| {
        let (cos, sin) = (data(&[1, 8], dev)?, data(&[1, 8], dev)?);
        let cache = data(&[1, 2, 6, 16], dev)?;
        let x = data(&[1, 1, 2, 16], dev)?.transpose(1, 2)?;
        rope_append(&x, &cos, &sin, Pairs::Halves, &cache, 3)?;
        Ok(cache)
    }),
    ("sdpa", |dev| {
        let q = data(&[1, 4, 1, 32], dev)?;
        let k = data(&[1, 2, 9, 32], dev)?;
        sdpa(&q, &k, &(&k * 0.5)?, None, false, 0.25, 1.)
    }),
    ("linear", |dev| {
        let (norm, residual) = (data(&[64], dev)?, data(&[1, 1, 32], dev)?);
        let extras = LinearExtras {
            norm: Some((&norm, 1e-5)),
            residual: Some(&residual),
            ..LinearExtras::default()
        };
        linear_with(&data(&[1, 1, 64], dev)?, &data(&[32, 64], dev)?, extras)
    }),
    ("quantised linear", |dev| {
        let weight = QTensor::quantize(&data(&[32, 64], dev)?, GgmlDType::Q8_0)?;
        let weight = QMatMul::from_arc(Arc::new(weight))?;
        let bias = data(&[32], dev)?;
        let extras = LinearExtras {
            bias: Some(&bias),
            ..LinearExtras::default()
        };
        linear_with(&data(&[1, 1, 64], dev)?, &weight, extras)
    }),
];

/// A result, and the kernels that it took.
fn counted(device: &Device, op: fn(&Device) -> Result<Tensor>) -> Result<(Tensor, u64)> {
    let dispatches = || device.as_wgpu().map_or(0, |gpu| gpu.stats().dispatches);
    let before = dispatches();
    let result = op(device)?;
    Ok((result, dispatches() - before))
}

#[test]
fn fused_ops_are_those_of_webgpu() -> Result<()> {
    let (metal, webgpu) = (Device::new_metal(0)?, Device::new_webgpu(0)?);
    for (name, op) in CASES {
        let (got, kernels) = counted(&metal, op)?;
        assert!(got.device().is_metal(), "{name}");
        let (same, of_webgpu) = counted(&webgpu, op)?;
        assert_eq!(kernels, of_webgpu, "{name}");
        assert!(kernels > 0, "{name}");
        let numbers = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let (got, same, want) = (
            numbers(&got)?,
            numbers(&same)?,
            numbers(&op(&Device::Cpu)?)?,
        );
        assert_eq!(got, same, "{name}");
        // A product on the CPU rounds its left side to 8 bits.
        let limit = if name.starts_with("quantised") {
            0.05
        } else {
            1e-4
        };
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() < limit, "{name}: {got} for {want}");
        }
    }
    Ok(())
}

#[test]
fn an_argument_elsewhere_is_an_error() -> Result<()> {
    let metal = Device::new_metal(0)?;
    let norm = data(&[64], &Device::Cpu)?;
    let extras = LinearExtras {
        norm: Some((&norm, 1e-5)),
        ..LinearExtras::default()
    };
    let (xs, weight) = (data(&[1, 64], &metal)?, data(&[32, 64], &metal)?);
    let Err(error) = linear_with(&xs, &weight, extras) else {
        panic!("the norm's weight is on the CPU");
    };
    assert!(error.to_string().contains("Cpu"), "{error}");
    Ok(())
}
