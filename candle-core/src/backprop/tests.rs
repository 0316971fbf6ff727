//! Tests of private parts: gradients of gradients, without the environment variable, which would affect the whole process.

use super::GradStore;
use crate::{Device, Result, Tensor, Var, D};

fn of(grads: &GradStore, var: &Var) -> Result<Vec<f64>> {
    match grads.get(var) {
        Some(grad) => grad.flatten_all()?.to_vec1(),
        None => crate::bail!("no gradient"),
    }
}

/// The second derivatives of elementwise functions agree with differences of the first derivatives.
#[test]
fn second_derivatives() -> Result<()> {
    type F = fn(&Tensor) -> Result<Tensor>;
    let functions: [(&str, F); 22] = [
        ("exp", |t| t.exp()),
        ("log", |t| t.log()),
        ("sin", |t| t.sin()),
        ("cos", |t| t.cos()),
        ("tanh", |t| t.tanh()),
        ("recip", |t| t.recip()),
        ("sqr", |t| t.sqr()),
        ("sqrt", |t| t.sqrt()),
        ("gelu", |t| t.gelu()),
        ("gelu_erf", |t| t.gelu_erf()),
        ("erf", |t| t.erf()),
        ("silu", |t| t.silu()),
        ("elu", |t| t.neg()?.elu(1.5)),
        ("powf", |t| t.powf(2.5)),
        ("x / exp(x)", |t| t / t.exp()),
        ("maximum", |t| t.sqr()?.maximum(&t.exp()?)),
        ("softmax", |t| {
            let e = t.exp()?;
            e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?.sqr()
        }),
        ("max", |t| t.sqr()?.max(0)),
        ("matmul", |t| t.t()?.contiguous()?.matmul(t)?.sqr()),
        ("narrow, cat", |t| {
            Tensor::cat(&[t.narrow(1, 1, 1)?, t.sqr()?], 1)?
                * Tensor::cat(&[t, &t.narrow(1, 0, 1)?], 1)?
        }),
        ("index_select", |t| {
            let ids = Tensor::new(&[1u32, 1, 0], t.device())?;
            t.index_select(&ids, 1)?.powf(3.)
        }),
        ("max_pool2d", |t| {
            t.reshape((1, 1, 2, 3))?
                .max_pool2d_with_stride(2, 1)?
                .powf(3.)
        }),
    ];
    const STEP: f64 = 1e-5;
    for (name, f) in functions {
        let at = [0.4, 1.3, 0.9, 0.7, 1.8, 1.1];
        let weights = Tensor::new(&[0.3, -0.8, 0.5, 0.9, -0.2, 0.6], &Device::Cpu)?;
        // The gradient of f, weighted so that elements differ.
        let first = |x: &Var, keep_graph: bool| -> Result<Tensor> {
            let grads = f(&x.reshape((2, 3))?)?
                .sum_all()?
                .backward_keeping(keep_graph)?;
            let grad = grads.get(x).cloned().unwrap_or(x.zeros_like()?);
            (grad * &weights)?.sum_all()
        };
        let x = Var::new(&at, &Device::Cpu)?;
        let got = of(&first(&x, true)?.backward()?, &x)?;
        for (i, got) in got.into_iter().enumerate() {
            let slope = |step: f64| {
                let mut at = at;
                at[i] += step;
                first(&Var::new(&at, &Device::Cpu)?, false)?.to_scalar::<f64>()
            };
            let want = (slope(STEP)? - slope(-STEP)?) / (2. * STEP);
            assert!(
                (got - want).abs() < 1e-6 * (1. + want.abs()),
                "{name}, {i}: {got}, not {want}"
            );
        }
    }
    Ok(())
}

#[test]
fn third_derivatives() -> Result<()> {
    let x = Var::new(2f64, &Device::Cpu)?;
    let mut y = x.powf(5.)?;
    for want in [80., 160., 240., 240., 120.] {
        let grads = y.backward_keeping(true)?;
        y = grads.get(&x).cloned().unwrap_or(x.zeros_like()?);
        assert_eq!(y.to_scalar::<f64>()?, want);
    }
    Ok(())
}
