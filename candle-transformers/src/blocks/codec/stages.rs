//! Convolutions with snake activations, in stages that shorten a sound to frames and lengthen it again, and codebooks of frames: DAC's parts,
//! which SNAC has with switches ([`Form`]).

use candle_core::shape::Dim;
use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::{Conv1d, Conv1dConfig, ConvTranspose1d, ConvTranspose1dConfig, VarBuilder};

use super::{Codebook, KernelNames, Stage};
use crate::blocks::vision::run_all;

/// `x + sin²(alpha * x) / alpha` with an `alpha` for each channel.
#[derive(Debug, Clone)]
pub struct Snake1d {
    alpha: Tensor,
    /// `1 / alpha`, if `alpha` is not a variable, which training changes.
    inverse: Option<Tensor>,
}

fn inverse(alpha: &Tensor) -> Result<Tensor> {
    (alpha + 1e-9)?.recip()
}

impl Snake1d {
    /// Loads `alpha` (1, channels, 1).
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub fn new(channels: usize, vb: VarBuilder) -> Result<Self> {
        let alpha = vb.get((1, channels, 1), "alpha")?;
        let fixed = !alpha.track_op();
        let inverse = fixed.then(|| inverse(&alpha)).transpose()?;
        Ok(Self { alpha, inverse })
    }

    fn of_vectors(&self, xs: &Tensor) -> Result<Tensor> {
        let waves = xs.broadcast_mul(&self.alpha)?.sin()?.sqr()?;
        let waves = match &self.inverse {
            Some(inverse) => waves.broadcast_mul(inverse)?,
            None => waves.broadcast_mul(&inverse(&self.alpha)?)?,
        };
        xs + waves
    }
}

impl Module for Snake1d {
    /// Of (batch, channels, …).
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match xs.dims() {
            [_, _, _] => self.of_vectors(xs),
            [_, _, _, ..] => self.of_vectors(&xs.flatten_from(2)?)?.reshape(xs.shape()),
            dims => bail!("snake: the input is {dims:?}; it must be (batch, channels, …)"),
        }
    }
}

/// How layers are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Whether the wide convolution of residual units has a group for each channel.
    pub(crate) depthwise: bool,
    /// Where kernels are.
    pub(crate) names: KernelNames,
    /// Whether transposed convolutions of an odd stride give `stride` samples for each frame; one less in all otherwise.
    pub(crate) complete: bool,
    /// Whether stages of the decoder add noise.
    pub(crate) noise: bool,
}

impl Form {
    pub(crate) const DAC: Self = Self {
        depthwise: false,
        names: KernelNames::Pair,
        complete: false,
        noise: false,
    };

    /// A convolution that keeps the length.
    pub(crate) fn conv(
        &self,
        sizes: [usize; 3],
        dilation: usize,
        depthwise: bool,
        vb: VarBuilder,
    ) -> Result<Conv1d> {
        let config = Conv1dConfig {
            dilation,
            padding: sizes[2] / 2 * dilation,
            groups: if depthwise { sizes[0] } else { 1 },
            ..Default::default()
        };
        self.names.conv1d(sizes, true, config, vb)
    }

    /// The three residual units of a stage, from number `first` on.
    fn units(&self, dim: usize, first: usize, vb: &VarBuilder) -> Result<Vec<ResidualUnit>> {
        let unit = |(i, dilation)| ResidualUnit::load(self, dim, dilation, vb.pp(first + i));
        [1, 3, 9].into_iter().enumerate().map(unit).collect()
    }
}

fn has_stride(stride: usize) -> Result<()> {
    if stride == 0 {
        bail!("codec: strides must be at least 1, not 0")
    }
    Ok(())
}

/// Snake, a convolution of 7 samples, snake, and one of 1 sample; what came in is added.
#[derive(Debug, Clone)]
pub struct ResidualUnit {
    snake1: Snake1d,
    conv1: Conv1d,
    snake2: Snake1d,
    conv2: Conv1d,
}

impl ResidualUnit {
    /// Loads `block.0` to `block.3`, of `dim` channels; the 7 samples are `dilation` apart.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(dim: usize, dilation: usize, vb: VarBuilder) -> Result<Self> {
        Self::load(&Form::DAC, dim, dilation, vb)
    }

    fn load(form: &Form, dim: usize, dilation: usize, vb: VarBuilder) -> Result<Self> {
        let vb = vb.pp("block");
        Ok(Self {
            snake1: Snake1d::new(dim, vb.pp(0))?,
            conv1: form.conv([dim, dim, 7], dilation, form.depthwise, vb.pp(1))?,
            snake2: Snake1d::new(dim, vb.pp(2))?,
            conv2: form.conv([dim, dim, 1], 1, false, vb.pp(3))?,
        })
    }
}

