//! EfficientViT of Microsoft, with attention whose heads process groups of channels in a cascade: [arXiv
//! 2305.07027](https://arxiv.org/abs/2305.07027). Weight names are those of timm's `efficientvit_msra`.
//!
//! Batch norms are those of inference; they are folded into the convolutions unless the weights are variables. Images are (batch, 3,
//! height, width) of any size, commonly 224x224. The first stage's attention is within windows of 7x7; those at the border are padded with
//! zeros.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::efficientvit;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = efficientvit::efficientvit(&efficientvit::Config::m0(), 1000, vb)?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{ops::softmax_last_dim, Activation, Func, VarBuilder};

use crate::blocks::vision::{
    classifier, head, pooled, run_all, ConvNorm, ConvSpec, Picture, Shift, SqueezeExcite,
};

/// Sizes of a network.
#[derive(Clone)]
pub struct Config {
    channels: [usize; 3],
    depths: [usize; 3],
    heads: [usize; 3],
    /// Kernel sizes of the convolutions of the heads' queries.
    kernels: [usize; 4],
}

impl Config {
    fn new(
        channels: [usize; 3],
        depths: [usize; 3],
        heads: [usize; 3],
        kernels: [usize; 4],
    ) -> Self {
        Self {
            channels,
            depths,
            heads,
            kernels,
        }
    }

    /// EfficientViT-M0.
    pub fn m0() -> Self {
        Self::new([64, 128, 192], [1, 2, 3], [4, 4, 4], [5, 5, 5, 5])
    }

    /// EfficientViT-M1.
    pub fn m1() -> Self {
        Self::new([128, 144, 192], [1, 2, 3], [2, 3, 3], [7, 5, 3, 3])
    }

    /// EfficientViT-M2.
    pub fn m2() -> Self {
        Self::new([128, 192, 224], [1, 2, 3], [4, 3, 2], [7, 5, 3, 3])
    }

    /// EfficientViT-M3.
    pub fn m3() -> Self {
        Self::new([128, 240, 320], [1, 2, 3], [4, 3, 4], [5, 5, 5, 5])
    }

    /// EfficientViT-M4.
    pub fn m4() -> Self {
        Self::new([128, 256, 384], [1, 2, 3], [4, 4, 4], [7, 5, 3, 3])
    }

    /// EfficientViT-M5.
    pub fn m5() -> Self {
        Self::new([192, 288, 384], [1, 3, 4], [3, 3, 4], [7, 5, 3, 3])
    }
}

/// Channels of a head's queries and keys.
const KEY: usize = 16;
/// The side of the first stage's windows.
const WINDOW: usize = 7;
/// The sides of the attention windows, for images of 224x224.
const SIDES: [usize; 3] = [WINDOW, 7, 4];

/// A convolution at `conv` and its norm at `bn`.
fn unit(spec: ConvSpec, vb: VarBuilder) -> Result<ConvNorm> {
    spec.load_norm(vb.pp("conv"), vb.pp("bn"))
}

/// Two layers over channels, with a ReLU between.
fn mlp(channels: usize, vb: VarBuilder) -> Result<Step> {
    let expand = ConvSpec::new(channels, 2 * channels, 1);
    let project = ConvSpec::new(2 * channels, channels, 1);
    let expand = unit(expand, vb.pp("pw1"))?.then(Activation::Relu);
    Ok(Step::Convs(vec![expand, unit(project, vb.pp("pw2"))?]))
}

/// A depthwise convolution of the neighbours.
fn neighbours(channels: usize, vb: VarBuilder) -> Result<Step> {
    let conv = unit(ConvSpec::depthwise(channels, 3), vb)?;
    Ok(Step::Convs(vec![conv]))
}

struct Head {
    /// To queries, keys and values.
    qkv: ConvNorm,
    /// The convolution of the queries.
    neighbours: ConvNorm,
}

/// Heads that see a part of the channels each, and the result of the head before.
struct Cascade {
    heads: Vec<Head>,
    proj: ConvNorm,
    /// Whether attention is within windows.
    windows: bool,
    /// Added to the scores of each head, `(heads, places, places)`; not in all files.
    distances: Option<Tensor>,
}

/// From a table of `side * side` distances per head to the biases of the scores of all pairs of positions of a square.
fn each_pair(table: &Tensor, side: usize) -> Result<Tensor> {
    let (heads, places) = table.dims2()?;
    let row = |query: usize, key: usize| {
        let (down, right) = (
            (query / side).abs_diff(key / side),
            (query % side).abs_diff(key % side),
        );
        (down * side + right) as u32
    };
    let rows = (0..places * places).map(|i| row(i / places, i % places));
    let rows = Tensor::from_vec(rows.collect::<Vec<_>>(), places * places, table.device())?;
    table
        .index_select(&rows, 1)?
        .reshape((heads, places, places))
}

