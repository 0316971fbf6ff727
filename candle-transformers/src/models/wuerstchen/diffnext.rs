//! The second stage, which makes the autoencoder's latents with the small ones of the prior: a UNet of blocks in the manner of ConvNeXt.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::{pixel_shuffle, pixel_unshuffle, sigmoid};
use candle_nn::{
    conv_transpose2d, linear, Conv2d, ConvTranspose2d, ConvTranspose2dConfig, Linear, VarBuilder,
};

use super::common::{
    check_times, times, AttnBlock, Channelwise, Gelu, LayerNormNoWeights, TimestepBlock, WLayerNorm,
};
use crate::blocks::vision::ConvSpec;

/// A residual block, whose second input comes in behind the convolution.
#[derive(Debug)]
pub struct ResBlockStageB {
    depthwise: Conv2d,
    norm: WLayerNorm,
    channelwise: Channelwise,
}

impl ResBlockStageB {
    /// Loads `depthwise` and `channelwise.{0,2,4}` for `c` channels and `c_skip` of a second input, with kernels of `ksize` by `ksize`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(c: usize, c_skip: usize, ksize: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            depthwise: ConvSpec::depthwise(c, ksize).load(vb.pp("depthwise"))?,
            norm: WLayerNorm::new(c)?,
            channelwise: Channelwise::load(c + c_skip, c, Gelu::Tanh, &vb)?,
        })
    }

    /// From (batch, c, height, width) to the same shape; `x_skip` is (batch, c_skip, height, width).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, x_skip: Option<&Tensor>) -> Result<Tensor> {
        let mut ys = self.norm.forward(&self.depthwise.forward(xs)?)?;
        if let Some(skip) = x_skip {
            ys = Tensor::cat(&[&ys, skip], 1)?;
        }
        self.channelwise.forward(&ys)? + xs
    }
}

/// The sizes of one level of a [`WDiffNeXt`]; each level has half the height and width of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiffNeXtLevel {
    /// Channels.
    pub channels: usize,
    /// Residual blocks on the way down, and as many on the way up.
    pub blocks: usize,
    /// Heads of the attention after each residual block, which divide the channels; the first level has no attention.
    pub heads: usize,
    /// Whether the blocks are given the small latents.
    pub inject_effnet: bool,
}

/// The levels of Würstchen.
const LEVELS: [DiffNeXtLevel; 4] = [
    level(320, 4, 1, false),
    level(640, 4, 10, true),
    level(1280, 14, 20, true),
    level(1280, 4, 20, true),
];

const fn level(channels: usize, blocks: usize, heads: usize, inject_effnet: bool) -> DiffNeXtLevel {
    DiffNeXtLevel {
        channels,
        blocks,
        heads,
        inject_effnet,
    }
}

/// Channels of the small latents.
const EFFNET: usize = 16;

#[derive(Debug)]
struct Block {
    residual: ResBlockStageB,
    time: TimestepBlock,
    attention: Option<AttnBlock>,
}

/// The conditions of the blocks.
struct Told<'a> {
    time: &'a Tensor,
    text: &'a Tensor,
}

impl Block {
    fn forward(&self, xs: &Tensor, skip: Option<&Tensor>, told: &Told<'_>) -> Result<Tensor> {
        let xs = self.residual.forward(xs, skip)?;
        let xs = self.time.forward(&xs, told.time)?;
        match &self.attention {
            Some(attention) => attention.forward(&xs, told.text),
            None => Ok(xs),
        }
    }
}

#[derive(Debug)]
struct Down {
    smaller: Option<(WLayerNorm, Conv2d)>,
    effnet: Option<Conv2d>,
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Up {
    effnet: Option<Conv2d>,
    blocks: Vec<Block>,
    larger: Option<(WLayerNorm, ConvTranspose2d)>,
}

/// The second stage.
#[derive(Debug)]
pub struct WDiffNeXt {
    clip_mapper: Linear,
    seq_norm: LayerNormNoWeights,
    embedding: Conv2d,
    embedding_norm: WLayerNorm,
    down: Vec<Down>,
    up: Vec<Up>,
    out_norm: WLayerNorm,
    out_conv: Conv2d,
    c_in: usize,
    c_r: usize,
    patch_size: usize,
}

impl WDiffNeXt {
    /// Loads `clip_mapper`, `effnet_mappers.N`, `embedding.1`, `down_blocks.N`, `up_blocks.N` and `clf.1`, with Würstchen's levels:
    /// latents of `c_in` channels in patches of `patch_size` by `patch_size`, to `c_out` channels, a time of size `c_r`, and a text of
    /// size `clip_embd` that becomes one of size `c_cond`. `use_flash_attn` changes nothing:
    /// [`Attention::new`](super::attention_processor::Attention::new).
    ///
    /// # Errors
    /// `c_r` is below 4, there are no patches, or a weight is missing or has another shape.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        c_in: usize,
        c_out: usize,
        c_r: usize,
        c_cond: usize,
        clip_embd: usize,
        patch_size: usize,
        use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        let _ = use_flash_attn;
        let sizes = [c_in, c_out, c_r, c_cond, clip_embd, patch_size];
        Self::with_levels(sizes, &LEVELS, vb)
    }

