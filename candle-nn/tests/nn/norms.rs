use super::common::{
    assert_close, assert_fails, assert_values, data, dtypes, layouts, reference, Cases,
};
use super::gated::host;
use candle_core::{test_device, DType, Device, Module, Result, Tensor, Var};
use candle_nn::ops::{
    add_norm, add_norm_slow, layer_norm, layer_norm_slow, norm, norm_add, norm_add_slow, norm_gate,
    norm_gate_slow, norm_slow, rms_norm, rms_norm_slow, Norm,
};
use candle_nn::{LayerNorm, RmsNorm};

const EPS: f32 = 1e-5;

const SHAPES: [&[usize]; 10] = [
    &[4],
    &[1, 1],
    &[3, 1],
    &[2, 7],
    &[2, 3, 33],
    &[4, 255],
    &[3, 257],
    &[70, 1025],
    &[0, 4],
    &[3, 0],
];

/// Weights of length n: contiguous, and every third element of something longer.
fn weights(xs: &Tensor) -> Result<[Tensor; 2]> {
    let n = xs.dims()[xs.rank() - 1];
    let spread = data(&[n, 3], xs.dtype(), xs.device())?;
    Ok([
        data(&[n], xs.dtype(), xs.device())?,
        spread.narrow(1, 2, 1)?.squeeze(1)?,
    ])
}

pub(super) fn fused_norms(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for dims in SHAPES {
            for (layout, xs) in layouts(dims, dtype, dev)? {
                let case = format!("{dtype:?} {dims:?} {layout}");
                let [beta, alpha] = weights(&xs)?;
                let rms = rms_norm(&xs, &alpha, EPS)?;
                let layer = layer_norm(&xs, &alpha, &beta, EPS)?;
                assert_eq!((rms.dtype(), layer.dtype()), (dtype, dtype));
                if xs.elem_count() == 0 {
                    assert_eq!((rms.dims(), layer.dims()), (dims, dims), "{case}");
                    continue;
                }
                let [rx, ra, rb] = [reference(&xs)?, reference(&alpha)?, reference(&beta)?];
                let rms_expected = rms_norm_slow(&rx, &ra, EPS)?;
                let layer_expected = layer_norm_slow(&rx, &ra, &rb, EPS)?;
                assert_close(&format!("rms {case}"), &rms, &rms_expected, tolerance);
                // A row of one element, or nearly equal ones, is a difference of nearly equal numbers scaled up.
                let tolerance = tolerance * 4.;
                assert_close(&format!("layer {case}"), &layer, &layer_expected, tolerance);
            }
        }
    }
    Ok(())
}

/// The loop, of rows of n elements.
fn expected(xs: &[f64], n: usize, norm: Norm<'_>) -> Result<Vec<f64>> {
    let weight = norm.weight.map(host).transpose()?;
    let bias = norm.bias.map(host).transpose()?;
    let mut ys = Vec::new();
    for row in xs.chunks(n) {
        let mean = if norm.centred {
            row.iter().sum::<f64>() / n as f64
        } else {
            0.
        };
        let squares: f64 = row.iter().map(|x| (x - mean).powi(2)).sum();
        let root = (squares / n as f64 + f64::from(norm.eps)).sqrt();
        ys.extend(row.iter().enumerate().map(|(i, x)| {
            let y = (x - mean) / root * weight.as_ref().map_or(1., |w| w[i]);
            y + bias.as_ref().map_or(0., |b| b[i])
        }));
    }
    Ok(ys)
}

