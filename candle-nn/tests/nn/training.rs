//! Training on a device reaches the losses of the CPU, step by step.

use super::common::data;
use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::{
    embedding, linear, linear_no_bias, loss, ops, rms_norm, rotary_emb, AdamW, Embedding, Linear,
    Optimizer, ParamsAdamW, RmsNorm, VarBuilder, VarMap, SGD,
};

const STEPS: usize = 50;

/// For a loss of about 1: 50 steps of rounding, each amplified by the next.
const TOLERANCE: f64 = 1e-3;

/// Variables with values that depend on their names alone, the same on every device. Ones stay ones, and biases zeros.
fn reproducible(map: &VarMap) -> Result<()> {
    for (name, var) in map.data().lock().unwrap().iter() {
        if var.rank() < 2 {
            continue;
        }
        // Different numbers for matrices of the same shape.
        let seed: usize = name.bytes().map(usize::from).sum::<usize>() % 97;
        let count = var.elem_count();
        let values = data(&[count + seed], DType::F32, &Device::Cpu)?.narrow(0, seed, count)?;
        let inputs = var.dims()[1] as f64;
        let values = (values.reshape(var.shape())? * (0.5 / inputs.sqrt()))?;
        var.set(&values.to_device(var.device())?)?;
    }
    Ok(())
}

/// The losses of `STEPS` steps of one batch.
fn losses<O: Optimizer>(
    map: &VarMap,
    config: O::Config,
    loss: impl Fn() -> Result<Tensor>,
) -> Result<Vec<f32>> {
    reproducible(map)?;
    let mut optimizer = O::new(map.all_vars(), config)?;
    let mut losses = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let loss = loss()?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    Ok(losses)
}

/// Asserts the same losses on `dev` as on the CPU, and that they came down to `goal` of the first.
fn same_as_cpu(dev: &Device, goal: f32, train: impl Fn(&Device) -> Result<Vec<f32>>) -> Result<()> {
    let expected = train(&Device::Cpu)?;
    let (first, last) = (expected[0], expected[STEPS - 1]);
    assert!(last < goal * first, "no training: {first} to {last}");
    for (step, (got, expected)) in train(dev)?.into_iter().zip(expected).enumerate() {
        let difference = f64::from((got - expected).abs());
        assert!(
            difference <= TOLERANCE,
            "step {step}: a loss of {got}, on the CPU {expected}"
        );
    }
    Ok(())
}

/// Two layers over 32 hidden units, five classes.
fn mlp<O: Optimizer>(dev: &Device, config: O::Config) -> Result<Vec<f32>> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, dev);
    let (up, down) = (linear(16, 32, vb.pp("up"))?, linear(32, 5, vb.pp("down"))?);
    for name in ["up.bias", "down.bias"] {
        let var = map.data().lock().unwrap()[name].clone();
        var.set(&var.zeros_like()?)?;
    }
    let xs = data(&[24, 16], DType::F32, dev)?;
    let labels: Vec<u32> = (0..24).map(|i| i * 7 % 5).collect();
    let labels = Tensor::new(labels, dev)?;
    losses::<O>(&map, config, || {
        let ys = down.forward(&up.forward(&xs)?.gelu()?)?;
        loss::cross_entropy(&ys, &labels)
    })
}

const HIDDEN: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const VOCABULARY: usize = 40;
const SEQ: usize = 12;

/// A layer of Llama, <https://arxiv.org/abs/2302.13971>: attention over grouped heads and a gated MLP, each after a norm.
struct Layer {
    norm: RmsNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(vb: VarBuilder) -> Result<Self> {
        let (head_dim, inner) = (HIDDEN / HEADS, 2 * HIDDEN);
        let linear = |inputs, outputs, name| linear_no_bias(inputs, outputs, vb.pp(name));
        Ok(Self {
            norm: rms_norm(HIDDEN, 1e-5, vb.pp("norm"))?,
            q: linear(HIDDEN, HIDDEN, "q")?,
            k: linear(HIDDEN, KV_HEADS * head_dim, "k")?,
            v: linear(HIDDEN, KV_HEADS * head_dim, "v")?,
            o: linear(HIDDEN, HIDDEN, "o")?,
            mlp_norm: rms_norm(HIDDEN, 1e-5, vb.pp("mlp_norm"))?,
            gate: linear(HIDDEN, inner, "gate")?,
            up: linear(HIDDEN, inner, "up")?,
            down: linear(inner, HIDDEN, "down")?,
        })
    }

