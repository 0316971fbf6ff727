//! What comes with a linear layer, in all combinations, against a loop in f64.

use super::common::{assert_fails, assert_values, data, dtypes, layouts, Cases};
use super::gated::{gate, host, ALL};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{test_device, DType, Device, Result, Tensor, Var};
use candle_nn::ops::{linear_with, linear_with_slow, GatedActivation, LinearExtras, LinearWeight};
use candle_nn::Activation;
use std::sync::Arc;

const EPS: f32 = 1e-5;

/// A choice of what comes with a product.
#[derive(Debug, Clone, Copy)]
struct Choice {
    norm: bool,
    bias: bool,
    gate: Option<GatedActivation>,
    activation: Option<Activation>,
    residual: bool,
}

/// Activations with a kernel and one without, and the gates that they are with 1.
const ACTIVATIONS: [(Activation, Option<GatedActivation>); 7] = [
    (Activation::Silu, Some(GatedActivation::Silu)),
    (Activation::Gelu, Some(GatedActivation::Gelu)),
    (Activation::GeluPytorchTanh, Some(GatedActivation::GeluTanh)),
    (Activation::Relu, Some(GatedActivation::Relu)),
    (Activation::Relu2, Some(GatedActivation::Relu2)),
    (Activation::Sigmoid, Some(GatedActivation::Sigmoid)),
    (Activation::Relu6, None),
];

/// The eight choices of a norm, a bias and a residual; one of them for each gate and each activation, for a kernel takes its time
/// to compile.
fn choices() -> Vec<Choice> {
    let of = |bits: usize| Choice {
        norm: bits & 1 != 0,
        bias: bits & 2 != 0,
        gate: None,
        activation: None,
        residual: bits & 4 != 0,
    };
    let mut all: Vec<Choice> = (0..8).map(of).collect();
    all.extend(ALL.into_iter().enumerate().map(|(i, act)| Choice {
        gate: Some(act),
        ..of((i + 1) % 8)
    }));
    all.extend(ACTIVATIONS.iter().enumerate().map(|(i, (act, _))| Choice {
        activation: Some(*act),
        ..of((i + 2) % 8)
    }));
    all
}

fn activated(act: Activation, x: f64) -> f64 {
    let found = ACTIVATIONS.iter().find(|(with, _)| *with == act);
    match found.and_then(|(_, gate)| *gate) {
        Some(act) => gate(act, x, 1.),
        None => x.clamp(0., 6.),
    }
}

/// The loop: `xs (rows, k)`, `weight (outputs, k)`.
fn expected(xs: &Tensor, weight: &Tensor, extras: LinearExtras<'_>) -> Result<Vec<f64>> {
    let (outputs, k) = weight.dims2()?;
    let (mut xs, weight) = (host(xs)?, host(weight)?);
    let values = |t: Option<&Tensor>| t.map(host).transpose();
    let norm = values(extras.norm.map(|(alpha, _)| alpha))?;
    let (bias, residual) = (values(extras.bias)?, values(extras.residual)?);
    let mut ys = Vec::new();
    for x in xs.chunks_mut(k) {
        if let Some(alpha) = &norm {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / k as f64;
            for (x, alpha) in x.iter_mut().zip(alpha) {
                *x = *x / (mean + f64::from(EPS)).sqrt() * alpha;
            }
        }
        let product = |row: usize| {
            let weight = &weight[row * k..][..k];
            let sum: f64 = x.iter().zip(weight).map(|(x, w)| x * w).sum();
            sum + bias.as_ref().map_or(0., |bias| bias[row])
        };
        match extras.gate {
            None => ys.extend((0..outputs).map(|row| match extras.activation {
                Some(act) => activated(act, product(row)),
                None => product(row),
            })),
            Some(act) => {
                let half = outputs / 2;
                ys.extend((0..half).map(|i| gate(act, product(i), product(half + i))));
            }
        }
    }
    if let Some(residual) = residual {
        ys.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
    }
    Ok(ys)
}

/// The choices that are taken, for `xs (.., k)` and a weight `(2 n, k)` that decodes to `decoded`.
fn check_all<'a>(
    taken: &mut Cases,
    case: &str,
    xs: &Tensor,
    weight: impl Into<LinearWeight<'a>>,
    decoded: &Tensor,
    tolerance: f64,
) -> Result<()> {
    let weight = weight.into();
    for (i, choice) in choices().into_iter().enumerate() {
        if taken.takes_next() {
            check((case, i), choice, xs, weight, decoded, tolerance)?;
        }
    }
    Ok(())
}

