//! Hiera, a vision transformer in four stages without convolutions between them: [arXiv 2306.00989](https://arxiv.org/abs/2306.00989).
//! Weight names are timm's; images are 224x224.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::hiera::{hiera, Config};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let config: Config = serde_json::from_str(r#"{ "channels": 4, "heads": 1, "stages": [1, 1, 1, 1] }"#)?;
//! let device = Device::Cpu;
//! // A real model: `let config = Config::tiny()` and VarBuilder::from_mmaped_safetensors.
//! let model = hiera(&config, 1000, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Device, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{layer_norm, linear, Conv2d, Func, LayerNorm, Linear, VarBuilder};
use serde::Deserialize;

use crate::blocks::vision::{classifier, mean, ConvSpec, Picture, VitMlp, VitSpec};

const EPS: f64 = 1e-6;
/// The side of an image in pixels, and in tokens of the first stage.
const IMAGE: usize = 224;
const SIDE: usize = 56;
/// Number of halvings between the first stage and the last, and number of a stage's tokens that become one token of the next.
const HALVINGS: usize = 3;
const JOINED: usize = 4;
/// Tokens of a window in the first stage.
const WINDOW: usize = JOINED.pow(HALVINGS as u32);
/// The first stages, in which attention is within windows.
const WINDOWED: usize = 2;

/// The numbers of a model.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Size of a token in the first stage; each stage doubles it.
    channels: usize,
    /// Heads in the first stage; each stage doubles them.
    heads: usize,
    /// Blocks of each stage.
    stages: [usize; 4],
}

impl Config {
    fn new(channels: usize, heads: usize, stages: [usize; 4]) -> Self {
        Self {
            channels,
            heads,
            stages,
        }
    }

    /// Hiera-T.
    pub fn tiny() -> Self {
        Self::new(96, 1, [1, 2, 7, 2])
    }

    /// Hiera-S.
    pub fn small() -> Self {
        Self::new(96, 1, [1, 2, 11, 2])
    }

    /// Hiera-B.
    pub fn base() -> Self {
        Self::new(96, 1, [2, 3, 16, 3])
    }

    /// Hiera-B+.
    pub fn base_plus() -> Self {
        Self::new(112, 2, [2, 3, 16, 3])
    }

    /// Hiera-L.
    pub fn large() -> Self {
        Self::new(144, 2, [2, 6, 36, 4])
    }

    /// Hiera-H.
    pub fn huge() -> Self {
        Self::new(256, 4, [2, 6, 36, 4])
    }
}

/// Patches that overlap, with positions, in the order in which the stages join them.
#[derive(Debug, Clone)]
struct Embeddings {
    patches: Conv2d,
    positions: Tensor,
    /// The token at each index.
    order: Tensor,
}

impl Embeddings {
    fn load(channels: usize, vb: VarBuilder) -> Result<Self> {
        let patches = ConvSpec::new(3, channels, 7).stride(4);
        Ok(Self {
            patches: patches.load(vb.pp("patch_embed").pp("proj"))?,
            positions: vb.get((1, SIDE * SIDE, channels), "pos_embed")?,
            order: order(vb.device())?,
        })
    }
}

/// From (batch, 3, IMAGE, IMAGE) to (batch, SIDE * SIDE, channels).
impl Module for Embeddings {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.patches.forward(xs)?.flatten_from(2)?.transpose(1, 2)?;
        xs.broadcast_add(&self.positions)?
            .index_select(&self.order, 1)
    }
}

/// The tokens that the next stage joins are far apart in memory: first come all with an even row and an even column, then those with an
/// even row and an odd column, and so on; each of these parts is ordered so again, as often as there are halvings.
fn order(device: &Device) -> Result<Tensor> {
    let last = SIDE >> HALVINGS;
    let token = |place: usize| {
        let (mut row, mut column) = (place / last % last, place % last);
        let mut parts = place / (last * last);
        // The last part that was taken apart is the least in `parts`.
        for _ in 0..HALVINGS {
            (row, column) = (2 * row + parts / 2 % 2, 2 * column + parts % 2);
            parts /= 4;
        }
        (row * SIDE + column) as u32
    };
    let tokens: Vec<u32> = (0..SIDE * SIDE).map(token).collect();
    Tensor::from_vec(tokens, SIDE * SIDE, device)
}

/// Attention of the tokens of a window.
#[derive(Debug, Clone)]
struct Attention {
    qkv: Linear,
    proj: Linear,
    heads: usize,
    /// Number of tokens that become one.
    joined: usize,
    /// Tokens of a window behind that, if there are windows.
    window: Option<usize>,
}

/// The largest of each `n` tokens that belong together, which are as far apart as there are of them: from (.., n * tokens, size) to
/// (.., tokens, size).
fn largest_of(xs: &Tensor, n: usize) -> Result<Tensor> {
    let mut dims = xs.dims().to_vec();
    let at = dims.len() - 2;
    dims[at] /= n;
    dims.insert(at, n);
    xs.reshape(dims)?.max(at)
}