impl Cascade {
    fn load(cfg: &Config, stage: usize, vb: VarBuilder) -> Result<Self> {
        let (channels, count) = (cfg.channels[stage], cfg.heads[stage]);
        let part = channels / count;
        let heads = (0..count)
            .zip(cfg.kernels)
            .map(|(i, kernel)| -> Result<Head> {
                let qkv = ConvSpec::new(part, part + 2 * KEY, 1);
                Ok(Head {
                    qkv: unit(qkv, vb.pp("qkvs").pp(i))?,
                    neighbours: unit(ConvSpec::depthwise(KEY, kernel), vb.pp("dws").pp(i))?,
                })
            });
        let heads = heads.collect::<Result<_>>()?;
        let proj = ConvSpec::new(channels, channels, 1);
        let (side, name) = (SIDES[stage], "attention_biases");
        let distances = if vb.contains_tensor(name) {
            Some(each_pair(&vb.get((count, side * side), name)?, side)?)
        } else {
            None
        };
        Ok(Self {
            distances,
            heads,
            proj: unit(proj, vb.pp("proj").pp(1))?,
            windows: stage == 0,
        })
    }

    /// Attention between all positions of `xs`.
    fn attend(&self, xs: &Tensor) -> Result<Tensor> {
        let (_, _, rows, columns) = xs.dims4()?;
        if let Some(distances) = &self.distances {
            let places = distances.dim(1)?;
            if rows != columns || rows * columns != places {
                bail!(
                    "efficientvit: {rows} x {columns} places, but the file's attention_biases are for a square of {places}; pictures have to be 224x224"
                )
            }
        }
        let parts = xs.chunk(self.heads.len(), 1)?;
        let mut results: Vec<Tensor> = Vec::with_capacity(parts.len());
        for (i, (part, head)) in parts.iter().zip(&self.heads).enumerate() {
            let part = match results.last() {
                Some(before) => (part + before)?,
                None => part.contiguous()?,
            };
            let qkv = head.qkv.forward(&part)?;
            let q = head.neighbours.forward(&qkv.narrow(1, 0, KEY)?)?;
            let q = (q.flatten_from(2)? / (KEY as f64).sqrt())?;
            let k = qkv.narrow(1, KEY, KEY)?.flatten_from(2)?;
            let v = qkv.narrow(1, 2 * KEY, part.dim(1)?)?.flatten_from(2)?;
            let mut scores = q.transpose(1, 2)?.matmul(&k)?;
            if let Some(distances) = &self.distances {
                scores = scores.broadcast_add(&distances.get(i)?)?;
            }
            let weights = softmax_last_dim(&scores)?;
            let ys = v.matmul(&weights.transpose(1, 2)?)?;
            results.push(ys.reshape(part.shape())?);
        }
        self.proj.forward(&Tensor::cat(&results, 1)?.relu()?)
    }
}

impl Module for Cascade {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if !self.windows {
            return self.attend(xs);
        }
        let (b, c, h, w) = xs.dims4()?;
        let (rows, columns) = (h.div_ceil(WINDOW), w.div_ceil(WINDOW));
        let padded = xs.pad_with_zeros(2, 0, rows * WINDOW - h)?;
        let padded = padded.pad_with_zeros(3, 0, columns * WINDOW - w)?;
        let windows = padded.reshape(vec![b, c, rows, WINDOW, columns, WINDOW])?;
        let windows = windows.permute(vec![0, 2, 4, 1, 3, 5])?;
        let ys = self.attend(&windows.reshape((b * rows * columns, c, WINDOW, WINDOW))?)?;
        let ys = ys.reshape(vec![b, rows, columns, c, WINDOW, WINDOW])?;
        let ys = ys.permute(vec![0, 3, 1, 4, 2, 5])?;
        let ys = ys.reshape((b, c, rows * WINDOW, columns * WINDOW))?;
        ys.narrow(2, 0, h)?.narrow(3, 0, w)?.contiguous()
    }
}

/// A layer with a residual connection.
enum Step {
    Convs(Vec<ConvNorm>),
    Cascade(Cascade),
}

impl Module for Step {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Convs(convs) => run_all(convs, xs)? + xs,
            Self::Cascade(cascade) => cascade.forward(xs)? + xs,
        }
    }
}

