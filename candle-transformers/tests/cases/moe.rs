//! A mixture of experts against plain loops; `quantized_llama` has it in a model.

use candle_core::quantized::QMatMul;
use candle_core::{test_device, Device, Module, Result, Tensor};
use candle_nn::ops::GatedActivation;
use candle_transformers::blocks::{Projection, Routing, SparseMoe};

use super::support::{assert_close, Numbers};

/// The router's choice and the sum of experts, in plain loops over one token.
fn plain_moe(x: &Tensor, router: &Tensor, experts: &[[Tensor; 3]], used: usize) -> Result<Tensor> {
    let linear = |w: &Tensor, x: &Tensor| x.matmul(&w.t()?);
    let logits = linear(router, x)?.squeeze(0)?.to_vec1::<f32>()?;
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let sum: f32 = order[..used].iter().map(|e| logits[*e].exp()).sum();
    let mut out = x.zeros_like()?;
    for &e in &order[..used] {
        let [gate, up, down] = &experts[e];
        let inner = (candle_nn::ops::silu(&linear(gate, x)?)? * linear(up, x)?)?;
        out = (out + (linear(down, &inner)? * f64::from(logits[e].exp() / sum))?)?;
    }
    Ok(out)
}

fn mixture_of_experts(device: &Device) -> Result<()> {
    let (hidden, inner, count, used) = (16, 24, 5, 2);
    let mut numbers = Numbers::new(23);
    let router = numbers.tensor(&[count, hidden], 1., device)?;
    let mut experts = Vec::new();
    for _ in 0..count {
        experts.push([
            numbers.tensor(&[inner, hidden], 1., device)?,
            numbers.tensor(&[inner, hidden], 1., device)?,
            numbers.tensor(&[hidden, inner], 1., device)?,
        ]);
    }
    let stacked = |i: usize| {
        let parts: Vec<_> = experts.iter().map(|e| &e[i]).collect();
        Tensor::stack(&parts, 0).map(QMatMul::Tensor)
    };
    let moe = SparseMoe::new(
        Projection::new(QMatMul::Tensor(router.clone()), None),
        [stacked(0)?, stacked(1)?, stacked(2)?],
        GatedActivation::Silu,
        Routing::softmax(used, true),
    )?;
    let xs = numbers.tensor(&[2, 3, hidden], 1., device)?;
    let ys = moe.forward(&xs)?;
    for b in 0..2 {
        for t in 0..3 {
            let x = xs.get(b)?.narrow(0, t, 1)?;
            let expected = plain_moe(&x, &router, &experts, used)?;
            assert_close(&ys.get(b)?.narrow(0, t, 1)?, &expected, 1e-5);
        }
    }
    Ok(())
}
test_device!(mixture_of_experts);
