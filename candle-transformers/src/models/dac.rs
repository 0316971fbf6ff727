//! DAC, Descript's codec of sound: [arXiv 2306.06546](https://arxiv.org/abs/2306.06546). Weight names are those of the checkpoints that
//! [parler-tts](https://huggingface.co/parler-tts/dac_44khZ_8kbps) has.
//!
//! Convolutions with snake activations, [arXiv 2006.08195](https://arxiv.org/abs/2006.08195), take a sound to frames of 512 samples.
//! Codebooks give each frame some numbers, the codes, and back.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::dac::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! let config = Config {
//!     num_codebooks: 9,
//!     model_bitrate: 8,
//!     codebook_size: 1024,
//!     latent_dim: 1024,
//!     frame_rate: 86,
//!     sampling_rate: 44_100,
//! };
//! let device = Device::Cpu;
//! // SAFETY: nothing changes the file while it is mapped.
//! let vb = unsafe { VarBuilder::from_mmaped_safetensors(&["model.safetensors"], DType::F32, &device)? };
//! let model = Model::new(&config, vb.pp("model"))?;
//! let sound = Tensor::zeros((1, 1, 44_100), DType::F32, &device)?;
//! let codes = model.encode(&sound)?;
//! let again = model.decode_codes(&codes)?;
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::{Conv1d, Conv1dConfig, ConvTranspose1d, ConvTranspose1dConfig, VarBuilder};

use super::snac::repeat_interleave;
use crate::blocks::codec::{residual_decode, residual_encode, sound, Codebook, KernelNames, Stage};
use crate::blocks::vision::run_all;

/// The numbers of a `config.json`.
#[derive(serde::Deserialize, Debug, Clone)]
pub struct Config {
    /// Codebooks.
    pub num_codebooks: usize,
    /// Kilobits per second. The model does not use it.
    pub model_bitrate: u32,
    /// Codes that a codebook has.
    pub codebook_size: usize,
    /// Channels of a frame.
    pub latent_dim: usize,
    /// Frames per second. The model does not use it.
    pub frame_rate: u32,
    /// Samples per second. The model does not use it.
    pub sampling_rate: u32,
}

/// Size of a codebook's vectors.
const CODEBOOK_DIM: usize = 8;

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
    /// Applied to (batch, channels, …).
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match xs.dims() {
            [_, _, _] => self.of_vectors(xs),
            [_, _, _, ..] => self.of_vectors(&xs.flatten_from(2)?)?.reshape(xs.shape()),
            dims => bail!("snake: the input is {dims:?}; it must be (batch, channels, …)"),
        }
    }
}

/// The construction of the layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Whether the wide convolution of residual units has a group for each channel.
    pub(crate) depthwise: bool,
    /// The names of kernels.
    pub(crate) names: KernelNames,
    /// Whether transposed convolutions of an odd stride give `stride` samples for each frame; one less in all otherwise.
    pub(crate) complete: bool,
    /// Whether stages of the decoder add noise.
    pub(crate) noise: bool,
}

impl Form {
    const DAC: Self = Self {
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

/// From sounds (batch, 1, samples) to frames (batch, channels, frames).
#[derive(Debug, Clone)]
pub struct Encoder {
    first: Conv1d,
    blocks: Vec<EncoderBlock>,
    snake: Snake1d,
    last: Conv1d,
    /// Samples of a frame.
    hop: usize,
}

impl Encoder {
    /// Loads `block.0` and so on: a stage for each stride, which has twice as many channels as the one before it, from `d_model` on. Frames
    /// have `d_latent` channels.
    ///
    /// # Errors
    /// A stride is 0, or a tensor is missing or has another shape.
    pub fn new(d_model: usize, strides: &[usize], d_latent: usize, vb: VarBuilder) -> Result<Self> {
        let (form, vb, mut dim) = (Form::DAC, vb.pp("block"), d_model);
        let first = form.conv([1, dim, 7], 1, false, vb.pp(0))?;
        let mut blocks = Vec::with_capacity(strides.len());
        for (i, &stride) in strides.iter().enumerate() {
            dim *= 2;
            blocks.push(EncoderBlock::load(&form, dim, stride, vb.pp(i + 1))?);
        }
        let end = strides.len() + 1;
        Ok(Self {
            first,
            blocks,
            snake: Snake1d::new(dim, vb.pp(end))?,
            last: form.conv([dim, d_latent, 3], 1, false, vb.pp(end + 1))?,
            hop: strides.iter().product(),
        })
    }
}

impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = run_all(&self.blocks, &self.first.forward(xs)?)?;
        self.last.forward(&self.snake.forward(&xs)?)
    }
}

