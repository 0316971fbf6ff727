//! A layer of a Conformer: attention that knows distances, a convolution, and half a feed-forward block before and behind them.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::ops::{act_mul, sdpa_with, GatedActivation, SdpaOptions};
use candle_nn::{Activation, Conv1d, Conv1dConfig, Init, Linear};

use super::EncoderConfig;
use crate::blocks::encoder::dtype_of_scores;
use crate::blocks::{LinearSpec, MergedLinear, Norm, NormSpec, PlainMlp, Projection, Weights};

const EPS: f64 = 1e-5;

/// The vectors of distances from `t - 1` down to `1 - t`: (1, 2 t - 1, hidden), the sines and cosines of each frequency interleaved.
pub(super) fn distances(t: usize, hidden: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let rows = (2 * t).saturating_sub(1);
    let value = |row: usize, i: usize| {
        let distance = t as f64 - 1. - row as f64;
        let frequency = 10_000f64.powf(-((i - i % 2) as f64) / hidden as f64);
        // Angles in f32, as the models were trained.
        let angle = distance as f32 * frequency as f32;
        if i.is_multiple_of(2) {
            angle.sin()
        } else {
            angle.cos()
        }
    };
    let values = (0..rows).flat_map(|row| (0..hidden).map(move |i| value(row, i)));
    let values: Vec<f32> = values.collect();
    Tensor::from_vec(values, (1, rows, hidden), device)?.to_dtype(dtype)
}

#[derive(Debug, Clone)]
struct Attention {
    qkv: MergedLinear<3>,
    output: Projection,
    /// The projection of the distances' vectors.
    relative: Projection,
    /// Added to queries for the keys, and for the distances: (1, heads, 1, head_dim) each.
    added: [Tensor; 2],
    heads: usize,
    head_dim: usize,
}

impl Attention {
    async fn load(
        config: &EncoderConfig,
        head_dim: usize,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<Self> {
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        let part = |name: &str, bias| LinearSpec {
            name: format!("{prefix}.{name}"),
            in_dim: hidden,
            out_dim: hidden,
            bias,
        };
        let bias = config.attention_bias;
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|name| part(name, bias));
        let mut added = Vec::new();
        for name in ["bias_u", "bias_v"] {
            let name = format!("{prefix}.{name}");
            let shape = [heads, head_dim];
            let tensor = weights.dense(&name, &shape, Init::Const(0.)).await?;
            added.push(tensor.reshape((1, heads, 1, head_dim))?);
        }
        let Ok(added) = <[Tensor; 2]>::try_from(added) else {
            bail!("parakeet: expected two biases of queries")
        };
        Ok(Self {
            qkv: weights.merged(qkv).await?,
            output: weights.linear(&part("o_proj", bias)).await?,
            relative: weights.linear(&part("relative_k_proj", false)).await?,
            added,
            heads,
            head_dim,
        })
    }

    fn split(&self, xs: &Tensor, heads: usize) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        xs.reshape((b, t, heads, self.head_dim))?.transpose(1, 2)
    }

    /// From (batch, t, hidden) to the same shape; `distances` are those of `t`.
    fn forward(&self, xs: &Tensor, distances: &Tensor) -> Result<Tensor> {
        let (heads, scale) = (self.heads, 1. / (self.head_dim as f64).sqrt());
        let qkv = self.split(&self.qkv.forward_joined(xs)?, 3 * heads)?;
        let part = |i: usize| qkv.narrow(1, i * heads, heads);
        let [to_keys, to_distances] = &self.added;
        let q = part(0)?;
        let relative = self.split(&self.relative.forward(distances)?, heads)?;
        let scores = q
            .broadcast_add(to_distances)?
            .broadcast_matmul(&relative.transpose(2, 3)?)?;
        let scores = by_key(&scores)?.to_dtype(dtype_of_scores(xs.dtype()))?;
        let scores = (scores * scale)?;
        let options = SdpaOptions {
            scale: scale as f32,
            bias: Some(&scores),
            ..SdpaOptions::default()
        };
        let q = q.broadcast_add(to_keys)?;
        let ys = sdpa_with(&q, &part(1)?, &part(2)?, &options)?;
        let (b, _, t, _) = ys.dims4()?;
        let ys = ys.transpose(1, 2)?.reshape((b, t, heads * self.head_dim))?;
        self.output.forward(&ys)
    }
}

