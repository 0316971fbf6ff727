//! SegFormer, a transformer that predicts a class for every position of an image: [arXiv 2105.15203](https://arxiv.org/abs/2105.15203).
//! Weight
//! names are those of Hugging Face's checkpoints.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::segformer::{Config, SemanticSegmentationModel};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A real model: its config.json, and VarBuilder::from_mmaped_safetensors.
//! let config: Config = serde_json::from_str(r#"{ "num_channels": 3, "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1],
//!     "hidden_sizes": [8, 16], "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
//!     "hidden_act": "gelu", "layer_norm_eps": 1e-6, "decoder_hidden_size": 16 }"#)?;
//! let device = Device::Cpu;
//! let model = SemanticSegmentationModel::new(&config, 150, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, 64, 96), DType::F32, &device)?;
//! // A quarter of the image's size.
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 150, 16, 24]);
//! # Ok(())
//! # }
//! ```

use std::collections::HashMap;

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{layer_norm, linear, Activation, Conv2d, LayerNorm, Linear, VarBuilder};
use serde::Deserialize;

use crate::blocks::vision::{heads, join_heads, mean, ConvNorm, ConvSpec, Picture, VitSpec};
use crate::blocks::MergedLinear;

/// The numbers of a `config.json`. Lists have a number for each stage.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Names of the classes by their numbers. The models do not use them.
    #[serde(default)]
    pub id2label: HashMap<String, String>,
    /// Channels of an image.
    pub num_channels: usize,
    /// Stages.
    pub num_encoder_blocks: usize,
    /// Layers.
    pub depths: Vec<usize>,
    /// Factor by which rows and columns of keys and values are reduced.
    pub sr_ratios: Vec<usize>,
    /// Size of a token.
    pub hidden_sizes: Vec<usize>,
    /// Height and width of a patch, in positions of the stage before.
    pub patch_sizes: Vec<usize>,
    /// Distance between patches, in positions of the stage before.
    pub strides: Vec<usize>,
    /// Heads, which divide the size of a token.
    pub num_attention_heads: Vec<usize>,
    /// Inner size of the feed-forward blocks, in sizes of a token.
    pub mlp_ratios: Vec<usize>,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Norm epsilon.
    pub layer_norm_eps: f64,
    /// Size of the features that the classes are made of.
    pub decoder_hidden_size: usize,
}

impl Config {
    fn check(&self) -> Result<()> {
        let stages = self.num_encoder_blocks;
        if stages == 0 {
            bail!("segformer config: num_encoder_blocks is 0; it must be at least 1")
        }
        for (name, list) in [
            ("depths", &self.depths),
            ("sr_ratios", &self.sr_ratios),
            ("hidden_sizes", &self.hidden_sizes),
            ("patch_sizes", &self.patch_sizes),
            ("strides", &self.strides),
            ("num_attention_heads", &self.num_attention_heads),
            ("mlp_ratios", &self.mlp_ratios),
        ] {
            if list.len() < stages {
                bail!(
                    "segformer config: {name} has {} numbers for {stages} stages (num_encoder_blocks)",
                    list.len()
                )
            }
        }
        Ok(())
    }
}

/// Tokens of an image, (batch, rows * columns, size), and its rows and columns.
struct Places {
    tokens: Tensor,
    at: [usize; 2],
}

/// From (batch, channels, height, width) to tokens.
fn places(xs: &Tensor) -> Result<Places> {
    let (_, _, rows, columns) = xs.dims4()?;
    Ok(Places {
        tokens: xs.flatten_from(2)?.transpose(1, 2)?,
        at: [rows, columns],
    })
}

/// From tokens to (batch, size, rows, columns).
fn picture(tokens: &Tensor, [rows, columns]: [usize; 2]) -> Result<Tensor> {
    let (b, _, size) = tokens.dims3()?;
    tokens.transpose(1, 2)?.reshape((b, size, rows, columns))
}

/// Attention of every position to all positions of a reduced image.
#[derive(Debug, Clone)]
struct Attention {
    query: Linear,
    /// The smaller image's convolution and norm, unless it is as large.
    reduced: Option<(Conv2d, LayerNorm)>,
    keys_and_values: MergedLinear<2>,
    proj: Linear,
    heads: usize,
}

impl Attention {
    fn load(spec: &VitSpec, ratio: usize, vb: VarBuilder) -> Result<Self> {
        let (size, vb_self) = (spec.size, vb.pp("self"));
        let part = |name| linear(size, size, vb_self.pp(name));
        let reduced = || -> Result<_> {
            let conv = ConvSpec::patches(size, size, ratio).load(vb_self.pp("sr"))?;
            Ok((conv, layer_norm(size, spec.eps, vb_self.pp("layer_norm"))?))
        };
        Ok(Self {
            query: part("query")?,
            reduced: (ratio > 1).then(reduced).transpose()?,
            keys_and_values: MergedLinear::new([part("key")?, part("value")?])?,
            proj: linear(size, size, vb.pp("output").pp("dense"))?,
            heads: spec.heads,
        })
    }

