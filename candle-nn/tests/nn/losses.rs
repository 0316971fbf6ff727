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