    /// As [`new`](Self::new), with other levels. The sizes are `c_in`, `c_out`, `c_r`, `c_cond`, `clip_embd` and `patch_size`.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), there are no levels, or heads do not divide channels.
    pub fn with_levels(
        [c_in, c_out, c_r, c_cond, clip_embd, patch_size]: [usize; 6],
        levels: &[DiffNeXtLevel],
        vb: VarBuilder,
    ) -> Result<Self> {
        check_times(c_r)?;
        let Some(first) = levels.first().map(|level| level.channels) else {
            bail!("wuerstchen: no levels; at least one is required")
        };
        if patch_size == 0 {
            bail!("wuerstchen: patch_size is 0; it must be at least 1")
        }
        let loader = Loader {
            levels,
            c_r,
            c_cond,
            vb: &vb,
        };
        let (count, area) = (levels.len(), patch_size * patch_size);
        Ok(Self {
            clip_mapper: linear(clip_embd, c_cond, vb.pp("clip_mapper"))?,
            seq_norm: LayerNormNoWeights::new(c_cond)?,
            embedding: ConvSpec::new(c_in * area, first, 1).load(vb.pp("embedding").pp("1"))?,
            embedding_norm: WLayerNorm::new(first)?,
            down: (0..count).map(|i| loader.down(i)).collect::<Result<_>>()?,
            up: (0..count).map(|i| loader.up(i)).collect::<Result<_>>()?,
            out_norm: WLayerNorm::new(first)?,
            out_conv: ConvSpec::new(first, 2 * c_out * area, 1).load(vb.pp("clf").pp("1"))?,
            c_in,
            c_r,
            patch_size,
        })
    }

    /// The noise in latents `xs`, (batch, c_in, height, width), at times `r` from 0 to 1, (batch): (batch, c_out, height, width), and
    /// `c_out` is `c_in`. `effnet` are the small latents, (batch, 16, h, w), resized by nearest neighbours; `clip` is the text, (batch,
    /// tokens, clip_embd).
    ///
    /// # Errors
    /// There is no text, the sides are not multiples of the patches of the last level, or shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        xs: &Tensor,
        r: &Tensor,
        effnet: &Tensor,
        clip: Option<&Tensor>,
    ) -> Result<Tensor> {
        const EPS: f64 = 1e-3;
        self.check(xs)?;
        let Some(clip) = clip else {
            bail!("wuerstchen: no text; the model attends to one, so pass that of an empty prompt")
        };
        let time = &times(r, self.c_r)?.to_dtype(xs.dtype())?;
        let text = &self.seq_norm.forward(&self.clip_mapper.forward(clip)?)?;
        let told = Told { time, text };

        let ys = self
            .embedding
            .forward(&pixel_unshuffle(xs, self.patch_size)?)?;
        let mut ys = self.embedding_norm.forward(&ys)?;
        let mut left = Vec::with_capacity(self.down.len());
        for down in &self.down {
            if let Some((norm, conv)) = &down.smaller {
                ys = conv.forward(&norm.forward(&ys)?)?;
            }
            let small = injected(&down.effnet, effnet, &ys)?;
            for block in &down.blocks {
                ys = block.forward(&ys, small.as_ref(), &told)?;
            }
            left.push(ys.clone());
        }
        // The last level's result is where the way up begins.
        left.pop();
        for (i, up) in self.up.iter().enumerate() {
            let small = injected(&up.effnet, effnet, &ys)?;
            let mut first = match i {
                0 => None,
                _ => left.pop(),
            };
            for block in &up.blocks {
                let skip = match (first.take(), &small) {
                    (Some(left), Some(small)) => Some(Tensor::cat(&[&left, small], 1)?),
                    (Some(one), None) => Some(one),
                    (None, small) => small.clone(),
                };
                ys = block.forward(&ys, skip.as_ref(), &told)?;
            }
            if let Some((norm, conv)) = &up.larger {
                ys = conv.forward(&norm.forward(&ys)?)?;
            }
        }
        let ys = self.out_conv.forward(&self.out_norm.forward(&ys)?)?;
        let ys = pixel_shuffle(&ys, self.patch_size)?;
        let channels = ys.dim(1)? / 2;
        let scale = sigmoid(&ys.narrow(1, channels, channels)?)?.affine(1. - 2. * EPS, EPS)?;
        (xs - ys.narrow(1, 0, channels)?)? / scale
    }

    fn check(&self, xs: &Tensor) -> Result<()> {
        let (channels, multiple) = (self.c_in, self.patch_size << (self.down.len() - 1));
        match *xs.dims() {
            [_, c, h, w]
                if c == channels && h > 0 && w > 0 && h % multiple == 0 && w % multiple == 0 =>
            {
                Ok(())
            }
            _ => bail!(
                "wuerstchen: the latents are {:?}; they must be (batch, {channels}, height, width) with sides that are multiples of \
                 {multiple}",
                xs.dims()
            ),
        }
    }
}