/// Residuals of a block.
fn block(cfg: &Config, stage: usize, vb: VarBuilder) -> Result<Vec<Step>> {
    let channels = cfg.channels[stage];
    let cascade = vb.pp("mixer").pp("m").pp("attn");
    Ok(vec![
        neighbours(channels, vb.pp("dw0").pp("m"))?,
        mlp(channels, vb.pp("ffn0").pp("m"))?,
        Step::Cascade(Cascade::load(cfg, stage, cascade)?),
        neighbours(channels, vb.pp("dw1").pp("m"))?,
        mlp(channels, vb.pp("ffn1").pp("m"))?,
    ])
}

/// Halves an image's sides, between two pairs of residuals.
struct Smaller {
    before: Vec<Step>,
    convs: Vec<ConvNorm>,
    attention: SqueezeExcite,
    last: ConvNorm,
    behind: Vec<Step>,
}

impl Smaller {
    fn load(inputs: usize, outputs: usize, vb: VarBuilder) -> Result<Self> {
        let pair = |channels, vb: VarBuilder| -> Result<Vec<Step>> {
            Ok(vec![
                neighbours(channels, vb.pp(0).pp("m"))?,
                mlp(channels, vb.pp(1).pp("m"))?,
            ])
        };
        let (inner, merge, relu) = (4 * inputs, vb.pp("patchmerge"), Activation::Relu);
        let expand = ConvSpec::new(inputs, inner, 1);
        let halve = ConvSpec::depthwise(inner, 3).stride(2);
        Ok(Self {
            before: pair(inputs, vb.pp("res1"))?,
            convs: vec![
                unit(expand, merge.pp("conv1"))?.then(relu),
                unit(halve, merge.pp("conv2"))?.then(relu),
            ],
            attention: SqueezeExcite::load(inner, inner / 4, relu, &merge.pp("se"))?,
            last: unit(ConvSpec::new(inner, outputs, 1), merge.pp("conv3"))?,
            behind: pair(outputs, vb.pp("res2"))?,
        })
    }
}

impl Module for Smaller {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = run_all(&self.convs, &run_all(&self.before, xs)?)?;
        let xs = self.last.forward(&self.attention.forward(&xs)?)?;
        run_all(&self.behind, &xs)
    }
}

struct Stage {
    smaller: Option<Smaller>,
    steps: Vec<Step>,
}

impl Stage {
    fn load(cfg: &Config, stage: usize, vb: VarBuilder) -> Result<Self> {
        let smaller = match stage {
            0 => None,
            _ => {
                let (inputs, outputs) = (cfg.channels[stage - 1], cfg.channels[stage]);
                Some(Smaller::load(inputs, outputs, vb.pp("downsample"))?)
            }
        };
        let blocks = (0..cfg.depths[stage]).map(|i| block(cfg, stage, vb.pp("blocks").pp(i)));
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        Ok(Self {
            smaller,
            steps: blocks.into_iter().flatten().collect(),
        })
    }
}

impl Module for Stage {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match &self.smaller {
            Some(smaller) => run_all(&self.steps, &smaller.forward(xs)?),
            None => run_all(&self.steps, xs),
        }
    }
}

fn model(cfg: &Config, classes: Option<usize>, vb: VarBuilder) -> Result<Func<'static>> {
    let (first, last) = (cfg.channels[0], cfg.channels[2]);
    let (mut inputs, mut stem) = (3, Vec::new());
    for i in 1..=4 {
        let outputs = first >> (4 - i);
        let vb = vb.pp("patch_embed").pp(format!("conv{i}"));
        let conv = unit(ConvSpec::new(inputs, outputs, 3).stride(2), vb)?;
        stem.push(conv.maybe((i < 4).then_some(Activation::Relu)));
        inputs = outputs;
    }
    let stages = (0..3).map(|stage| Stage::load(cfg, stage, vb.pp("stages").pp(stage)));
    let stages = stages.collect::<Result<Vec<_>>>()?;
    let vb = vb.pp("head");
    let norm = match classes {
        Some(_) => Some(Shift::load(last, 1e-6, vb.pp("bn"))?),
        None => None,
    };
    let head = head(last, classes, vb.pp("linear"))?;
    Ok(classifier(Picture::any("efficientvit"), head, move |xs| {
        let features = pooled(&run_all(&stages, &run_all(&stem, xs)?)?)?;
        match &norm {
            Some(norm) => norm.forward(&features),
            None => Ok(features),
        }
    }))
}

/// A classifier: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// A weight is missing or has another shape. The model fails for images of another shape.
pub fn efficientvit(cfg: &Config, nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, Some(nclasses), vb)
}

/// [`efficientvit()`] without its last norm and layer: from images to features (batch, channels), the last stage's channels.
///
/// # Errors
/// Those of [`efficientvit()`].
pub fn efficientvit_no_final_layer(cfg: &Config, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, None, vb)
}
