//! Losses, against their formulas in f64.

use super::common::{assert_fails, assert_values, data};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::loss;

/// Inputs, targets, and both as pairs of numbers.
type Pairs = (Tensor, Tensor, Vec<(f64, f64)>);

fn pairs(dev: &Device) -> Result<Pairs> {
    let input = data(&[5, 7], DType::F32, dev)?;
    let target = (data(&[5, 8], DType::F32, dev)?.narrow(1, 1, 7)? * 0.3)?;
    let numbers = |t: &Tensor| {
        let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        t.flatten_all()?.to_vec1::<f64>()
    };
    let pairs = numbers(&input)?
        .into_iter()
        .zip(numbers(&target)?)
        .collect();
    Ok((input, target, pairs))
}

fn losses_of_pairs(dev: &Device) -> Result<()> {
    let (input, target, pairs) = pairs(dev)?;
    let mean = |f: &dyn Fn(f64, f64) -> f64| {
        [pairs.iter().map(|&(x, t)| f(x, t)).sum::<f64>() / pairs.len() as f64]
    };
    let expected = mean(&|x, t| (x - t) * (x - t));
    assert_values("mse", &loss::mse(&input, &target)?, &expected, 1e-5);
    let expected = mean(&|x, t| match (x - t).abs() {
        d if d <= 0.6 => 0.5 * d * d,
        d => 0.6 * (d - 0.3),
    });
    assert_values(
        "huber",
        &loss::huber(&input, &target, 0.6)?,
        &expected,
        1e-5,
    );
    let expected = mean(&|x, t| (1. + x.exp()).ln() - t * x);
    let got = loss::binary_cross_entropy_with_logit(&input, &target)?;
    assert_values("binary cross entropy", &got, &expected, 1e-5);
    Ok(())
}

fn losses_of_classes(dev: &Device) -> Result<()> {
    let input = data(&[4, 6], DType::F32, dev)?;
    let classes = [5u32, 0, 3, 3];
    let rows = input
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .to_vec2::<f64>()?;
    let mean = |f: &dyn Fn(&[f64], usize) -> f64| {
        let losses = rows
            .iter()
            .zip(classes)
            .map(|(row, class)| f(row, class as usize));
        [losses.sum::<f64>() / 4.]
    };
    let nll = mean(&|row, class| -row[class]);
    let cross_entropy = mean(&|row, class| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        sum.ln() - row[class]
    });
    for dtype in [DType::U32, DType::I64, DType::U8] {
        let target = Tensor::new(&classes, dev)?.to_dtype(dtype)?;
        assert_values("nll", &loss::nll(&input, &target)?, &nll, 1e-6);
        let got = loss::cross_entropy(&input, &target)?;
        assert_values("cross entropy", &got, &cross_entropy, 1e-6);
    }
    Ok(())
}

fn losses_that_do_not_fit(dev: &Device) -> Result<()> {
    let input = data(&[4, 6], DType::F32, dev)?;
    let target = Tensor::zeros(3, DType::U32, dev)?;
    assert_fails(loss::nll(&input, &target), &["4 inputs", "3 targets"]);
    assert_fails(loss::cross_entropy(&input.get(0)?, &target), &["[6]"]);
    assert_fails(loss::nll(&input, &input), &["[4, 6]"]);
    assert_fails(loss::mse(&input, &input.t()?), &["[4, 6]", "[6, 4]"]);
    assert_fails(loss::huber(&input, &input.t()?, 1.), &["[4, 6]", "[6, 4]"]);
    Ok(())
}

test_device!(losses_of_pairs);
test_device!(losses_of_classes);
test_device!(losses_that_do_not_fit);

/// Squares and sums that f16 cannot hold, of losses that it can.
fn losses_of_16_bits(dev: &Device) -> Result<()> {
    let f16 = |value: f32, dims: &[usize]| Tensor::full(value, dims, dev)?.to_dtype(DType::F16);
    let close = |got: Tensor, want: f32, what: &str| -> Result<()> {
        assert_eq!(got.dtype(), DType::F16, "{what}");
        let got = got.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        assert!(
            (got - want).abs() <= want.abs() * 2e-3,
            "{what}: {got} for {want}"
        );
        Ok(())
    };
    let n = 40_000;
    let (zeros, tens) = (f16(0., &[n])?, f16(10., &[n])?);
    close(loss::mse(&tens, &zeros)?, 100., "mse")?;
    close(loss::huber(&f16(300., &[n])?, &zeros, 1.)?, 299.5, "huber")?;
    let one_of = Tensor::cat(&[&f16(300., &[1])?, &f16(0., &[n - 1])?], 0)?;
    close(
        loss::mse(&one_of, &zeros)?,
        90_000. / n as f32,
        "mse of an outlier",
    )?;
    let bce = loss::binary_cross_entropy_with_logit(&tens, &zeros)?;
    close(bce, 10., "binary cross entropy")?;
    let classes = Tensor::zeros(n, DType::U32, dev)?;
    close(loss::nll(&f16(-10., &[n, 2])?, &classes)?, 10., "nll")?;
    let logits = Tensor::cat(&[&f16(0., &[n, 1])?, &f16(10., &[n, 1])?], 1)?;
    close(
        loss::cross_entropy(&logits, &classes)?,
        10.,
        "cross entropy",
    )?;
    // 70,000 equal exponentials.
    let share = candle_nn::ops::softmax(&f16(0., &[70_000])?, 0)?;
    let first = share.get(0)?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
    assert!((first * 70_000. - 1.).abs() < 2e-2, "{first}");
    Ok(())
}

test_device!(losses_of_16_bits);