/// The small latents in the form for the blocks of a level, resized to `xs`.
fn injected(mapper: &Option<Conv2d>, effnet: &Tensor, xs: &Tensor) -> Result<Option<Tensor>> {
    let Some(mapper) = mapper else {
        return Ok(None);
    };
    let (_, _, h, w) = xs.dims4()?;
    mapper.forward(&effnet.upsample_nearest2d(h, w)?).map(Some)
}

/// Loads a model's levels.
struct Loader<'a> {
    levels: &'a [DiffNeXtLevel],
    c_r: usize,
    c_cond: usize,
    vb: &'a VarBuilder<'a>,
}

impl Loader<'_> {
    /// The layer `index` for the small latents, if the level has them.
    fn effnet(&self, level: &DiffNeXtLevel, index: usize) -> Result<Option<Conv2d>> {
        let load = || {
            let vb = self.vb.pp("effnet_mappers").pp(index);
            ConvSpec::new(EFFNET, self.c_cond, 1).load(vb)
        };
        level.inject_effnet.then(load).transpose()
    }

    /// The blocks of level `i` below `vb`, whose parts are numbered from `part` on, and the number behind them. The first one's second
    /// input has `more` channels than that of the others.
    fn blocks(
        &self,
        i: usize,
        mut part: usize,
        more: usize,
        vb: &VarBuilder,
    ) -> Result<(Vec<Block>, usize)> {
        let level = self.levels[i];
        let (channels, heads) = (level.channels, level.heads);
        let small = if level.inject_effnet { self.c_cond } else { 0 };
        let mut next = || {
            part += 1;
            vb.pp(part - 1)
        };
        let mut load = |block: usize| {
            let skip = if block == 0 { small + more } else { small };
            let attention = |vb| AttnBlock::new(channels, self.c_cond, heads, true, false, vb);
            Ok(Block {
                residual: ResBlockStageB::new(channels, skip, 3, next())?,
                time: TimestepBlock::new(channels, self.c_r, next())?,
                attention: match i {
                    0 => None,
                    _ => Some(attention(next())?),
                },
            })
        };
        let blocks = (0..level.blocks).map(&mut load).collect::<Result<_>>()?;
        Ok((blocks, part))
    }

    fn down(&self, i: usize) -> Result<Down> {
        let (level, vb) = (self.levels[i], self.vb.pp("down_blocks").pp(i));
        let smaller = match i {
            0 => None,
            _ => {
                let before = self.levels[i - 1].channels;
                let conv = ConvSpec::patches(before, level.channels, 2);
                Some((WLayerNorm::new(before)?, conv.load(vb.pp("0").pp("1"))?))
            }
        };
        let first = usize::from(smaller.is_some());
        let (blocks, _) = self.blocks(i, first, 0, &vb)?;
        Ok(Down {
            smaller,
            effnet: self.effnet(&level, i)?,
            blocks,
        })
    }

    /// Block `index` of the way up, which begins with the last level.
    fn up(&self, index: usize) -> Result<Up> {
        let count = self.levels.len();
        let i = count - 1 - index;
        let (level, vb) = (self.levels[i], self.vb.pp("up_blocks").pp(index));
        let left = if index == 0 { 0 } else { level.channels };
        let (blocks, part) = self.blocks(i, 0, left, &vb)?;
        let larger = match i {
            0 => None,
            _ => {
                let after = self.levels[i - 1].channels;
                let config = ConvTranspose2dConfig {
                    stride: 2,
                    ..Default::default()
                };
                let vb = vb.pp(part).pp(1);
                let conv = conv_transpose2d(level.channels, after, 2, config, vb)?;
                Some((WLayerNorm::new(after)?, conv))
            }
        };
        Ok(Up {
            effnet: self.effnet(&level, count + index)?,
            blocks,
            larger,
        })
    }
}