    fn forward(&self, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let (batch, seq, _) = xs.dims3()?;
        let head_dim = HIDDEN / HEADS;
        let heads =
            |t: Tensor, count: usize| t.reshape((batch, seq, count, head_dim))?.transpose(1, 2);
        let normed = self.norm.forward(xs)?;
        let q = rotary_emb::rope(&heads(self.q.forward(&normed)?, HEADS)?, cos, sin)?;
        let k = rotary_emb::rope(&heads(self.k.forward(&normed)?, KV_HEADS)?, cos, sin)?;
        let v = heads(self.v.forward(&normed)?, KV_HEADS)?;
        let scale = 1. / (head_dim as f32).sqrt();
        let attended = ops::sdpa(&q, &k, &v, None, true, scale, 1.)?;
        let attended = attended.transpose(1, 2)?.reshape((batch, seq, HIDDEN))?;
        let xs = (xs + self.o.forward(&attended)?)?;
        let normed = self.mlp_norm.forward(&xs)?;
        let inner = ops::act_mul(
            &self.gate.forward(&normed)?,
            &self.up.forward(&normed)?,
            ops::GatedActivation::Silu,
        )?;
        xs + self.down.forward(&inner)?
    }
}

struct Llama {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Llama {
    fn new(vb: VarBuilder) -> Result<Self> {
        let half = HIDDEN / HEADS / 2;
        let angle = |i: usize| {
            let (position, pair) = ((i / half) as f32, (i % half) as f32);
            position * 10_000f32.powf(-pair / half as f32)
        };
        let angles: Vec<f32> = (0..SEQ * half).map(angle).collect();
        let angles = Tensor::from_vec(angles, (SEQ, half), &Device::Cpu)?;
        let layer = |i: usize| Layer::new(vb.pp("layers").pp(i));
        Ok(Self {
            embedding: embedding(VOCABULARY, HIDDEN, vb.pp("embedding"))?,
            layers: (0..2).map(layer).collect::<Result<_>>()?,
            norm: rms_norm(HIDDEN, 1e-5, vb.pp("norm"))?,
            head: linear_no_bias(HIDDEN, VOCABULARY, vb.pp("head"))?,
            cos: angles.cos()?.to_device(vb.device())?,
            sin: angles.sin()?.to_device(vb.device())?,
        })
    }

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let embedded = self.embedding.forward(ids)?;
        let xs = self.layers.iter().try_fold(embedded, |xs, layer| {
            layer.forward(&xs, &self.cos, &self.sin)
        })?;
        self.head.forward(&self.norm.forward(&xs)?)
    }
}

fn llama<O: Optimizer>(dev: &Device, config: O::Config) -> Result<Vec<f32>> {
    let map = VarMap::new();
    let model = Llama::new(VarBuilder::from_varmap(&map, DType::F32, dev))?;
    // Each token is predicted from those before it.
    let ids: Vec<u32> = (0..2 * (SEQ as u32 + 1))
        .map(|i| i * i * 7 % VOCABULARY as u32)
        .collect();
    let ids = Tensor::from_vec(ids, (2, SEQ + 1), dev)?;
    let targets = ids.narrow(1, 1, SEQ)?.flatten_all()?;
    let inputs = ids.narrow(1, 0, SEQ)?.contiguous()?;
    losses::<O>(&map, config, || {
        loss::cross_entropy(&model.forward(&inputs)?.flatten_to(1)?, &targets)
    })
}

fn adam_w(lr: f64) -> ParamsAdamW {
    ParamsAdamW {
        lr,
        ..Default::default()
    }
}

fn mlp_by_adam_w(dev: &Device) -> Result<()> {
    same_as_cpu(dev, 0.5, |dev| mlp::<AdamW>(dev, adam_w(0.01)))
}

fn mlp_by_sgd(dev: &Device) -> Result<()> {
    same_as_cpu(dev, 0.9, |dev| mlp::<SGD>(dev, 0.1))
}

fn llama_by_adam_w(dev: &Device) -> Result<()> {
    same_as_cpu(dev, 0.5, |dev| llama::<AdamW>(dev, adam_w(0.003)))
}

fn llama_by_sgd(dev: &Device) -> Result<()> {
    same_as_cpu(dev, 0.9, |dev| llama::<SGD>(dev, 0.1))
}

test_device!(mlp_by_adam_w);
test_device!(mlp_by_sgd);
test_device!(llama_by_adam_w);
test_device!(llama_by_sgd);