/// From the scores of distances, (b, heads, t, 2 t - 1), to those of keys, (b, heads, t, t): query `i` has key `j` at `t - 1 - i + j`. With a
/// column before them, rows of `2 t` read as rows of `t` are shifted by one for each query.
fn by_key(scores: &Tensor) -> Result<Tensor> {
    let (b, heads, t, distances) = scores.dims4()?;
    scores
        .pad_with_zeros(3, 1, 0)?
        .reshape((b, heads, distances + 1, t))?
        .narrow(2, 1, distances)?
        .contiguous()?
        .reshape((b, heads, t, distances))?
        .narrow(3, 0, t)?
        .contiguous()
}

/// A gated linear layer, a convolution of each channel with its norm, an activation, and a linear layer.
#[derive(Debug, Clone)]
struct Convolution {
    into: Projection,
    by_channel: Conv1d,
    activation: Activation,
    out: Projection,
}

/// The bias of a convolution, if it has one.
async fn bias_of(
    weights: &mut Weights<'_>,
    (has, dtype): (bool, DType),
    name: &str,
    size: usize,
) -> Result<Option<Tensor>> {
    let name = format!("{name}.bias");
    if has {
        let (shape, init) = ([size], Init::Const(0.));
        let bias = weights.dense_as(dtype, &name, &shape, init).await?;
        Ok(Some(bias))
    } else {
        Ok(None)
    }
}

impl Convolution {
    async fn load(config: &EncoderConfig, weights: &mut Weights<'_>, prefix: &str) -> Result<Self> {
        let (hidden, size) = (config.hidden_size, config.conv_kernel_size);
        let (has_bias, dtype) = (config.convolution_bias, weights.dtype());
        let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        let mut points = Vec::new();
        for (name, outputs) in [("pointwise_conv1", 2 * hidden), ("pointwise_conv2", hidden)] {
            let name = format!("{prefix}.{name}");
            let weight = format!("{name}.weight");
            let weight = weights.dense(&weight, &[outputs, hidden, 1], init).await?;
            let bias = bias_of(weights, (has_bias, dtype), &name, outputs).await?;
            points.push(Projection::from(Linear::new(weight.squeeze(2)?, bias)));
        }
        // The norm of trained models is a factor and a summand for each channel, which become the convolution's.
        let wide = DType::F32;
        let mut of_norm = Vec::new();
        for (part, value) in [
            ("weight", 1.),
            ("bias", 0.),
            ("running_mean", 0.),
            ("running_var", 1.),
        ] {
            let name = format!("{prefix}.norm.{part}");
            let (shape, init) = ([hidden], Init::Const(value));
            of_norm.push(weights.dense_as(wide, &name, &shape, init).await?);
        }
        let [weight, bias, mean, variance] = of_norm.as_slice() else {
            bail!("parakeet: expected four tensors of a norm")
        };
        let factor = (weight / (variance + EPS)?.sqrt()?)?;
        let name = format!("{prefix}.depthwise_conv");
        let kernel = format!("{name}.weight");
        let shape = [hidden, 1, size];
        let kernel = weights.dense_as(wide, &kernel, &shape, init).await?;
        let kernel = kernel.broadcast_mul(&factor.reshape((hidden, 1, 1))?)?;
        let mean = match bias_of(weights, (has_bias, wide), &name, hidden).await? {
            Some(of_kernel) => (mean - of_kernel)?,
            None => mean.clone(),
        };
        let summand = (bias - (mean * factor)?)?;
        let moves = Conv1dConfig {
            padding: (size - 1) / 2,
            groups: hidden,
            ..Conv1dConfig::default()
        };
        let (kernel, summand) = (kernel.to_dtype(dtype)?, summand.to_dtype(dtype)?);
        let out = points.pop();
        let (Some(into), Some(out)) = (points.pop(), out) else {
            bail!("parakeet: expected two linear layers of a convolution")
        };
        Ok(Self {
            into,
            by_channel: Conv1d::new(kernel, Some(summand), moves),
            activation: config.hidden_act,
            out,
        })
    }

