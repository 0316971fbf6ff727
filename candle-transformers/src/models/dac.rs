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

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{Conv1d, VarBuilder};

use crate::blocks::codec::{residual_decode, residual_encode, sound, DecoderStages, Form};
pub use crate::blocks::codec::{
    DecoderBlock, EncoderBlock, ResidualUnit, Snake1d, VectorQuantizer,
};
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

/// From frames (batch, channels, frames) to sounds (batch, channels, samples) from -1 to 1.
#[derive(Debug, Clone)]
pub struct Decoder {
    first: Conv1d,
    rest: DecoderStages,
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