impl Module for ResidualUnit {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.conv1.forward(&self.snake1.forward(xs)?)?;
        self.conv2.forward(&self.snake2.forward(&ys)?)? + xs
    }
}

/// A stage of the encoder: three residual units, snake, and a convolution that shortens.
#[derive(Debug, Clone)]
pub struct EncoderBlock {
    units: Vec<ResidualUnit>,
    snake: Snake1d,
    conv: Conv1d,
}

impl EncoderBlock {
    /// Loads `block.0` to `block.4`, from `dim / 2` channels to `dim`; each `stride` samples become one.
    ///
    /// # Errors
    /// `stride` is 0, or a tensor is missing or has another shape.
    pub fn new(dim: usize, stride: usize, vb: VarBuilder) -> Result<Self> {
        Self::load(&Form::DAC, dim, stride, vb)
    }

    pub(crate) fn load(form: &Form, dim: usize, stride: usize, vb: VarBuilder) -> Result<Self> {
        has_stride(stride)?;
        let (half, vb) = (dim / 2, vb.pp("block"));
        let config = Conv1dConfig {
            stride,
            padding: stride.div_ceil(2),
            ..Default::default()
        };
        let sizes = [half, dim, 2 * stride];
        Ok(Self {
            units: form.units(half, 0, &vb)?,
            snake: Snake1d::new(half, vb.pp(3))?,
            conv: form.names.conv1d(sizes, true, config, vb.pp(4))?,
        })
    }
}

impl Module for EncoderBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = run_all(&self.units, xs)?;
        self.conv.forward(&self.snake.forward(&xs)?)
    }
}

/// A stage of the decoder: snake, a transposed convolution that lengthens, and three residual units.
#[derive(Debug, Clone)]
pub struct DecoderBlock {
    snake: Snake1d,
    conv: ConvTranspose1d,
    /// What noise is multiplied by.
    noise: Option<Conv1d>,
    units: Vec<ResidualUnit>,
}

impl DecoderBlock {
    /// Loads `block.0` to `block.4`; each frame becomes `stride`, one less in all if `stride` is odd.
    ///
    /// # Errors
    /// `stride` is 0, or a tensor is missing or has another shape.
    pub fn new(in_dim: usize, out_dim: usize, stride: usize, vb: VarBuilder) -> Result<Self> {
        Self::load(&Form::DAC, [in_dim, out_dim], stride, vb)
    }

    pub(crate) fn load(
        form: &Form,
        [inputs, outputs]: [usize; 2],
        stride: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        has_stride(stride)?;
        let vb = vb.pp("block");
        let config = ConvTranspose1dConfig {
            stride,
            padding: stride.div_ceil(2),
            output_padding: if form.complete { stride % 2 } else { 0 },
            ..Default::default()
        };
        let sizes = [inputs, outputs, 2 * stride];
        let noise = form.noise.then(|| {
            let sizes = [outputs, outputs, 1];
            let vb = vb.pp(2).pp("linear");
            form.names.conv1d(sizes, false, Default::default(), vb)
        });
        Ok(Self {
            snake: Snake1d::new(inputs, vb.pp(0))?,
            conv: form.names.conv_transpose1d(sizes, true, config, vb.pp(1))?,
            units: form.units(outputs, 2 + usize::from(form.noise), &vb)?,
            noise: noise.transpose()?,
        })
    }
}

impl Module for DecoderBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = self.conv.forward(&self.snake.forward(xs)?)?;
        if let Some(factor) = &self.noise {
            let (batch, _, time) = xs.dims3()?;
            let noise = Tensor::randn(0f32, 1f32, (batch, 1, time), xs.device())?;
            let noise = factor
                .forward(&xs)?
                .broadcast_mul(&noise.to_dtype(xs.dtype())?)?;
            xs = (xs + noise)?;
        }
        run_all(&self.units, &xs)
    }
}

/// What follows a decoder's first convolution.
#[derive(Debug, Clone)]
pub(crate) struct DecoderStages {
    blocks: Vec<DecoderBlock>,
    snake: Snake1d,
    last: Conv1d,
}

