//! A small network trained for some steps: gradients and optimisers. It has no layer norm with a bias and no maximum pooling: upstream
//! passes no gradient through the former, and a wrong one through the latter.

use crate::weights::{weight, Place};
use candle_core::{DType, ModuleT, Result, Tensor};
use candle_nn::{
    batch_norm, conv2d, layer_norm_no_bias, linear, loss, AdamW, BatchNorm, Conv2d, Conv2dConfig,
    LayerNorm, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, SGD,
};

struct Net {
    conv: Conv2d,
    batch_norm: BatchNorm,
    hidden: Linear,
    norm: LayerNorm,
    output: Linear,
}

impl Net {
    fn new(vb: VarBuilder) -> Result<Self> {
        let config = Conv2dConfig {
            padding: 1,
            ..Conv2dConfig::default()
        };
        Ok(Self {
            conv: conv2d(2, 4, 3, config, vb.pp("conv"))?,
            batch_norm: batch_norm(4, 1e-5, vb.pp("batch_norm"))?,
            hidden: linear(4 * 4 * 4, 16, vb.pp("hidden"))?,
            norm: layer_norm_no_bias(16, 1e-5, vb.pp("norm"))?,
            output: linear(16, 5, vb.pp("output"))?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.conv.forward(xs)?;
        let xs = self
            .batch_norm
            .forward_t(&xs, true)?
            .relu()?
            .avg_pool2d(2)?;
        let xs = self.hidden.forward(&xs.flatten_from(1)?)?.gelu()?;
        self.output.forward(&self.norm.forward(&xs)?)
    }
}

fn train<O: Optimizer>(place: &Place, make: impl Fn(&VarMap) -> Result<O>) -> Result<Vec<Tensor>> {
    let device = &place.device;
    let map = VarMap::new();
    let net = Net::new(VarBuilder::from_varmap(&map, DType::F32, device))?;
    for (name, var) in map.data().lock().expect("one thread").iter() {
        var.set(&weight(name, var.shape())?.to_device(device)?)?;
    }
    let images = place.input("images", (8, 2, 8, 8))?;
    let labels: Vec<_> = (0..8u32).map(|i| i * 3 % 5).collect();
    let labels = Tensor::new(labels, device)?;
    let mut optimiser = make(&map)?;
    let mut losses = Vec::new();
    for _ in 0..12 {
        let loss = loss::cross_entropy(&net.forward(&images)?, &labels)?;
        optimiser.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    Ok(vec![Tensor::new(losses, device)?, net.forward(&images)?])
}

/// In the order of their names: a map's order differs from run to run, and although `SGD` sums nothing over variables, a reader of the
/// losses should not have to know that.
fn variables(map: &VarMap) -> Vec<candle_core::Var> {
    let data = map.data().lock().expect("one thread");
    let mut named: Vec<_> = data.iter().collect();
    named.sort_by_key(|(name, _)| name.as_str());
    named.into_iter().map(|(_, var)| var.clone()).collect()
}

pub fn adam_w(place: &Place) -> Result<Vec<Tensor>> {
    train(place, |map| {
        let params = ParamsAdamW {
            lr: 0.01,
            ..ParamsAdamW::default()
        };
        AdamW::new(variables(map), params)
    })
}

pub fn sgd(place: &Place) -> Result<Vec<Tensor>> {
    train(place, |map| SGD::new(variables(map), 0.05))
}