    fn forward(&self, xs: &Tensor, at: [usize; 2]) -> Result<Tensor> {
        let n = self.heads;
        let q = heads(&self.query.forward(xs)?, n)?;
        let seen = match &self.reduced {
            Some((conv, norm)) => {
                norm.forward(&places(&conv.forward(&picture(xs, at)?)?)?.tokens)?
            }
            None => xs.clone(),
        };
        let kv = heads(&self.keys_and_values.forward_joined(&seen)?, 2 * n)?;
        let options = SdpaOptions {
            scale: 1. / (q.dim(D::Minus1)? as f32).sqrt(),
            ..Default::default()
        };
        let ys = sdpa_with(&q, &kv.narrow(1, 0, n)?, &kv.narrow(1, n, n)?, &options)?;
        self.proj.forward(&join_heads(&ys)?)
    }
}

/// A feed-forward block with a depthwise convolution.
#[derive(Debug, Clone)]
struct MixMlp {
    up: Linear,
    neighbours: Conv2d,
    activation: Activation,
    down: Linear,
}

impl MixMlp {
    fn load(spec: &VitSpec, activation: Activation, vb: VarBuilder) -> Result<Self> {
        let (size, inner) = (spec.size, spec.inner);
        let neighbours = ConvSpec::new(inner, inner, 3).groups(inner);
        Ok(Self {
            up: linear(size, inner, vb.pp("dense1"))?,
            neighbours: neighbours.load(vb.pp("dwconv").pp("dwconv"))?,
            activation,
            down: linear(inner, size, vb.pp("dense2"))?,
        })
    }

    fn forward(&self, xs: &Tensor, at: [usize; 2]) -> Result<Tensor> {
        let inner = picture(&self.up.forward(xs)?, at)?;
        let inner = self.activation.forward(&self.neighbours.forward(&inner)?)?;
        self.down.forward(&places(&inner)?.tokens)
    }
}

#[derive(Debug, Clone)]
struct Layer {
    norm1: LayerNorm,
    attention: Attention,
    norm2: LayerNorm,
    mlp: MixMlp,
}

impl Layer {
    fn forward(&self, xs: &Tensor, at: [usize; 2]) -> Result<Tensor> {
        let xs = (xs + self.attention.forward(&self.norm1.forward(xs)?, at)?)?;
        let ys = self.mlp.forward(&self.norm2.forward(&xs)?, at)?;
        xs + ys
    }
}

/// Patches that overlap, layers, and a norm.
#[derive(Debug, Clone)]
struct Stage {
    patches: Conv2d,
    patches_norm: LayerNorm,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

impl Stage {
    fn load(config: &Config, i: usize, vb: VarBuilder) -> Result<Self> {
        let (size, eps) = (config.hidden_sizes[i], config.layer_norm_eps);
        let spec = VitSpec {
            size,
            heads: config.num_attention_heads[i],
            inner: size * config.mlp_ratios[i],
            eps,
        };
        spec.head_dim("segformer")?;
        let inputs = match i {
            0 => config.num_channels,
            _ => config.hidden_sizes[i - 1],
        };
        let (patch, stride) = (config.patch_sizes[i], config.strides[i]);
        if patch == 0 || stride == 0 {
            bail!("segformer config: stage {i} has patches of {patch} with stride {stride}; both must be at least 1")
        }
        let layer = |j| {
            let vb = vb.pp("block").pp(i).pp(j);
            Ok(Layer {
                norm1: layer_norm(size, eps, vb.pp("layer_norm_1"))?,
                attention: Attention::load(&spec, config.sr_ratios[i], vb.pp("attention"))?,
                norm2: layer_norm(size, eps, vb.pp("layer_norm_2"))?,
                mlp: MixMlp::load(&spec, config.hidden_act, vb.pp("mlp"))?,
            })
        };
        let vb_patches = vb.pp("patch_embeddings").pp(i);
        let patches = ConvSpec::new(inputs, size, patch).stride(stride);
        Ok(Self {
            patches: patches.load(vb_patches.pp("proj"))?,
            patches_norm: layer_norm(size, eps, vb_patches.pp("layer_norm"))?,
            layers: (0..config.depths[i]).map(layer).collect::<Result<_>>()?,
            norm: layer_norm(size, eps, vb.pp("layer_norm").pp(i))?,
        })
    }

    /// From (batch, channels, height, width).
    fn forward(&self, xs: &Tensor) -> Result<Places> {
        let Places { tokens, at } = places(&self.patches.forward(xs)?)?;
        let tokens = self.patches_norm.forward(&tokens)?;
        let mut layers = self.layers.iter();
        let tokens = layers.try_fold(tokens, |xs, layer| layer.forward(&xs, at))?;
        Ok(Places {
            tokens: self.norm.forward(&tokens)?,
            at,
        })
    }
}

#[derive(Debug, Clone)]
struct Encoder {
    stages: Vec<Stage>,
    channels: usize,
}

impl Encoder {
    fn load(config: &Config, vb: VarBuilder) -> Result<Self> {
        config.check()?;
        let stages = (0..config.num_encoder_blocks).map(|i| Stage::load(config, i, vb.clone()));
        Ok(Self {
            stages: stages.collect::<Result<_>>()?,
            channels: config.num_channels,
        })
    }