/// A choice, the `i`-th, with a bias that is not contiguous if `i` is odd.
fn check(
    (case, i): (&str, usize),
    choice: Choice,
    xs: &Tensor,
    weight: LinearWeight<'_>,
    decoded: &Tensor,
    tolerance: f64,
) -> Result<()> {
    let (outputs, k) = decoded.dims2()?;
    let (dtype, dev) = (xs.dtype(), xs.device());
    let rows: Vec<usize> = xs.dims()[..xs.rank() - 1].to_vec();
    let alpha = data(&[k], dtype, dev)?;
    // From the second element of a longer vector on, or with a stride of two.
    let biases = [
        data(&[outputs + 1], dtype, dev)?.narrow(0, 1, outputs)?,
        data(&[outputs, 2], dtype, dev)?
            .narrow(1, 1, 1)?
            .squeeze(1)?,
    ];
    let n = match choice.gate {
        Some(_) => outputs / 2,
        None => outputs,
    };
    let added = data(&[&rows[..], &[n]].concat(), dtype, dev)?;
    let extras = LinearExtras {
        norm: choice.norm.then_some((&alpha, EPS)),
        bias: choice.bias.then_some(&biases[i % 2]),
        gate: choice.gate,
        activation: choice.activation,
        residual: choice.residual.then_some(&added),
    };
    let case = format!("{case}, {choice:?}");
    let values = expected(xs, decoded, extras)?;
    let got = linear_with(xs, weight, extras)?;
    assert_eq!((got.dtype(), got.dims()), (dtype, added.dims()), "{case}");
    // A gate multiplies two sums, and Relu2 three.
    let simple = choice.gate.is_none() && choice.activation.is_none();
    let tolerance = if simple { 8. } else { 32. } * tolerance;
    assert_values(&case, &got, &values, tolerance);
    let got = linear_with_slow(xs, weight, extras)?;
    assert_values(&format!("plain {case}"), &got, &values, 3. * tolerance);
    Ok(())
}

/// A weight under which sums stay about as large as the input.
fn weight(dims: &[usize]) -> Result<Tensor> {
    data(dims, DType::F32, &Device::Cpu)? * (1. / (dims[1] as f64).sqrt())
}

pub(super) fn of_dense_weights(dev: &Device) -> Result<()> {
    let mut taken = Cases::new(dev, 5);
    for (dtype, tolerance) in dtypes(dev) {
        // Odd halves, within a word, and in words; row counts around 4 and 8, where kernels change.
        for ([n, k], rows) in [([3, 5], 1), ([4, 33], 4), ([8, 64], 5), ([33, 520], 9)] {
            let w = weight(&[2 * n, k])?.to_dtype(dtype)?.to_device(dev)?;
            let inputs = layouts(&[1, rows, k], dtype, dev)?.into_iter();
            for (layout, xs) in inputs.skip(rows % 3).step_by(3) {
                let case = format!("{dtype:?} {rows} x {k} by {n}, {layout}");
                check_all(&mut taken, &case, &xs, &w, &w, tolerance)?;
            }
        }
    }
    Ok(())
}

/// Formats with one, two, three and four buffers on a GPU.
pub(super) fn of_quantized_weights(dev: &Device) -> Result<()> {
    let formats = [
        GgmlDType::Q8_0,
        GgmlDType::Q4_0,
        GgmlDType::Q4K,
        GgmlDType::Q5K,
        GgmlDType::Q6K,
        GgmlDType::F16,
    ];
    let mut taken = Cases::new(dev, 5);
    for (i, format) in formats.into_iter().enumerate() {
        let floats = weight(&[2 * 17, 256])?;
        let decoded = QTensor::quantize(&floats, format)?.dequantize(&Device::Cpu)?;
        let quantized = QTensor::quantize_onto(&floats, format, dev)?;
        let quantized = QMatMul::QTensor(Arc::new(quantized));
        // Devices bring the input to 8 bits for blocks, adapters with cooperative matrices many rows to f16.
        let least = match (format, dev) {
            (GgmlDType::F16, gpu) if gpu.is_software_gpu() => 0.,
            (GgmlDType::F16, gpu) if gpu.is_webgpu() => 1e-3,
            _ => 6e-3,
        };
        let dtypes = dtypes(dev).into_iter().filter(|(d, _)| *d != DType::F64);
        for (dtype, tolerance) in dtypes {
            let rows = [1, 4, 5, 9][(i + dtype as usize) % 4];
            let xs = data(&[rows, 256], dtype, dev)?;
            let case = format!("{format:?} {dtype:?} {rows} rows");
            check_all(
                &mut taken,
                &case,
                &xs,
                &quantized,
                &decoded,
                tolerance.max(least),
            )?;
        }
    }
    Ok(())
}

