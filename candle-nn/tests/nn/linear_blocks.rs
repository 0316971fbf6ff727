//! Few rows times quantised weights, with all that a linear layer does besides, against a loop in f64 over the decoded weight.
//!
//! Devices bring rows to 8 bits, a scale for a run of elements. That changes an element by at most half a step, evenly, and a step is
//! the run's largest element over 127. So an output has a rounding whose variance is known: the sum of `step^2 / 12 * w^2`. Results have
//! to be within six deviations, and what f32 rounds.

use super::common::data;
use super::gated::{gate, host};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{test_device, DType, Device, IndexOp, Result, Tensor};
use candle_nn::ops::{linear_with, GatedActivation, LinearExtras};
use std::sync::Arc;

const EPS: f32 = 1e-5;

const FORMATS: [GgmlDType; 12] = [
    GgmlDType::Q4_0,
    GgmlDType::Q8_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_1,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
    GgmlDType::Q8K,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
];

/// The format to which a device rounds rows.
#[derive(Clone, Copy)]
enum Rounds {
    /// 8 bits, with a scale for each run of at most this many elements.
    Runs(usize),
    /// Not at all.
    #[cfg_attr(not(feature = "webgpu"), allow(dead_code))]
    No,
}

impl Rounds {
    fn of(dev: &Device, format: GgmlDType) -> Self {
        if dev.is_cpu() {
            Self::Runs(format.block_size())
        } else {
            Self::Runs(32)
        }
    }

    /// The tolerance of a product of `x` and `w`.
    fn room(self, x: &[f64], w: &[f64]) -> f64 {
        let sizes = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum::<f64>();
        let in_f32 = 2f64.powi(-19) * sizes;
        let Self::Runs(run) = self else {
            return in_f32;
        };
        let variance = x.chunks(run).zip(w.chunks(run)).map(|(x, w)| {
            let step = x.iter().fold(0f64, |most, x| most.max(x.abs())) / 127.;
            w.iter().map(|w| (step * w).powi(2)).sum::<f64>() / 12.
        });
        6. * variance.sum::<f64>().sqrt() + in_f32
    }
}

/// The operations fused with a product.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Nothing,
    NormAndBias,
    NormAndGate,
    Residual,
}

const CHOICES: [Choice; 4] = [
    Choice::Nothing,
    Choice::NormAndBias,
    Choice::NormAndGate,
    Choice::Residual,
];

/// A weight `(n, k)` under which sums stay about as large as the input: on `dev`, and what it decodes to.
fn weight(n: usize, k: usize, format: GgmlDType, dev: &Device) -> Result<(QMatMul, Vec<f64>)> {
    let floats = (data(&[n, k], DType::F32, &Device::Cpu)? * (1. / (k as f64).sqrt()))?;
    let weight = QTensor::quantize_onto(&floats, format, dev)?;
    let decoded = host(&weight.dequantize(&Device::Cpu)?)?;
    Ok((QMatMul::QTensor(Arc::new(weight)), decoded))
}

/// Rows whose runs differ in size, as activations do.
fn rows(m: usize, k: usize, dtype: DType, dev: &Device) -> Result<Tensor> {
    let sizes = data(&[m, k / 32, 1], DType::F32, &Device::Cpu)?;
    let xs = data(&[m, k / 32, 32], DType::F32, &Device::Cpu)?;
    xs.broadcast_mul(&sizes)?
        .reshape((m, k))?
        .to_dtype(dtype)?
        .to_device(dev)
}

