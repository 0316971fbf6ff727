//! The blocks that both stages have. Images are (batch, channels, height, width).

use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::ops::{norm, Norm};
use candle_nn::{linear, Conv2d, Linear, VarBuilder};

use super::attention_processor::Attention;
use crate::blocks::recurrence::wide;
use crate::blocks::vision::{channels_first, channels_last, ConvSpec};

/// Norm epsilon.
const EPS: f32 = 1e-6;

/// Mean 0 and variance 1 over the last dimension, of any layout.
fn normed(xs: &Tensor, eps: f32) -> Result<Tensor> {
    let bare = Norm {
        centred: true,
        weight: None,
        bias: None,
        eps,
    };
    norm(xs, bare)
}

/// Layer norm over the channels, without a weight and a bias.
#[derive(Debug)]
pub struct WLayerNorm {
    eps: f32,
}

impl WLayerNorm {
    /// The norm; it is the same for every size.
    ///
    /// # Errors
    /// None.
    pub fn new(_size: usize) -> Result<Self> {
        Ok(Self { eps: EPS })
    }
}

/// From (batch, channels, height, width) to the same shape.
impl Module for WLayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        channels_first(&normed(&xs.permute((0, 2, 3, 1))?, self.eps)?)
    }
}

/// Layer norm over the last dimension, without a weight and a bias.
#[derive(Debug)]
pub struct LayerNormNoWeights {
    eps: f32,
}

impl LayerNormNoWeights {
    /// The norm; it is the same for every size.
    ///
    /// # Errors
    /// None.
    pub fn new(_size: usize) -> Result<Self> {
        Ok(Self { eps: EPS })
    }
}

/// From any shape to the same.
impl Module for LayerNormNoWeights {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        normed(xs, self.eps)
    }
}

/// Checks the size of the vectors that [`times`] makes.
pub(super) fn check_times(size: usize) -> Result<()> {
    if size < 4 {
        bail!("wuerstchen: c_r is {size}; the size of a time embedding must be at least 4")
    }
    Ok(())
}

/// Sines and cosines of times from 0 to 1, (batch): (batch, size) of their dtype. In f32 until then, since 16 bits round the angles.
pub(super) fn times(r: &Tensor, size: usize) -> Result<Tensor> {
    const STEPS: f64 = 10_000.;
    let half = size / 2;
    let frequency = |i| (-STEPS.ln() * i as f64 / (half - 1) as f64).exp() as f32;
    let frequencies: Vec<f32> = (0..half).map(frequency).collect();
    let frequencies = Tensor::from_vec(frequencies, (1, half), r.device())?;
    let steps = (r.to_dtype(DType::F32)? * STEPS)?.unsqueeze(1)?;
    let angles = steps.broadcast_mul(&frequencies)?;
    let both = Tensor::cat(&[angles.sin()?, angles.cos()?], 1)?;
    both.pad_with_zeros(D::Minus1, 0, size % 2)?
        .to_dtype(r.dtype())
}

/// Channels scaled and shifted by the time.
#[derive(Debug)]
pub struct TimestepBlock {
    mapper: Linear,
}

impl TimestepBlock {
    /// Loads `mapper` for `c` channels and a time of size `c_timestep`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(c: usize, c_timestep: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            mapper: linear(c_timestep, 2 * c, vb.pp("mapper"))?,
        })
    }

    /// From (batch, c, height, width) to the same shape; `t` is (batch, c_timestep).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, t: &Tensor) -> Result<Tensor> {
        let both = self.mapper.forward(t)?.unsqueeze(2)?.unsqueeze(3)?;
        let channels = both.dim(1)? / 2;
        let scale = (both.narrow(1, 0, channels)? + 1.)?;
        xs.broadcast_mul(&scale)?
            .broadcast_add(&both.narrow(1, channels, channels)?)
    }
}

/// Global response normalisation, [arXiv 2301.00808](https://arxiv.org/abs/2301.00808): a channel is stronger where others are weak.
#[derive(Debug)]
pub struct GlobalResponseNorm {
    gamma: Tensor,
    beta: Tensor,
}

impl GlobalResponseNorm {
    /// Loads `gamma` and `beta`, (1, 1, 1, dim).
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(dim: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            gamma: vb.get((1, 1, 1, dim), "gamma")?,
            beta: vb.get((1, 1, 1, dim), "beta")?,
        })
    }
}

/// From (batch, height, width, dim) to the same shape.
impl Module for GlobalResponseNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let length = xs
            .to_dtype(wide(xs.dtype()))?
            .sqr()?
            .sum_keepdim((1, 2))?
            .sqrt()?;
        let mean = (length.mean_keepdim(D::Minus1)? + 1e-6)?;
        let factor = length.broadcast_div(&mean)?.to_dtype(xs.dtype())?;
        let ys = xs.broadcast_mul(&factor.broadcast_mul(&self.gamma)?)?;
        ys.broadcast_add(&self.beta)? + xs
    }
}