/// Every norm of `xs`, alone and with a second tensor of its shape.
fn check_norms(case: &str, xs: &Tensor, second: &Tensor, tolerance: f64) -> Result<()> {
    let n = xs.dims()[xs.rank() - 1];
    let [bias, weight] = &weights(xs)?;
    let (x, s) = (host(xs)?, host(second)?);
    let zip = |a: &[f64], b: &[f64], f: fn(f64, f64) -> f64| -> Vec<f64> {
        a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
    };
    let gate = |x: f64, gate: f64| gate / (1. + (-gate).exp()) * x;
    // Rows of one element, or of nearly equal ones: a difference of nearly equal numbers scaled up.
    let close = |name: &str, got: &Tensor, want: &[f64], times: f64| {
        assert_eq!((got.dtype(), got.dims()), (xs.dtype(), xs.dims()), "{name}");
        assert_values(&format!("{name} of {case}"), got, want, times * tolerance);
    };
    for (centred, weight, bias) in [
        (false, Some(weight), None),
        (false, None, None),
        (false, Some(weight), Some(bias)),
        (true, Some(weight), Some(bias)),
        (true, Some(weight), None),
        (true, None, None),
        (true, None, Some(bias)),
    ] {
        let with = Norm {
            centred,
            weight,
            bias,
            eps: EPS,
        };
        let case = format!(
            "{centred} {:?} {:?}",
            weight.map(Tensor::dims),
            bias.map(Tensor::dims)
        );
        let name = |what: &str| format!("{what} {case}");
        let want = expected(&x, n, with)?;
        close(&name("norm"), &norm(xs, with)?, &want, 4.);
        close(&name("plain norm"), &norm_slow(xs, with)?, &want, 12.);
        let sums = zip(&want, &s, |y, s| y + s);
        close(&name("added"), &norm_add(xs, with, second)?, &sums, 4.);
        close(
            &name("plain added"),
            &norm_add_slow(xs, with, second)?,
            &sums,
            16.,
        );
        let gated = zip(&want, &s, gate);
        close(&name("gated"), &norm_gate(xs, with, second)?, &gated, 6.);
        close(
            &name("plain gated"),
            &norm_gate_slow(xs, with, second)?,
            &gated,
            24.,
        );
        for (what, (sum, normed)) in [
            ("sum", add_norm(xs, second, with)?),
            ("plain sum", add_norm_slow(xs, second, with)?),
        ] {
            close(&name(what), &sum, &zip(&x, &s, |x, s| x + s), 1.);
            // The norm is that of the sum as it is stored, rounded.
            let want = expected(&host(&sum)?, n, with)?;
            close(
                &name(what),
                &normed,
                &want,
                if what == "sum" { 4. } else { 12. },
            );
        }
    }
    Ok(())
}

fn every_norm(dev: &Device) -> Result<()> {
    let mut taken = Cases::new(dev, 5);
    for (dtype, tolerance) in dtypes(dev) {
        for dims in [&[2, 7][..], &[2, 3, 33], &[3, 256], &[2, 4100]] {
            let seconds = layouts(dims, dtype, dev)?;
            // Each layout meets the next one, so that the two differ.
            for (i, (layout, xs)) in layouts(dims, dtype, dev)?.iter().enumerate() {
                if !taken.takes_next() {
                    continue;
                }
                let (other, second) = &seconds[(i + 1) % seconds.len()];
                let second = (second * 0.75)?;
                let case = format!("{dtype:?} {dims:?} {layout} and {other}");
                check_norms(&case, xs, &second, tolerance)?;
            }
        }
    }
    let none = data(&[3, 0], DType::F32, dev)?;
    let layer = Norm {
        centred: true,
        weight: None,
        bias: None,
        eps: EPS,
    };
    assert_eq!(norm_gate(&none, layer, &none)?.dims(), &[3, 0]);
    assert_eq!(add_norm(&none, &none, layer)?.1.dims(), &[3, 0]);
    Ok(())
}

fn norms_that_do_not_fit(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, four, three) = (of(&[2, 3])?, of(&[4])?, of(&[3])?);
    let rms = Norm::rms(&four, EPS);
    assert_fails(norm(&xs, rms), &["rms-norm", "[2, 3]", "[4]"]);
    let layer = Norm::layer(&three, &four, EPS);
    assert_fails(norm(&xs, layer), &["layer-norm", "[2, 3]", "[4]"]);
    let rms = Norm::rms(&three, EPS);
    let other = of(&[1, 3])?;
    assert_fails(norm_add(&xs, rms, &other), &["norm-add", "[1, 3]"]);
    assert_fails(norm_gate(&xs, rms, &other), &["norm-gate", "[1, 3]"]);
    assert_fails(add_norm(&xs, &other, rms), &["add-rms-norm", "[1, 3]"]);
    let half = xs.to_dtype(DType::F16)?;
    assert_fails(norm_add(&xs, rms, &half), &["norm-add", "F32", "F16"]);
    let scalar = Tensor::new(1f32, dev)?;
    assert_fails(norm(&scalar, rms), &["rms-norm", "scalar"]);
    Ok(())
}

