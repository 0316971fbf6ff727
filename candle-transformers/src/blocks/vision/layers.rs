//! Layers of vision transformers over weights of any kind; those of [`VitBlock`](super::VitBlock) are dense.

use candle_core::{Result, Tensor};
use candle_nn::Activation;

use super::VitSpec;
use crate::blocks::encoder::{EncoderLayer, Heads, NormPlace, Seen};
use crate::blocks::{FeedForward, LinearSpec, NormSpec, Order, PlainMlp, Weights};

/// The names of a layer's parts in files. Queries, keys and values are one tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerNames {
    pub(crate) norm1: &'static str,
    pub(crate) qkv: &'static str,
    pub(crate) proj: &'static str,
    pub(crate) norm2: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

impl LayerNames {
    /// timm's.
    pub(crate) const TIMM: Self = Self {
        norm1: "norm1",
        qkv: "attn.qkv",
        proj: "attn.proj",
        norm2: "norm2",
        up: "mlp.fc1",
        down: "mlp.fc2",
    };
}

/// The `count` layers whose names begin with `prefix`, 0 and up; all parts have biases.
pub(crate) async fn load_layers(
    count: usize,
    spec: &VitSpec,
    activation: Activation,
    names: &LayerNames,
    weights: &mut Weights<'_>,
    prefix: &str,
) -> Result<Vec<EncoderLayer>> {
    let mut layers = Vec::new();
    for i in 0..count {
        let prefix = format!("{prefix}.{i}");
        layers.push(load_layer(spec, activation, names, weights, &prefix).await?);
    }
    Ok(layers)
}

async fn load_layer(
    spec: &VitSpec,
    activation: Activation,
    names: &LayerNames,
    weights: &mut Weights<'_>,
    prefix: &str,
) -> Result<EncoderLayer> {
    let (size, norm) = (spec.size, NormSpec::layer(spec.eps));
    let name = |part: &str| format!("{prefix}.{part}");
    let linear = |part, in_dim, out_dim| LinearSpec {
        name: name(part),
        in_dim,
        out_dim,
        bias: true,
    };
    let qkv = linear(names.qkv, size, 3 * size);
    let qkv = weights.joined(&qkv, [size; 3], Order::Layers).await?;
    let proj = linear(names.proj, size, size);
    let (up, down) = (
        linear(names.up, size, spec.inner),
        linear(names.down, spec.inner, size),
    );
    Ok(EncoderLayer {
        heads: Heads::new(qkv, spec.heads, size / spec.heads.max(1)),
        joined: weights.linear(&proj).await?,
        mlp: FeedForward::Plain(PlainMlp::new(
            weights.linear(&up).await?,
            weights.linear(&down).await?,
            activation,
        )),
        place: NormPlace::Before,
        norms: [
            Some(weights.norm(&name(names.norm1), size, norm).await?),
            Some(weights.norm(&name(names.norm2), size, norm).await?),
        ],
    })
}

/// Runs the layers in sequence, with full attention: (batch, tokens, size) to the same shape.
pub(crate) fn run_layers(layers: &[EncoderLayer], xs: Tensor) -> Result<Tensor> {
    let all = Seen::default();
    let mut layers = layers.iter();
    layers.try_fold(xs, |xs, layer| layer.forward(xs, &all))
}