impl Module for Attention {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, tokens, _) = xs.dims3()?;
        let windows = match self.window {
            Some(window) => tokens / (self.joined * window),
            None => 1,
        };
        let qkv = self.qkv.forward(xs)?;
        let head_dim = qkv.dim(2)? / (3 * self.heads);
        // The tokens of a window are as far apart as there are windows.
        let qkv = qkv
            .reshape((b, tokens / windows, windows, 3 * self.heads, head_dim))?
            .permute((0, 2, 3, 1, 4))?
            .reshape((b * windows, 3 * self.heads, tokens / windows, head_dim))?;
        let part = |i| qkv.narrow(1, i * self.heads, self.heads);
        let q = match self.joined {
            1 => part(0)?,
            n => largest_of(&part(0)?, n)?,
        };
        let options = SdpaOptions {
            scale: 1. / (head_dim as f32).sqrt(),
            ..Default::default()
        };
        let ys = sdpa_with(&q, &part(1)?, &part(2)?, &options)?;
        let left = tokens / self.joined;
        let ys = ys
            .reshape((b, windows, self.heads, left / windows, head_dim))?
            .permute((0, 3, 1, 2, 4))?
            .reshape((b, left, self.heads * head_dim))?;
        self.proj.forward(&ys)
    }
}

#[derive(Debug, Clone)]
struct Block {
    norm1: LayerNorm,
    attention: Attention,
    /// To the size of the next stage.
    proj: Option<Linear>,
    norm2: LayerNorm,
    mlp: VitMlp,
}

impl Block {
    /// `inputs` is the size of the tokens that come in.
    fn load(
        spec: &VitSpec,
        inputs: usize,
        joined: usize,
        window: Option<usize>,
        vb: VarBuilder,
    ) -> Result<Self> {
        let (size, vb_attention) = (spec.size, vb.pp("attn"));
        let proj = || linear(inputs, size, vb.pp("proj"));
        Ok(Self {
            norm1: layer_norm(inputs, EPS, vb.pp("norm1"))?,
            attention: Attention {
                qkv: linear(inputs, 3 * size, vb_attention.pp("qkv"))?,
                proj: linear(size, size, vb_attention.pp("proj"))?,
                heads: spec.heads,
                joined,
                window,
            },
            proj: (inputs != size).then(proj).transpose()?,
            norm2: layer_norm(size, EPS, vb.pp("norm2"))?,
            mlp: VitMlp::load(spec, vb.pp("mlp"))?,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let normed = self.norm1.forward(xs)?;
        let xs = match &self.proj {
            Some(proj) => largest_of(&proj.forward(&normed)?, JOINED)?,
            None => xs.clone(),
        };
        let xs = (xs + self.attention.forward(&normed)?)?;
        let ys = self.mlp.forward(&self.norm2.forward(&xs)?)?;
        xs + ys
    }
}

fn load(cfg: &Config, nclasses: Option<usize>, vb: VarBuilder) -> Result<Func<'static>> {
    let embeddings = Embeddings::load(cfg.channels, vb.clone())?;
    let mut blocks = Vec::new();
    let mut inputs = cfg.channels;
    for (stage, count) in cfg.stages.into_iter().enumerate() {
        let spec = VitSpec::new(cfg.channels << stage, cfg.heads << stage, EPS);
        spec.head_dim("hiera")?;
        for i in 0..count {
            let joined = if stage > 0 && i == 0 { JOINED } else { 1 };
            // The block that joins tokens has the window of those before it.
            let windowed = stage < WINDOWED + usize::from(joined > 1);
            let window = windowed.then_some(WINDOW / JOINED.pow(stage as u32));
            let vb = vb.pp("blocks").pp(blocks.len());
            blocks.push(Block::load(&spec, inputs, joined, window, vb)?);
            inputs = spec.size;
        }
    }
    let size = cfg.channels << HALVINGS;
    let head = |classes| -> Result<_> {
        let vb = vb.pp("head");
        let norm = layer_norm(size, EPS, vb.pp("norm"))?;
        Ok((norm, linear(size, classes, vb.pp("fc"))?))
    };
    let head = nclasses.map(head).transpose()?;
    let picture = Picture {
        size: Some((IMAGE, IMAGE)),
        ..Picture::any("hiera")
    };
    let body = move |xs: &Tensor| {
        let mut blocks = blocks.iter();
        let xs = embeddings.forward(xs)?;
        let xs = blocks.try_fold(xs, |xs, block| block.forward(&xs))?;
        let xs = mean(&xs, |xs| xs.mean(1))?;
        match &head {
            Some((norm, classes)) => classes.forward(&norm.forward(&xs)?),
            None => Ok(xs),
        }
    };
    Ok(classifier(picture, None, body))
}

/// The model for `nclasses` classes, from images (batch, 3, 224, 224) to logits (batch, nclasses). Loads `patch_embed.proj`, `pos_embed`,
/// `blocks.N` and `head.{norm,fc}`.
///
/// # Errors
/// The heads do not divide the channels, or a weight is missing or has another shape; from the model, the images have another shape.
pub fn hiera(cfg: &Config, nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    load(cfg, Some(nclasses), vb)
}

/// The model without `head`, from images (batch, 3, 224, 224) to features (batch, 8 * channels).
///
/// # Errors
/// Those of [`hiera`].
pub fn hiera_no_final_layer(cfg: &Config, vb: VarBuilder) -> Result<Func<'static>> {
    load(cfg, None, vb)
}
