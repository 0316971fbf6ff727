//! Optimisers, against their formulas in f64.

use super::common::assert_values;
use candle_core::{test_device, DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, SGD};

/// The gradient of `sum(x³)`, which differs from step to step.
fn slope(x: f64) -> f64 {
    3. * x * x
}

fn cubes(var: &Var) -> Result<Tensor> {
    (var.sqr()? * var.as_tensor())?.sum_all()
}

const START: [f64; 3] = [1.5, -0.5, 0.25];

fn variable(dev: &Device) -> Result<Var> {
    Var::from_tensor(
        &Tensor::new(&START, &Device::Cpu)?
            .to_dtype(DType::F32)?
            .to_device(dev)?,
    )
}

fn adam_w_values(dev: &Device) -> Result<()> {
    let params = ParamsAdamW {
        lr: 0.1,
        beta1: 0.8,
        beta2: 0.95,
        eps: 1e-6,
        weight_decay: 0.2,
    };
    let var = variable(dev)?;
    let unused = variable(dev)?;
    let mut optimizer = AdamW::new(vec![var.clone(), unused.clone()], params.clone())?;
    let mut expected = START.map(|x| (x, 0., 0.));
    for step in 1..=6 {
        // Half of the steps are shorter.
        if step == 4 {
            optimizer.set_learning_rate(0.05);
            assert_eq!(optimizer.learning_rate(), 0.05);
        }
        let lr = optimizer.params().lr;
        optimizer.backward_step(&cubes(&var)?)?;
        for (x, mean, square) in &mut expected {
            let grad = slope(*x);
            *mean = 0.8 * *mean + 0.2 * grad;
            *square = 0.95 * *square + 0.05 * grad * grad;
            let (mean, square) = (
                *mean / (1. - 0.8f64.powi(step)),
                *square / (1. - 0.95f64.powi(step)),
            );
            *x -= lr * 0.2 * *x + lr * mean / (square.sqrt() + 1e-6);
        }
        let values: Vec<f64> = expected.iter().map(|&(x, ..)| x).collect();
        assert_values(&format!("step {step}"), &var, &values, 1e-5);
    }
    assert_values("without a gradient", &unused, &START, 0.);
    Ok(())
}

fn sgd_values(dev: &Device) -> Result<()> {
    let (var, other) = (variable(dev)?, variable(dev)?);
    let mut optimizer = SGD::from_slice(&[&var], 0.1)?;
    optimizer.push(&other);
    let mut expected = START;
    for step in 0..4 {
        if step == 2 {
            optimizer.set_learning_rate(0.02);
        }
        let lr = optimizer.learning_rate();
        optimizer.backward_step(&(cubes(&var)? + cubes(&other)?)?)?;
        expected = expected.map(|x| x - lr * slope(x));
        assert_values(&format!("step {step}"), &var, &expected, 1e-5);
        assert_values(&format!("step {step}, pushed"), &other, &expected, 1e-5);
    }
    assert_eq!(optimizer.into_inner().len(), 2);
    Ok(())
}

/// Integers have no gradients, so nothing is kept for them.
fn only_floats_are_trained(dev: &Device) -> Result<()> {
    let ids = Var::from_tensor(&Tensor::new(&[1u32, 2], dev)?)?;
    let var = variable(dev)?;
    let vars = vec![ids, var.clone()];
    assert_eq!(SGD::new(vars.clone(), 0.1)?.into_inner().len(), 1);
    let mut optimizer = AdamW::new_lr(vars, 0.5)?;
    assert_eq!(optimizer.learning_rate(), 0.5);
    optimizer.backward_step(&cubes(&var)?)?;
    assert!(AdamW::empty(ParamsAdamW::default())?.params().weight_decay == 0.01);
    Ok(())
}

test_device!(adam_w_values);
test_device!(sgd_values);
test_device!(only_floats_are_trained);