    /// From (batch, t, hidden) to the same shape.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let both = self.into.forward(xs)?;
        let hidden = both.dim(2)? / 2;
        let (values, gate) = (both.narrow(2, 0, hidden)?, both.narrow(2, hidden, hidden)?);
        let ys = act_mul(&gate, &values, GatedActivation::Sigmoid)?;
        let ys = self
            .by_channel
            .forward(&ys.transpose(1, 2)?.contiguous()?)?;
        let ys = self
            .activation
            .forward(&ys)?
            .transpose(1, 2)?
            .contiguous()?;
        self.out.forward(&ys)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Layer {
    mlps: [(Norm, PlainMlp); 2],
    attention: (Norm, Attention),
    convolution: (Norm, Convolution),
    norm: Norm,
}

impl Layer {
    pub(super) async fn load(
        config: &EncoderConfig,
        head_dim: usize,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<Self> {
        let (hidden, inner, bias) = (
            config.hidden_size,
            config.intermediate_size,
            config.attention_bias,
        );
        let spec = NormSpec::layer(EPS);
        let mut mlps = Vec::new();
        for i in 1..=2 {
            let part = |name: &str, in_dim, out_dim| LinearSpec {
                name: format!("{prefix}.feed_forward{i}.{name}"),
                in_dim,
                out_dim,
                bias,
            };
            let up = weights.linear(&part("linear1", hidden, inner)).await?;
            let down = weights.linear(&part("linear2", inner, hidden)).await?;
            let norm = format!("{prefix}.norm_feed_forward{i}");
            let norm = weights.norm(&norm, hidden, spec).await?;
            mlps.push((norm, PlainMlp::new(up, down, config.hidden_act)));
        }
        let Ok(mlps) = <[(Norm, PlainMlp); 2]>::try_from(mlps) else {
            bail!("parakeet: expected two feed-forward blocks")
        };
        let attention = format!("{prefix}.self_attn");
        let convolution = format!("{prefix}.conv");
        let [of_attention, of_convolution, last] =
            ["norm_self_att", "norm_conv", "norm_out"].map(|name| format!("{prefix}.{name}"));
        Ok(Self {
            mlps,
            attention: (
                weights.norm(&of_attention, hidden, spec).await?,
                Attention::load(config, head_dim, weights, &attention).await?,
            ),
            convolution: (
                weights.norm(&of_convolution, hidden, spec).await?,
                Convolution::load(config, weights, &convolution).await?,
            ),
            norm: weights.norm(&last, hidden, spec).await?,
        })
    }

    /// From (batch, t, hidden) to the same shape; `distances` are those of `t`.
    pub(super) fn forward(&self, xs: &Tensor, distances: &Tensor) -> Result<Tensor> {
        let half = |xs: &Tensor, (norm, mlp): &(Norm, PlainMlp)| -> Result<Tensor> {
            let ys = mlp.forward(&norm.forward(xs)?)?;
            xs + (ys * 0.5)?
        };
        let [first, second] = &self.mlps;
        let xs = half(xs, first)?;
        let (norm, attention) = &self.attention;
        let xs = (&xs + attention.forward(&norm.forward(&xs)?, distances)?)?;
        let (norm, convolution) = &self.convolution;
        let xs = (&xs + convolution.forward(&norm.forward(&xs)?)?)?;
        self.norm.forward(&half(&xs, second)?)
    }
}