fn gradients_of_norms(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| Var::from_tensor(&data(dims, DType::F32, dev)?);
    let (xs, second, weight, bias) = (of(&[2, 8])?, of(&[2, 8])?, of(&[8])?, of(&[8])?);
    let layer = Norm::layer(&weight, &bias, EPS);
    let (sum, normed) = add_norm(&xs, &second, layer)?;
    for ys in [
        norm_add(&xs, layer, &second)?,
        norm_gate(&xs, layer, &second)?,
        (sum * normed)?,
    ] {
        let found = ys.sqr()?.sum_all()?.backward()?;
        for var in [&xs, &second, &weight, &bias] {
            assert!(found.get(var).is_some());
        }
    }
    Ok(())
}

/// Rows longer than some drivers let a loop run, few and many. The last elements are large: a norm without them would show.
fn norms_of_very_long_rows(dev: &Device) -> Result<()> {
    for dims in [[64, 30_000], [64, 70_001], [2, 70_001]] {
        let n = dims[1];
        let ramp = (Tensor::arange(0f32, n as f32, dev)? / n as f64)?;
        let xs = data(&dims, DType::F32, dev)?.broadcast_mul(&ramp)?;
        let [beta, alpha] = weights(&xs)?;
        let [rx, ra, rb] = [reference(&xs)?, reference(&alpha)?, reference(&beta)?];
        let case = format!("{dims:?}");
        let rms = rms_norm(&xs, &alpha, EPS)?;
        assert_close(&case, &rms, &rms_norm_slow(&rx, &ra, EPS)?, 1e-4);
        let layer = layer_norm(&xs, &alpha, &beta, EPS)?;
        assert_close(&case, &layer, &layer_norm_slow(&rx, &ra, &rb, EPS)?, 1e-4);
    }
    Ok(())
}

fn added_norms(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for dims in SHAPES {
            let residuals = layouts(dims, dtype, dev)?;
            // Each layout of one side meets each of the other, so that their rows start apart.
            for (layout, xs) in layouts(dims, dtype, dev)? {
                for (other, residual) in &residuals {
                    let case = format!("{dtype:?} {dims:?} {layout} + {other}");
                    let [_, alpha] = weights(&xs)?;
                    let (sum, normed) = add_norm(&xs, residual, Norm::rms(&alpha, EPS))?;
                    assert_eq!((sum.dims(), normed.dims()), (dims, dims), "{case}");
                    if xs.elem_count() == 0 {
                        continue;
                    }
                    let [rx, rr, ra] = [reference(&xs)?, reference(residual)?, reference(&alpha)?];
                    let (_, expected) = add_norm_slow(&rx, &rr, Norm::rms(&ra, EPS))?;
                    assert_close(&format!("sum {case}"), &sum, &(rx + rr)?, tolerance);
                    // The norm is that of the sum as it is stored, rounded.
                    assert_close(&case, &normed, &expected, 2. * tolerance);
                }
            }
        }
    }
    let (x, alpha) = (
        data(&[2, 4], candle_core::DType::F32, dev)?,
        Tensor::ones(4, candle_core::DType::F32, dev)?,
    );
    let error = add_norm(&x, &x.narrow(0, 0, 1)?, Norm::rms(&alpha, EPS)).unwrap_err();
    assert!(error.to_string().contains("add-rms-norm"), "{error}");
    Ok(())
}

fn plain_norms(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        let xs = data(&[3, 33], dtype, dev)?;
        let [alpha, beta] = weights(&xs)?;
        let [rx, ra, rb] = [reference(&xs)?, reference(&alpha)?, reference(&beta)?];
        // The plain forms round after the norm, after the scale, and after the shift.
        let tolerance = 3. * tolerance;
        let got = rms_norm_slow(&xs, &alpha, EPS)?;
        assert_close("rms", &got, &rms_norm_slow(&rx, &ra, EPS)?, tolerance);
        let got = layer_norm_slow(&xs, &alpha, &beta, EPS)?;
        let expected = layer_norm_slow(&rx, &ra, &rb, EPS)?;
        assert_close("layer", &got, &expected, tolerance);
    }
    Ok(())
}