/// The form of a block's GELU.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gelu {
    Exact,
    Tanh,
}

/// The layers over the channels of a position: four times their number, a GELU, the response norm, and back.
#[derive(Debug)]
pub(super) struct Channelwise {
    expand: Linear,
    gelu: Gelu,
    response: GlobalResponseNorm,
    project: Linear,
}

impl Channelwise {
    /// Loads `channelwise.{0,2,4}` for `inputs` input and `c` output channels.
    pub(super) fn load(inputs: usize, c: usize, gelu: Gelu, vb: &VarBuilder) -> Result<Self> {
        let vb = vb.pp("channelwise");
        Ok(Self {
            expand: linear(inputs, 4 * c, vb.pp("0"))?,
            gelu,
            response: GlobalResponseNorm::new(4 * c, vb.pp("2"))?,
            project: linear(4 * c, c, vb.pp("4"))?,
        })
    }
}

impl Module for Channelwise {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.expand.forward(&channels_last(xs)?)?;
        let ys = match self.gelu {
            Gelu::Exact => ys.gelu_erf()?,
            Gelu::Tanh => ys.gelu()?,
        };
        channels_first(&self.project.forward(&self.response.forward(&ys)?)?)
    }
}

/// A residual block of the prior, in the manner of ConvNeXt.
#[derive(Debug)]
pub struct ResBlock {
    depthwise: Conv2d,
    norm: WLayerNorm,
    channelwise: Channelwise,
}

impl ResBlock {
    /// Loads `depthwise` and `channelwise.{0,2,4}` for `c` channels and `c_skip` of a second input, with kernels of `ksize` by `ksize`.
    ///
    /// # Errors
    /// `c` does not divide `c_skip`, or a weight is missing or has another shape.
    pub fn new(c: usize, c_skip: usize, ksize: usize, vb: VarBuilder) -> Result<Self> {
        if c == 0 || !c_skip.is_multiple_of(c) {
            bail!("wuerstchen: {c} channels do not divide the {c_skip} of the second input")
        }
        let depthwise = ConvSpec::new(c + c_skip, c, ksize).groups(c);
        Ok(Self {
            depthwise: depthwise.load(vb.pp("depthwise"))?,
            norm: WLayerNorm::new(c)?,
            channelwise: Channelwise::load(c, c, Gelu::Exact, &vb)?,
        })
    }

    /// From (batch, c, height, width) to the same shape; `x_skip` is (batch, c_skip, height, width).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, x_skip: Option<&Tensor>) -> Result<Tensor> {
        let ys = match x_skip {
            Some(skip) => self.depthwise.forward(&Tensor::cat(&[xs, skip], 1)?)?,
            None => self.depthwise.forward(xs)?,
        };
        self.channelwise.forward(&self.norm.forward(&ys)?)? + xs
    }
}

/// Attention to a condition, and to the image if the block says so.
#[derive(Debug)]
pub struct AttnBlock {
    self_attn: bool,
    norm: WLayerNorm,
    attention: Attention,
    kv_mapper: Linear,
}

impl AttnBlock {
    /// Loads `attention` and `kv_mapper.1`: `nhead` heads for `c` channels, and tokens of size `c_cond`. `use_flash_attn` changes nothing:
    /// [`Attention::new`].
    ///
    /// # Errors
    /// The heads do not divide the channels, or a weight is missing or has another shape.
    pub fn new(
        c: usize,
        c_cond: usize,
        nhead: usize,
        self_attn: bool,
        use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        if nhead == 0 || !c.is_multiple_of(nhead) {
            bail!("wuerstchen: {nhead} heads do not divide {c} channels")
        }
        let vb_attention = vb.pp("attention");
        Ok(Self {
            self_attn,
            norm: WLayerNorm::new(c)?,
            attention: Attention::new(c, nhead, c / nhead, use_flash_attn, vb_attention)?,
            kv_mapper: linear(c_cond, c, vb.pp("kv_mapper").pp("1"))?,
        })
    }

    /// From (batch, c, height, width) to the same shape; `kv` is (batch, tokens, c_cond).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, kv: &Tensor) -> Result<Tensor> {
        let mut kv = self.kv_mapper.forward(&kv.silu()?)?;
        let ys = self.norm.forward(xs)?;
        if self.self_attn {
            let places = ys.flatten_from(2)?.transpose(1, 2)?;
            kv = Tensor::cat(&[&places, &kv], 1)?;
        }
        xs + self.attention.forward(&ys, &kv)?
    }
}