impl DecoderStages {
    /// Stages from `channels` on, each with half as many, from number `first` on, and the last convolution, to `outputs` channels.
    pub(crate) fn load(
        form: &Form,
        (channels, outputs): (usize, usize),
        rates: &[usize],
        first: usize,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let mut dim = channels;
        let mut blocks = Vec::with_capacity(rates.len());
        for (i, &rate) in rates.iter().enumerate() {
            if dim == 0 || !dim.is_multiple_of(2) {
                bail!(
                    "codec: {channels} channels cannot be halved {} times",
                    rates.len()
                )
            }
            let sizes = [dim, dim / 2];
            blocks.push(DecoderBlock::load(form, sizes, rate, vb.pp(first + i))?);
            dim /= 2;
        }
        let end = first + rates.len();
        Ok(Self {
            blocks,
            snake: Snake1d::new(dim, vb.pp(end))?,
            last: form.conv([dim, outputs, 7], 1, false, vb.pp(end + 1))?,
        })
    }
}

impl Module for DecoderStages {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = run_all(&self.blocks, xs)?;
        self.last.forward(&self.snake.forward(&xs)?)?.tanh()
    }
}

/// A codebook of short vectors, and the projections from frames to them and back. Angles count, lengths do not.
#[derive(Clone, Debug)]
pub struct VectorQuantizer {
    in_proj: Conv1d,
    out_proj: Conv1d,
    codebook: Codebook,
    /// Frames that have a code together.
    stride: usize,
}

impl VectorQuantizer {
    /// Loads `in_proj`, `out_proj` and `codebook.weight` (`cb_size`, `cb_dim`), for frames of `in_dim` channels.
    ///
    /// # Errors
    /// There are no codes, or a tensor is missing or has another shape.
    pub fn new(in_dim: usize, cb_size: usize, cb_dim: usize, vb: VarBuilder) -> Result<Self> {
        Self::load(KernelNames::Pair, [in_dim, cb_size, cb_dim], 1, vb)
    }

    pub(crate) fn load(
        names: KernelNames,
        [channels, size, dim]: [usize; 3],
        stride: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        has_stride(stride)?;
        if size == 0 || dim == 0 {
            bail!("codec: a codebook of {size} vectors with {dim} numbers is empty")
        }
        let project = |sizes, vb| names.conv1d(sizes, true, Default::default(), vb);
        Ok(Self {
            in_proj: project([channels, dim, 1], vb.pp("in_proj"))?,
            out_proj: project([dim, channels, 1], vb.pp("out_proj"))?,
            codebook: Codebook::by_angle(vb.pp("codebook").get((size, dim), "weight")?)?,
            stride,
        })
    }

    /// The vectors (batch, frames, dim) of codes (batch, frames).
    ///
    /// # Errors
    /// The codes are no integers, or not below the number of codes.
    pub fn embed_code(&self, embed_id: &Tensor) -> Result<Tensor> {
        self.codebook.lookup(embed_id)
    }

    /// [`embed_code`](Self::embed_code) as (batch, dim, frames).
    ///
    /// # Errors
    /// Those of [`embed_code`](Self::embed_code).
    pub fn decode_code(&self, embed_id: &Tensor) -> Result<Tensor> {
        self.embed_code(embed_id)?.transpose(1, 2)
    }

    /// Frames that have a code together.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

impl Stage for VectorQuantizer {
    fn numbers(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, channels, time) = xs.dims3()?;
        if !time.is_multiple_of(self.stride) {
            bail!(
                "codec: {time} frames cannot be split into groups of {}",
                self.stride
            )
        }
        let xs = match self.stride {
            1 => xs.clone(),
            stride => {
                let groups = xs.reshape((batch, channels, time / stride, stride))?;
                groups.mean(D::Minus1)?
            }
        };
        let vectors = self.in_proj.forward(&xs)?.transpose(1, 2)?;
        self.codebook.nearest(&vectors)
    }

    fn values(&self, numbers: &Tensor) -> Result<Tensor> {
        let frames = self.out_proj.forward(&self.decode_code(numbers)?)?;
        repeat_interleave(&frames, self.stride, D::Minus1)
    }
}

/// Each element along a dimension `repeats` times, one after the other.
///
/// # Errors
/// The dimension is out of range.
pub fn repeat_interleave<D: Dim>(img: &Tensor, repeats: usize, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(img.shape(), "repeat_interleave")?;
    if repeats == 1 {
        return Ok(img.clone());
    }
    let mut dims = img.dims().to_vec();
    dims.insert(dim + 1, repeats);
    img.unsqueeze(dim + 1)?
        .broadcast_as(dims)?
        .flatten(dim, dim + 1)
}