/// `xs (rows, k)` times a weight `(outputs, k)` with a choice, within what `rounds` allows.
fn check(
    case: &str,
    xs: &Tensor,
    (weight, decoded): &(QMatMul, Vec<f64>),
    choice: Choice,
    rounds: Rounds,
) -> Result<()> {
    let (m, k) = xs.dims2()?;
    let (dev, outputs) = (xs.device(), decoded.len() / k);
    let gated = matches!(choice, Choice::NormAndGate);
    let n = if gated { outputs / 2 } else { outputs };
    let dtype = xs.dtype();
    let alpha = data(&[k], dtype, dev)?;
    let bias = data(&[outputs], dtype, dev)?;
    let residual = data(&[m, n], dtype, dev)?;
    let normed = matches!(choice, Choice::NormAndBias | Choice::NormAndGate);
    let extras = LinearExtras {
        norm: normed.then_some((&alpha, EPS)),
        bias: matches!(choice, Choice::NormAndBias).then_some(&bias),
        gate: gated.then_some(GatedActivation::Silu),
        activation: None,
        residual: matches!(choice, Choice::Residual).then_some(&residual),
    };
    let got = linear_with(xs, weight, extras)?;
    assert_eq!((got.dims(), got.dtype()), (&[m, n][..], dtype), "{case}");
    let got = host(&got)?;
    let (alpha, bias, residual) = (host(&alpha)?, host(&bias)?, host(&residual)?);
    // Results of 16 bits are rounded once more.
    let last = match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 2f64.powi(-19),
    };
    for (row, x) in host(xs)?.chunks(k).enumerate() {
        let mut x = x.to_vec();
        if normed {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / k as f64;
            let scale = 1. / (mean + f64::from(EPS)).sqrt();
            x.iter_mut()
                .zip(&alpha)
                .for_each(|(x, alpha)| *x *= scale * alpha);
        }
        let product = |at: usize| {
            let w = &decoded[at * k..][..k];
            let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            (sum, rounds.room(&x, w))
        };
        for col in 0..n {
            let (sum, room) = product(col);
            let (want, room) = match choice {
                Choice::Nothing => (sum, room),
                Choice::NormAndBias => (sum + bias[col], room),
                Choice::Residual => (sum + residual[row * n + col], room),
                Choice::NormAndGate => {
                    let (up, up_room) = product(n + col);
                    let silu = gate(GatedActivation::Silu, sum, 1.);
                    // Silu is nowhere steeper than 1.1.
                    let off = 1.1 * room * (up.abs() + up_room) + silu.abs() * up_room;
                    (silu * up, off)
                }
            };
            let off = (got[row * n + col] - want).abs();
            let most = room + last * (1. + want.abs());
            assert!(
                off <= most,
                "{case} {choice:?}, row {row}, column {col}: {} instead of {want}, off by {off} of {most}",
                got[row * n + col]
            );
        }
    }
    Ok(())
}

/// Numbers of rows that a kernel takes at once, and groups of them.
const ROWS: [usize; 6] = [1, 2, 3, 8, 9, 20];

/// Each case is a kernel that a software adapter compiles for a second, so choices go round instead of being combined.
fn sizes(dev: &Device, rounds: impl Fn(GgmlDType) -> Rounds) -> Result<()> {
    // One block, less than one iteration of a subgroup, strips that are and are not all alike.
    for (i, k) in [32, 64, 2048, 4096 + 32, 14336].into_iter().enumerate() {
        for (j, n) in [1, 4, 35, 1000].into_iter().enumerate() {
            if k * n > 3_000_000 {
                continue;
            }
            let format = FORMATS[(i + j) % 2];
            let m = ROWS[(i + 2 * j) % 6];
            let choice = CHOICES[(i + j / 2) % 4];
            let outputs = if matches!(choice, Choice::NormAndGate) {
                2 * n
            } else {
                n
            };
            let weight = weight(outputs, k, format, dev)?;
            let case = format!("{format:?} {m} x {k} by {n}");
            let xs = rows(m, k, DType::F32, dev)?;
            check(&case, &xs, &weight, choice, rounds(format))?;
        }
    }
    // Many workgroups, with a partial last one.
    let (n, k) = (17001, 64);
    let weight = weight(n, k, GgmlDType::Q4_0, dev)?;
    let xs = rows(3, k, DType::F32, dev)?;
    let rounds = rounds(GgmlDType::Q4_0);
    check("many columns", &xs, &weight, Choice::NormAndBias, rounds)
}

fn formats(dev: &Device, rounds: impl Fn(GgmlDType) -> Rounds) -> Result<()> {
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    for (i, format) in FORMATS.into_iter().enumerate() {
        let (n, k) = (22, 768);
        let weight = weight(2 * n, k, format, dev)?;
        for (j, choice) in [CHOICES[i % 2], CHOICES[2 + i / 2 % 2]]
            .into_iter()
            .enumerate()
        {
            let m = [1, 3][(i + j) % 2];
            let dtype = dtypes[(i / 2 + j) % 3];
            let case = format!("{format:?} {dtype:?} {m} rows");
            let xs = rows(m, k, dtype, dev)?;
            check(&case, &xs, &weight, choice, rounds(format))?;
        }
    }
    Ok(())
}