/// A stage of the decoder: snake, a transposed convolution that lengthens, and three residual units.
#[derive(Debug, Clone)]
pub struct DecoderBlock {
    snake: Snake1d,
    conv: ConvTranspose1d,
    /// Factors of the noise, computed from the input.
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

/// From frames (batch, channels, frames) to sounds (batch, channels, samples) from -1 to 1.
#[derive(Debug, Clone)]
pub struct Decoder {
    first: Conv1d,
    rest: DecoderStages,
}

/// The stages after a decoder's first convolution.
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

impl Decoder {
    /// Loads `model.0` and so on: a stage for each rate, which has half as many channels as the one before it, from `channels` on. Frames
    /// have `in_c` channels, sounds `d_out`.
    ///
    /// # Errors
    /// A rate is 0, channels cannot be halved that often, or a tensor is missing or has another shape.
    pub fn new(
        in_c: usize,
        channels: usize,
        rates: &[usize],
        d_out: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let (form, vb) = (Form::DAC, vb.pp("model"));
        Ok(Self {
            first: form.conv([in_c, channels, 7], 1, false, vb.pp(0))?,
            rest: DecoderStages::load(&form, (channels, d_out), rates, 1, &vb)?,
        })
    }
}

impl Module for Decoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.rest.forward(&self.first.forward(xs)?)
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
    /// The codes are not integers, or not below the number of codes.
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

/// Codebooks, each for what the ones before it left.
#[derive(Clone, Debug)]
pub struct ResidualVectorQuantizer {
    quantizers: Vec<VectorQuantizer>,
}

impl ResidualVectorQuantizer {
    /// Loads `quantizers.0` and so on: `n_codebooks` of [`VectorQuantizer::new`].
    ///
    /// # Errors
    /// There are none, or those of [`VectorQuantizer::new`].
    pub fn new(
        input_dim: usize,
        n_codebooks: usize,
        cb_size: usize,
        cb_dim: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        if n_codebooks == 0 {
            bail!("dac: at least 1 codebook is required")
        }
        let vb = vb.pp("quantizers");
        let load = |i| VectorQuantizer::new(input_dim, cb_size, cb_dim, vb.pp(i));
        Ok(Self {
            quantizers: (0..n_codebooks).map(load).collect::<Result<_>>()?,
        })
    }

    /// Frames (batch, channels, frames) of codes (batch, codebooks, frames).
    ///
    /// # Errors
    /// They are of another number of codebooks, or those of [`VectorQuantizer::embed_code`].
    // Upstream's name.
    #[allow(clippy::wrong_self_convention)]
    pub fn from_codes(&self, codes: &Tensor) -> Result<Tensor> {
        let count = self.quantizers.len();
        match *codes.dims() {
            [_, codebooks, frames] if codebooks == count && frames > 0 => {}
            _ => bail!(
                "dac: codes must be (batch, {count}, frames) with at least 1 frame, not {:?}",
                codes.dims()
            ),
        }
        let codes: Vec<_> = (0..count)
            .map(|i| codes.narrow(1, i, 1)?.squeeze(1))
            .collect::<Result<_>>()?;
        residual_decode("dac", &self.quantizers, &codes)
    }
}

/// The codec.
#[derive(Debug, Clone)]
pub struct Model {
    /// From sounds to frames.
    pub encoder: Encoder,
    /// From frames to codes and back.
    pub quantizer: ResidualVectorQuantizer,
    /// From frames to sounds.
    pub decoder: Decoder,
}

impl Model {
    /// Loads `encoder`, `quantizer` and `decoder`, of the sizes that all checkpoints have.
    ///
    /// # Errors
    /// There are no codebooks or codes, or a tensor is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (dim, vb_quantizer) = (cfg.latent_dim, vb.pp("quantizer"));
        Ok(Self {
            quantizer: ResidualVectorQuantizer::new(
                dim,
                cfg.num_codebooks,
                cfg.codebook_size,
                CODEBOOK_DIM,
                vb_quantizer,
            )?,
            encoder: Encoder::new(64, &[2, 4, 8, 8], dim, vb.pp("encoder"))?,
            decoder: Decoder::new(dim, 1536, &[8, 8, 4, 2], 1, vb.pp("decoder"))?,
        })
    }

    /// Codes, u32 (batch, codebooks, frames), of sounds (batch, 1, samples) from -1 to 1 at the sampling rate; what the last frame lacks is
    /// silence. Not in Candle's interface.
    ///
    /// # Errors
    /// The sounds have another shape, or no samples.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let (_, samples) = sound("dac", xs, 1)?;
        let silence = samples.next_multiple_of(self.encoder.hop) - samples;
        let frames = self.encoder.forward(&xs.pad_with_zeros(2, 0, silence)?)?;
        Tensor::stack(&residual_encode(&self.quantizer.quantizers, &frames)?, 1)
    }

    /// Sounds (batch, 1, samples) from -1 to 1 of codes (batch, codebooks, frames).
    ///
    /// # Errors
    /// Those of [`ResidualVectorQuantizer::from_codes`].
    pub fn decode_codes(&self, audio_codes: &Tensor) -> Result<Tensor> {
        self.decoder
            .forward(&self.quantizer.from_codes(audio_codes)?)
    }
}
