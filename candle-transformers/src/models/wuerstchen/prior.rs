//! The first stage, which makes small latents of a text.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::leaky_relu;
use candle_nn::{linear, Conv2d, Linear, VarBuilder};

use super::common::{check_times, times, AttnBlock, ResBlock, TimestepBlock, WLayerNorm};
use crate::blocks::vision::ConvSpec;

#[derive(Debug)]
struct Block {
    residual: ResBlock,
    time: TimestepBlock,
    attention: AttnBlock,
}

/// The first stage.
#[derive(Debug)]
pub struct WPrior {
    projection: Conv2d,
    cond_mapper: [Linear; 2],
    blocks: Vec<Block>,
    out_norm: WLayerNorm,
    out_conv: Conv2d,
    c_in: usize,
    c_r: usize,
}

impl WPrior {
    /// Loads `projection`, `cond_mapper.{0,2}`, `blocks.N` and `out.1`: latents of `c_in` channels, `depth` times three blocks of `c`
    /// channels with `nhead` heads, a text of size `c_cond` and a time of size `c_r`. `use_flash_attn` changes nothing:
    /// [`Attention::new`](super::attention_processor::Attention::new).
    ///
    /// # Errors
    /// The heads do not divide the channels, `c_r` is below 4, or a weight is missing or has another shape.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        c_in: usize,
        c: usize,
        c_cond: usize,
        c_r: usize,
        depth: usize,
        nhead: usize,
        use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        check_times(c_r)?;
        let block = |i: usize| {
            let part = |part| vb.pp("blocks").pp(3 * i + part);
            Ok(Block {
                residual: ResBlock::new(c, 0, 3, part(0))?,
                time: TimestepBlock::new(c, c_r, part(1))?,
                attention: AttnBlock::new(c, c, nhead, true, use_flash_attn, part(2))?,
            })
        };
        let vb_cond = vb.pp("cond_mapper");
        Ok(Self {
            projection: ConvSpec::new(c_in, c, 1).load(vb.pp("projection"))?,
            cond_mapper: [
                linear(c_cond, c, vb_cond.pp("0"))?,
                linear(c, c, vb_cond.pp("2"))?,
            ],
            blocks: (0..depth).map(block).collect::<Result<_>>()?,
            out_norm: WLayerNorm::new(c)?,
            out_conv: ConvSpec::new(c, 2 * c_in, 1).load(vb.pp("out").pp("1"))?,
            c_in,
            c_r,
        })
    }

    /// The vectors of times from 0 to 1, (batch): (batch, c_r) of their dtype; of 16-bit floats they are computed in f32.
    ///
    /// # Errors
    /// `r` has another shape.
    pub fn gen_r_embedding(&self, r: &Tensor) -> Result<Tensor> {
        times(r, self.c_r)
    }

    /// The noise in latents `xs`, (batch, c_in, height, width), at times `r` from 0 to 1, (batch): the shape of `xs`. `c` is the text,
    /// (batch, tokens, c_cond).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, r: &Tensor, c: &Tensor) -> Result<Tensor> {
        let channels = self.c_in;
        if xs.rank() != 4 || xs.dim(1)? != channels {
            bail!(
                "wuerstchen: the latents are {:?}; they must be (batch, {channels}, height, width)",
                xs.dims()
            )
        }
        let [first, second] = &self.cond_mapper;
        let text = second.forward(&leaky_relu(&first.forward(c)?, 0.2)?)?;
        let time = self.gen_r_embedding(r)?.to_dtype(xs.dtype())?;
        let mut ys = self.projection.forward(xs)?;
        for block in &self.blocks {
            ys = block.residual.forward(&ys, None)?;
            ys = block.time.forward(&ys, &time)?;
            ys = block.attention.forward(&ys, &text)?;
        }
        let ys = self.out_conv.forward(&self.out_norm.forward(&ys)?)?;
        let scale = ((ys.narrow(1, channels, channels)? - 1.)?.abs()? + 1e-5)?;
        (xs - ys.narrow(1, 0, channels)?)? / scale
    }
}
