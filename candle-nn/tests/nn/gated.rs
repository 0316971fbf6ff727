//! Gates against their formulas in f64.

use super::common::{assert_fails, assert_values, data, dtypes, layouts};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{self, GatedActivation};
use candle_nn::Activation;

pub const ALL: [GatedActivation; 8] = [
    GatedActivation::Silu,
    GatedActivation::Gelu,
    GatedActivation::GeluTanh,
    GatedActivation::QuickGelu,
    GatedActivation::Relu,
    GatedActivation::Relu2,
    GatedActivation::Sigmoid,
    GatedActivation::ClampedSwiglu,
];

const SHAPES: [&[usize]; 6] = [&[2], &[2, 14], &[2, 3, 66], &[3, 258], &[0, 4], &[3, 0]];

/// The formula.
pub fn gate(act: GatedActivation, x: f64, up: f64) -> f64 {
    let sigmoid = |x: f64| 1. / (1. + (-x).exp());
    match act {
        GatedActivation::Silu => x * sigmoid(x) * up,
        GatedActivation::Gelu => {
            let half = candle_core::cpu::erf::erf_f64(x / 2f64.sqrt()) / 2.;
            x * (0.5 + half) * up
        }
        GatedActivation::GeluTanh => {
            let inner = (2. / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1. + inner.tanh()) * up
        }
        GatedActivation::QuickGelu => x * sigmoid(1.702 * x) * up,
        GatedActivation::Relu => x.max(0.) * up,
        GatedActivation::Relu2 => x.max(0.).powi(2) * up,
        GatedActivation::Sigmoid => sigmoid(x) * up,
        GatedActivation::ClampedSwiglu => {
            let (x, up) = (x.min(7.), up.clamp(-7., 7.));
            x * sigmoid(1.702 * x) * (up + 1.)
        }
    }
}

/// The elements on the host.
pub fn host(t: &Tensor) -> Result<Vec<f64>> {
    t.to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1()
}

fn every_gate(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for dims in SHAPES {
            let ups = layouts(dims, dtype, dev)?;
            for act in ALL {
                // Each layout meets the next one, so that the two differ. Large enough for limits to show.
                for (i, (layout, x)) in layouts(dims, dtype, dev)?.iter().enumerate() {
                    let (up_layout, up) = &ups[(i + 1) % ups.len()];
                    let (x, up) = (&(x * 5.)?, &(up * 4.)?);
                    let case = format!("{act:?} {dtype:?} {dims:?} {layout} and {up_layout}");
                    let pairs = host(x)?.into_iter().zip(host(up)?);
                    let expected: Vec<f64> = pairs.map(|(x, up)| gate(act, x, up)).collect();
                    let got = ops::act_mul(x, up, act)?;
                    assert_eq!((got.dtype(), got.dims()), (dtype, dims));
                    assert_values(&case, &got, &expected, tolerance);
                    // The plain form rounds up to five times.
                    let plain = ops::act_mul_slow(x, up, act)?;
                    assert_values(&format!("plain {case}"), &plain, &expected, 6. * tolerance);
                }
            }
        }
    }
    Ok(())
}

fn halves(dev: &Device) -> Result<()> {
    for act in ALL {
        for dims in SHAPES {
            for (layout, xs) in layouts(dims, DType::F32, dev)? {
                let (all, half) = (host(&xs)?, dims[dims.len() - 1] / 2);
                let mut expected = Vec::new();
                for row in all.chunks(2 * half.max(1)) {
                    expected.extend((0..half).map(|i| gate(act, row[i], row[half + i])));
                }
                let case = format!("{act:?} {dims:?} {layout}");
                let got = ops::gated(&xs, act)?;
                assert_eq!(got.dims()[dims.len() - 1], half);
                assert_values(&case, &got, &expected, 1e-5);
                assert_values(&case, &ops::gated_slow(&xs, act)?, &expected, 1e-5);
            }
        }
    }
    let odd = data(&[2, 3], DType::F32, dev)?;
    assert_fails(
        ops::gated(&odd, GatedActivation::Gelu),
        &["gated", "[2, 3]", "odd"],
    );
    Ok(())
}

fn what_does_not_fit(dev: &Device) -> Result<()> {
    let (x, up) = (
        data(&[2, 3], DType::F32, dev)?,
        data(&[3], DType::F32, dev)?,
    );
    let result = ops::act_mul(&x, &up, GatedActivation::GeluTanh);
    assert_fails(result, &["gelu-tanh-mul", "[2, 3]", "[3]"]);
    let ints = Tensor::zeros((2, 3), DType::U32, dev)?;
    let result = ops::act_mul(&ints, &ints, GatedActivation::Relu);
    assert_fails(result, &["relu-mul", "U32"]);
    Ok(())
}

#[test]
fn by_the_names_of_configurations() -> Result<()> {
    for (activation, expected) in [
        (Activation::Silu, GatedActivation::Silu),
        (Activation::Swish, GatedActivation::Silu),
        (Activation::Gelu, GatedActivation::Gelu),
        (Activation::NewGelu, GatedActivation::GeluTanh),
        (Activation::GeluPytorchTanh, GatedActivation::GeluTanh),
        (Activation::Relu, GatedActivation::Relu),
        (Activation::Relu2, GatedActivation::Relu2),
        (Activation::Sigmoid, GatedActivation::Sigmoid),
    ] {
        assert_eq!(GatedActivation::try_from(activation)?, expected);
    }
    assert_fails(
        GatedActivation::try_from(Activation::Mish),
        &["Mish", "silu"],
    );
    Ok(())
}

test_device!(every_gate);
test_device!(halves);
test_device!(what_does_not_fit);