    /// The output of each stage.
    fn forward(&self, xs: &Tensor) -> Result<Vec<Places>> {
        let channels = self.channels;
        Picture {
            channels,
            ..Picture::any("segformer")
        }
        .check(xs)?;
        let mut all: Vec<Places> = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let result = match all.last() {
                Some(before) => stage.forward(&picture(&before.tokens, before.at)?)?,
                None => stage.forward(xs)?,
            };
            all.push(result);
        }
        Ok(all)
    }
}

/// The epsilon of the batch norm, which is independent of `layer_norm_eps`.
const BATCH_NORM_EPS: f64 = 1e-5;

/// The features of all stages as one image, and its classes.
#[derive(Debug, Clone)]
struct DecodeHead {
    /// For each stage.
    projections: Vec<Linear>,
    fuse: ConvNorm,
    classifier: Conv2d,
}

impl DecodeHead {
    fn load(config: &Config, num_labels: usize, vb: VarBuilder) -> Result<Self> {
        let (stages, size) = (config.num_encoder_blocks, config.decoder_hidden_size);
        let projection = |i| {
            let vb = vb.pp("linear_c").pp(i).pp("proj");
            linear(config.hidden_sizes[i], size, vb)
        };
        let (conv, norm) = (vb.pp("linear_fuse"), vb.pp("batch_norm"));
        let fuse = ConvSpec::new(size * stages, size, 1);
        let classifier = ConvSpec::new(size, num_labels, 1);
        Ok(Self {
            projections: (0..stages).map(projection).collect::<Result<_>>()?,
            fuse: fuse
                .load_norm_eps(BATCH_NORM_EPS, conv, norm)?
                .then(Activation::Relu),
            classifier: match vb.pp("classifier") {
                vb if vb.contains_tensor("bias") => classifier.load(vb)?,
                vb => classifier.load_no_bias(vb)?,
            },
        })
    }

    fn forward(&self, stages: &[Places]) -> Result<Tensor> {
        let Some(first) = stages.first() else {
            bail!("segformer: no stages")
        };
        let [rows, columns] = first.at;
        let features = stages.iter().zip(&self.projections).map(|(stage, proj)| {
            let features = picture(&proj.forward(&stage.tokens)?, stage.at)?;
            if stage.at == first.at {
                Ok(features)
            } else {
                features.upsample_bilinear2d(rows, columns, false)
            }
        });
        let mut features = features.collect::<Result<Vec<_>>>()?;
        features.reverse();
        let fused = self.fuse.forward(&Tensor::cat(&features, 1)?)?;
        self.classifier.forward(&fused)
    }
}

/// A model that predicts a class for every position of an image.
#[derive(Debug, Clone)]
pub struct SemanticSegmentationModel {
    encoder: Encoder,
    head: DecodeHead,
}

impl SemanticSegmentationModel {
    /// Loads `segformer.encoder` and `decode_head`.
    ///
    /// # Errors
    /// A list of the configuration is too short, heads do not divide a size, or a weight is missing or has another shape.
    pub fn new(config: &Config, num_labels: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            encoder: Encoder::load(config, vb.pp("segformer").pp("encoder"))?,
            head: DecodeHead::load(config, num_labels, vb.pp("decode_head"))?,
        })
    }
}

/// From images (batch, num_channels, height, width) to logits (batch, num_labels, rows, columns), the first stage's rows and columns:
/// with a stride of 4 a quarter of the height and width.
///
/// # Errors
/// The images have another shape or are too small, or have another dtype or device than the weights.
impl Module for SemanticSegmentationModel {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.encoder.forward(xs)?)
    }
}

/// A classifier of images.
#[derive(Debug, Clone)]
pub struct ImageClassificationModel {
    encoder: Encoder,
    classifier: Linear,
}

impl ImageClassificationModel {
    /// Loads `segformer.encoder` and `classifier`, whose input is of size `decoder_hidden_size`, as the last stage.
    ///
    /// # Errors
    /// A list of the configuration is too short, heads do not divide a size, or a weight is missing or has another shape.
    pub fn new(config: &Config, num_labels: usize, vb: VarBuilder) -> Result<Self> {
        let size = config.decoder_hidden_size;
        Ok(Self {
            encoder: Encoder::load(config, vb.pp("segformer").pp("encoder"))?,
            classifier: linear(size, num_labels, vb.pp("classifier"))?,
        })
    }
}

/// From images (batch, num_channels, height, width) to logits (batch, num_labels).
///
/// # Errors
/// The images have another shape or are too small, or have another dtype or device than the weights.
impl Module for ImageClassificationModel {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let stages = self.encoder.forward(xs)?;
        let Some(last) = stages.last() else {
            bail!("segformer: no stages")
        };
        self.classifier
            .forward(&mean(&last.tokens, |xs| xs.mean(1))?)
    }
}