fn norm_values(dev: &Device) -> Result<()> {
    // x / sqrt(mean(x²) + 1e-5) * a, and (x - mean) / sqrt(var + 1e-5) * a + b, in Python's float64.
    let xs = Tensor::new(&[[0.5f32, -1.5, 2., 3.]], dev)?;
    let alpha = Tensor::new(&[1f32, 0.5, -2., 0.25], dev)?;
    let beta = Tensor::new(&[0.1f32, 0.2, 0.3, 0.4], dev)?;
    let rms = [
        0.2539999262587521,
        -0.3809998893881282,
        -2.031999410070017,
        0.3809998893881282,
    ];
    let layer = [
        -0.1948833994695455,
        -0.5372084986738637,
        -0.879533597878182,
        0.6948833994695456,
    ];
    assert_values("rms", &rms_norm(&xs, &alpha, EPS)?, &rms, 1e-6);
    assert_values("layer", &layer_norm(&xs, &alpha, &beta, EPS)?, &layer, 1e-6);

    let eps = f64::from(EPS);
    let layer_rms = RmsNorm::new(alpha.clone(), eps);
    assert_values("RmsNorm", &layer_rms.forward(&xs)?, &rms, 1e-6);
    assert_values("forward_diff", &layer_rms.forward_diff(&xs)?, &rms, 1e-6);
    let with_bias = LayerNorm::new(alpha.clone(), beta.clone(), eps);
    assert_values("LayerNorm", &with_bias.forward(&xs)?, &layer, 1e-6);
    let without = LayerNorm::new_no_bias(alpha, eps).forward(&xs)?;
    assert_values("no bias", &without.broadcast_add(&beta)?, &layer, 1e-6);
    Ok(())
}

fn norms_of_large_values(dev: &Device) -> Result<()> {
    // The squares of these overflow f16, not the f32 they are summed in.
    let xs = (Tensor::ones((1, 64), candle_core::DType::F16, dev)? * 1000.)?;
    let alpha = Tensor::ones(64, candle_core::DType::F16, dev)?;
    assert_values("rms", &rms_norm(&xs, &alpha, EPS)?, &[1.; 64], 1e-3);
    Ok(())
}

test_device!(added_norms);
test_device!(every_norm);
test_device!(norms_that_do_not_fit);
test_device!(gradients_of_norms);
test_device!(fused_norms);
test_device!(plain_norms);
test_device!(norm_values);
test_device!(norms_of_large_values);
test_device!(norms_of_very_long_rows);

candle_core::with_webgpu! {
    /// Rows that one binding does not reach are normed in parts.
    #[test]
    fn rows_past_a_binding_webgpu() -> Result<()> {
        let dev = super::common::small_bindings()?;
        let mut taken = Cases::new(&dev, 1);
        for (dtype, tolerance) in dtypes(&dev) {
            for dims in [&[1, 3001][..], &[3, 5000], &[2, 2, 2047]] {
                for (layout, xs) in layouts(dims, dtype, &dev)? {
                    if !taken.takes_next() {
                        continue;
                    }
                    let case = format!("{dtype:?} {dims:?} {layout}");
                    let [beta, alpha] = weights(&xs)?;
                    let [rx, ra, rb] = [reference(&xs)?, reference(&alpha)?, reference(&beta)?];
                    let rms = rms_norm_slow(&rx, &ra, EPS)?;
                    assert_close(&case, &rms_norm(&xs, &alpha, EPS)?, &rms, tolerance);
                    let got = layer_norm(&xs, &alpha, &beta, EPS)?;
                    let want = layer_norm_slow(&rx, &ra, &rb, EPS)?;
                    assert_close(&case, &got, &want, tolerance * 4.);
                    // The sum is rounded first, as by the kernel.
                    let (sum, got) = add_norm(&xs, &xs, Norm::rms(&alpha, EPS))?;
                    let want = rms_norm_slow(&reference(&sum)?, &ra, EPS)?;
                    assert_close(&case, &got, &want, tolerance);
                    if dtype == DType::F32 {
                        check_norms(&case, &xs, &(&xs * 0.5)?, tolerance)?;
                    }
                }
            }
        }
        Ok(())
    }
}