/// Rows that begin elsewhere, are parts of longer ones, or are not in order.
fn layouts(dev: &Device, rounds: impl Fn(GgmlDType) -> Rounds) -> Result<()> {
    let k = 512;
    for (format, choice) in [
        (GgmlDType::Q4_0, Choice::NormAndBias),
        (GgmlDType::Q8_0, Choice::Residual),
    ] {
        let weight = weight(12, k, format, dev)?;
        let long = rows(5, k + 32, DType::F32, dev)?;
        let views = [
            ("offset", long.narrow(0, 1, 4)?.narrow(1, 8, k)?),
            ("odd offset", long.narrow(1, 3, k)?.i(..4)?),
            ("transposed", rows(k, 32, DType::F32, dev)?.t()?.i(..4)?),
            ("the same row", long.i((2..3, ..k))?.broadcast_as((4, k))?),
        ];
        for (what, xs) in &views {
            check(
                &format!("{format:?} {what}"),
                xs,
                &weight,
                choice,
                rounds(format),
            )?;
        }
    }
    Ok(())
}

fn of_many_sizes(dev: &Device) -> Result<()> {
    sizes(dev, |format| Rounds::of(dev, format))
}

fn of_formats(dev: &Device) -> Result<()> {
    formats(dev, |format| Rounds::of(dev, format))
}

fn of_layouts(dev: &Device) -> Result<()> {
    layouts(dev, |format| Rounds::of(dev, format))
}

test_device!(of_many_sizes);
test_device!(of_formats);
test_device!(of_layouts);

candle_core::with_webgpu! {
    use super::common::webgpu_without;

    #[test]
    fn formats_in_f32_webgpu() -> Result<()> {
        formats(&Device::WebGpu(webgpu_without("-int8,-coop")?), |_| Rounds::No)
    }

    #[test]
    fn without_subgroups_webgpu() -> Result<()> {
        formats(&Device::WebGpu(webgpu_without("-subgroups")?), |_| Rounds::No)
    }

    /// Every bit of a row's result is independent of the other rows.
    fn a_row_does_not_depend_on_others(
        (format, k): (GgmlDType, usize),
        gate: Option<GatedActivation>,
    ) -> Result<()> {
        let dev = Device::new_webgpu(0)?;
        let (weight, _) = weight(12, k, format, &dev)?;
        let alpha = data(&[k], DType::F32, &dev)?;
        let xs = rows(8, k, DType::F32, &dev)?;
        let of = |xs: &Tensor| -> Result<Vec<Vec<u32>>> {
            let extras = LinearExtras {
                norm: Some((&alpha, EPS)),
                gate,
                ..LinearExtras::default()
            };
            let ys = linear_with(xs, &weight, extras)?.to_vec2::<f32>()?;
            let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
            Ok(ys.into_iter().map(bits).collect())
        };
        let alone = (0..8).map(|row| Ok(of(&xs.i(row..row + 1)?)?.remove(0)));
        let alone = alone.collect::<Result<Vec<_>>>()?;
        for m in [2, 3, 5, 8] {
            let together = of(&xs.i(..m)?)?;
            assert_eq!(together, alone[..m], "{format:?} {m} rows");
        }
        Ok(())
    }

    /// Several strips, the last one shorter.
    #[test]
    fn a_row_of_nibbles_does_not_depend_on_others_webgpu() -> Result<()> {
        a_row_does_not_depend_on_others((GgmlDType::Q4_0, 4096 + 32), None)
    }

    #[test]
    fn a_row_of_bytes_does_not_depend_on_others_webgpu() -> Result<()> {
        a_row_does_not_depend_on_others((GgmlDType::Q8_0, 1024), Some(GatedActivation::Silu))
    }

    /// NaN stays NaN.
    #[test]
    fn not_numbers_webgpu() -> Result<()> {
        let dev = Device::new_webgpu(0)?;
        for format in [GgmlDType::Q4_0, GgmlDType::Q8_0] {
            let (weight, _) = weight(6, 128, format, &dev)?;
            for wrong in [f32::NAN, f32::INFINITY] {
                let mut xs = vec![1f32; 2 * 128];
                xs[128 + 70] = wrong;
                let xs = Tensor::from_vec(xs, (2, 128), &dev)?;
                let ys = linear_with(&xs, &weight, LinearExtras::default())?.to_vec2::<f32>()?;
                assert!(ys[0].iter().all(|y| y.is_finite()), "{format:?} {wrong}");
                assert!(ys[1].iter().all(|y| !y.is_finite()), "{format:?} {wrong}");
            }
        }
        Ok(())
    }
}
