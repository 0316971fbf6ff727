//! Batch norm and group norm, against loops in f64.

use super::common::{assert_close, assert_fails, assert_values, data, dtypes, reference};
use candle_core::{test_device, DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{
    batch_norm, group_norm, BatchNorm, BatchNormConfig, GroupNorm, VarBuilder, VarMap,
};

const EPS: f64 = 1e-3;

/// The mean and the biased variance of `values`.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let square = |x: &f64| (x - mean) * (x - mean);
    (mean, values.iter().map(square).sum::<f64>() / n)
}

fn numbers(t: &Tensor) -> Result<Vec<f64>> {
    reference(t)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

fn batch_norm_in_training(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for dims in [
            vec![4, 3],
            vec![2, 3, 5],
            vec![3, 3, 2, 4],
            vec![1, 3, 7],
            vec![1, 3],
        ] {
            let xs = data(&dims, dtype, dev)?;
            let one = |value: f64| Tensor::ones(3, dtype, dev)? * value;
            let (weight, bias) = (data(&[3], dtype, dev)?, data(&[3], dtype, dev)?);
            let norm = BatchNorm::new_with_momentum(
                3,
                one(0.5)?,
                one(2.)?,
                weight.clone(),
                bias.clone(),
                EPS,
                0.25,
            )?;
            let got = norm.forward_t(&xs, true)?;
            assert_eq!(got.dtype(), dtype);
            let rows = xs.transpose(0, 1)?;
            let (weight, bias) = (numbers(&weight)?, numbers(&bias)?);
            let (mut expected, mut means, mut variances) = (vec![], vec![], vec![]);
            for c in 0..3 {
                let row = numbers(&rows.get(c)?)?;
                let (mean, variance) = moments(&row);
                let scale = weight[c] / (variance + EPS).sqrt();
                expected.extend(row.iter().map(|x| (x - mean) * scale + bias[c]));
                let n = row.len() as f64;
                means.push(0.75 * 0.5 + 0.25 * mean);
                variances.push(match row.len() {
                    // A single element has no unbiased variance to learn from.
                    1 => 2.,
                    _ => 0.75 * 2. + 0.25 * variance * n / (n - 1.),
                });
            }
            let case = format!("{dtype:?} {dims:?}");
            // Rounded after the norm, the scale and the shift; four elements' variance may be small.
            let tolerance = 8. * tolerance;
            assert_values(&case, &got.transpose(0, 1)?, &expected, tolerance);
            assert_values(&case, norm.running_mean(), &means, tolerance);
            assert_values(&case, norm.running_var(), &variances, tolerance);
        }
    }
    Ok(())
}

fn batch_norm_after_training(dev: &Device) -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, dev);
    let config = BatchNormConfig {
        momentum: 1.,
        ..EPS.into()
    };
    let norm = batch_norm(3, config, vb.clone())?;
    assert_values("fresh", norm.running_var(), &[1.; 3], 0.);
    let xs = data(&[64, 3, 5], DType::F32, dev)?;
    let trained = norm.forward_train(&xs)?;
    // With all of the momentum the running values are the batch's, but that its variance is unbiased: 320 elements to 319.
    let got = norm.forward_t(&xs, false)?;
    assert_close("evaluated", &got, &trained, 1e-2);
    // What the layer keeps is in the map of variables.
    let kept = map.data().lock().unwrap()["running_mean"].as_detached_tensor();
    assert_close("kept", &kept, norm.running_mean(), 0.);
    assert!(kept.abs()?.max(0)?.to_scalar::<f32>()? > 0.);

    let bare = BatchNorm::new_no_bias(3, kept, norm.running_var().detach(), EPS)?;
    assert!(bare.weight_and_bias().is_none());
    assert_close("without weights", &bare.forward_t(&xs, false)?, &got, 1e-6);
    Ok(())
}

fn batch_norm_errors(dev: &Device) -> Result<()> {
    let vb = VarBuilder::zeros(DType::F32, dev);
    assert_fails(batch_norm(3, -1., vb.clone()), &["eps", "-1"]);
    let config = BatchNormConfig {
        momentum: 1.5,
        ..Default::default()
    };
    assert_fails(batch_norm(3, config, vb.clone()), &["momentum", "1.5"]);
    let norm = batch_norm(3, 1e-5, vb)?;
    for dims in [vec![2, 4, 3], vec![3]] {
        let xs = data(&dims, DType::F32, dev)?;
        assert_fails(
            norm.forward_t(&xs, false),
            &["batch-norm", &format!("{dims:?}")],
        );
    }
    let none = Tensor::zeros((0, 3, 2), DType::F32, dev)?;
    assert_fails(norm.forward_t(&none, true), &["empty channels"]);
    let two = Tensor::zeros(2, DType::F32, dev)?;
    let three = Tensor::zeros(3, DType::F32, dev)?;
    assert_fails(
        BatchNorm::new_no_bias(3, three, two, 1e-5),
        &["running variance", "[2]"],
    );
    Ok(())
}

fn group_norm_values(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for (dims, groups) in [
            (vec![2, 4, 3], 2),
            (vec![1, 6, 2, 5], 3),
            (vec![2, 3, 4], 1),
            (vec![1, 4, 9], 4),
        ] {
            let channels = dims[1];
            let xs = data(&dims, dtype, dev)?;
            let (weight, bias) = (
                data(&[channels], dtype, dev)?,
                data(&[channels], dtype, dev)?,
            );
            let norm = GroupNorm::new(weight.clone(), bias.clone(), channels, groups, EPS)?;
            let got = norm.forward(&xs)?;
            let (weight, bias) = (numbers(&weight)?, numbers(&bias)?);
            let all = numbers(&xs)?;
            let (per_channel, per_group) =
                (all.len() / dims[0] / channels, all.len() / dims[0] / groups);
            let mut expected = vec![];
            for group in all.chunks(per_group) {
                let (mean, variance) = moments(group);
                for x in group {
                    let channel = expected.len() / per_channel % channels;
                    let normed = (x - mean) / (variance + EPS).sqrt();
                    expected.push(normed * weight[channel] + bias[channel]);
                }
            }
            assert_values(
                &format!("{dtype:?} {dims:?}"),
                &got,
                &expected,
                8. * tolerance,
            );
        }
    }
    let vb = VarBuilder::zeros(DType::F32, dev);
    assert_fails(
        group_norm(3, 4, EPS, vb.clone()),
        &["4 channels", "3 groups"],
    );
    let norm = group_norm(2, 4, EPS, vb)?;
    assert_fails(norm.forward(&data(&[2, 4], DType::F32, dev)?), &["[2, 4]"]);
    assert_fails(
        norm.forward(&data(&[2, 6, 2], DType::F32, dev)?),
        &["6 channels"],
    );
    let none = data(&[0, 4, 2], DType::F32, dev)?;
    assert_eq!(norm.forward(&none)?.dims(), &[0, 4, 2]);
    Ok(())
}

test_device!(batch_norm_in_training);
test_device!(batch_norm_after_training);
test_device!(batch_norm_errors);
test_device!(group_norm_values);