/// Formats of four buffers with as many others as a layer can have, on either side of the sizes at which kernels change.
pub(super) fn of_many_buffers(dev: &Device) -> Result<()> {
    for format in [GgmlDType::Q5K, GgmlDType::Q6K] {
        let floats = weight(&[2 * 17, 256])?;
        let decoded = QTensor::quantize(&floats, format)?.dequantize(&Device::Cpu)?;
        let quantized = QMatMul::QTensor(Arc::new(QTensor::quantize_onto(&floats, format, dev)?));
        for (rows, norm) in [(2, false), (3, false), (8, true), (9, true)] {
            let choice = Choice {
                norm,
                bias: true,
                gate: None,
                activation: None,
                residual: !norm,
            };
            let xs = data(&[rows, 256], DType::F32, dev)?;
            let case = format!("{format:?} {rows} rows");
            check((&case, 0), choice, &xs, (&quantized).into(), &decoded, 6e-3)?;
        }
    }
    Ok(())
}

/// Enough products in a row that an adapter splits the inner dimension, and joins the parts with what is added.
pub(super) fn of_long_rows(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for (rows, n, k) in [(9, 18, 2048), (33, 7, 3000)] {
            let w = weight(&[n, k])?.to_dtype(dtype)?.to_device(dev)?;
            let xs = data(&[rows, k], dtype, dev)?;
            let bias = data(&[n], dtype, dev)?;
            let residual = data(&[rows, n], dtype, dev)?;
            for residual in [None, Some(&residual)] {
                let extras = LinearExtras {
                    bias: Some(&bias),
                    activation: residual.map(|_| Activation::GeluPytorchTanh),
                    residual,
                    ..LinearExtras::default()
                };
                let got = linear_with(&xs, &w, extras)?;
                let case = format!("{dtype:?} {rows} x {k} by {n}");
                assert_values(&case, &got, &expected(&xs, &w, extras)?, 8. * tolerance);
            }
        }
    }
    Ok(())
}

fn what_does_not_fit(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, w, bias) = (of(&[2, 4])?, of(&[6, 4])?, of(&[3])?);
    let extras = LinearExtras {
        bias: Some(&bias),
        ..LinearExtras::default()
    };
    assert_fails(linear_with(&xs, &w, extras), &["linear", "[2, 4]", "[3]"]);
    // With a gate, too, the bias is the product's.
    let extras = LinearExtras {
        gate: Some(GatedActivation::Gelu),
        ..extras
    };
    assert_fails(linear_with(&xs, &w, extras), &["linear-gated", "[3]"]);
    let half = of(&[6])?.to_dtype(DType::F16)?;
    let extras = LinearExtras {
        bias: Some(&half),
        ..extras
    };
    assert_fails(linear_with(&xs, &w, extras), &["F32", "F16"]);
    let odd = of(&[5, 4])?;
    let extras = LinearExtras {
        bias: None,
        ..extras
    };
    assert_fails(linear_with(&xs, &odd, extras), &["5 rows", "even"]);
    let both = LinearExtras {
        activation: Some(Activation::Relu),
        ..extras
    };
    assert_fails(
        linear_with(&xs, &w, both),
        &["linear-gated", "Relu", "Gelu"],
    );
    let swiglu = LinearExtras {
        activation: Some(Activation::Swiglu),
        ..LinearExtras::default()
    };
    assert_fails(linear_with(&xs, &w, swiglu), &["linear", "Swiglu", "Silu"]);
    let none = linear_with(&of(&[2, 0, 4])?, &w, extras)?;
    assert_eq!(none.dims(), &[2, 0, 3]);
    Ok(())
}

fn gradients_flow(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| Var::from_tensor(&data(dims, DType::F32, dev)?);
    let (xs, alpha, bias, w) = (of(&[2, 4])?, of(&[4])?, of(&[6])?, of(&[6, 4])?);
    for act in ALL {
        let extras = LinearExtras {
            norm: Some((&alpha, EPS)),
            bias: Some(&bias),
            gate: Some(act),
            ..LinearExtras::default()
        };
        let sum = linear_with(&xs, &w, extras)?.sum_all()?;
        let found = sum.backward()?;
        for var in [&xs, &alpha, &bias, &w] {
            assert!(found.get(var).is_some(), "{act:?}");
        }
    }
    Ok(())
}

test_device!(of_dense_weights);
test_device!(of_many_buffers);
test_device!(of_quantized_weights);
test_device!(of_long_rows);
test_device!(what_does_not_fit);
test_device!(gradients_flow);

candle_core::with_webgpu! {
    /// Operands larger than a binding.
    #[test]
    fn beyond_a_binding_webgpu() -> Result<()> {
        let dev = super::common::small_bindings()?;
        let mut taken = Cases::new(&dev, 5);
        for ([n, k], rows) in [([40, 48], 2), ([40, 48], 9), ([700, 2], 3)] {
            let w = weight(&[2 * n, k])?.to_device(&dev)?;
            let xs = data(&[rows, k], DType::F32, &dev)?;
            check_all(&mut taken, &format!("{rows} x {k} by {n}"), &xs, &w, &w, 1e-5)?;
        }
        Ok(())
    }
}
