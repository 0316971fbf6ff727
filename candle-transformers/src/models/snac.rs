//! SNAC, a codec of sound whose codebooks have different rates: [arXiv 2410.14411](https://arxiv.org/abs/2410.14411). Weight names are
//! those of [hubertsiuzdak/snac_24khz](https://huggingface.co/hubertsiuzdak/snac_24khz) and its siblings.
//!
//! Networks and codebooks are those of [DAC](super::dac), with convolutions of single channels, noise, and attention in windows of frames.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::snac::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! # let config = r#"{"sampling_rate": 24000, "encoder_dim": 2, "encoder_rates": [2, 4, 8, 8], "decoder_dim": 16,
//! #     "decoder_rates": [8, 8, 4, 2], "attn_window_size": null, "codebook_size": 16, "codebook_dim": 8,
//! #     "vq_strides": [4, 2, 1], "noise": true, "depthwise": true}"#;
//! // A real model: its config.json, and VarBuilder::from_mmaped_safetensors.
//! let config: Config = serde_json::from_str(config).expect("a configuration");
//! let device = Device::Cpu;
//! # let vars = candle_nn::VarMap::new();
//! # let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
//! let model = Model::new(&config, vb)?;
//! let sound = Tensor::zeros((1, 1, 2000), DType::F32, &device)?;
//! let codes = model.encode(&sound)?;
//! let dims: Vec<_> = codes.iter().map(|codes| codes.dims()).collect();
//! assert_eq!(dims, [&[1, 1], &[1, 2], &[1, 4]]);
//! let codes: Vec<_> = codes.iter().collect();
//! assert_eq!(model.decode(&codes)?.dims(), &[1, 1, 2048]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::rotary_emb::rope_heads;
use candle_nn::{
    layer_norm, linear_no_bias, Conv1d, Conv1dConfig, ConvTranspose1d, ConvTranspose1dConfig,
    LayerNorm, Linear, VarBuilder,
};

pub use crate::blocks::codec::repeat_interleave;
use crate::blocks::codec::{
    residual_decode, residual_encode, sound, DecoderStages, EncoderBlock, Form, KernelNames,
    VectorQuantizer,
};
use crate::blocks::inverse_frequencies;
use crate::blocks::vision::run_all;

/// The numbers of a `config.json`.
#[derive(serde::Deserialize, Debug, Clone)]
pub struct Config {
    /// Samples per second.
    pub sampling_rate: usize,
    /// Channels of the encoder's outermost layer; each stage inwards has twice as many.
    pub encoder_dim: usize,
    /// Downsampling factor of each of the encoder's stages.
    pub encoder_rates: Vec<usize>,
    /// Channels of the decoder's inmost layer; each stage outwards has half as many.
    pub decoder_dim: usize,
    /// Upsampling factor of each of the decoder's stages.
    pub decoder_rates: Vec<usize>,
    /// Frames that attend to each other; there is no attention without it.
    pub attn_window_size: Option<usize>,
    /// Codes that a codebook has.
    pub codebook_size: usize,
    /// Size of a codebook's vectors.
    pub codebook_dim: usize,
    /// Number of frames per code of each codebook.
    pub vq_strides: Vec<usize>,
    /// Whether the decoder adds noise, so that it never gives the same twice.
    pub noise: bool,
    /// Whether wide convolutions have a group for each channel.
    pub depthwise: bool,
}

impl Config {
    fn form(&self) -> Form {
        Form {
            depthwise: self.depthwise,
            names: KernelNames::Parametrized,
            complete: true,
            noise: self.noise,
        }
    }

    /// Channels of a frame.
    fn latent_dim(&self) -> Result<usize> {
        let stages = u32::try_from(self.encoder_rates.len()).ok();
        let growth = stages.and_then(|stages| 2usize.checked_pow(stages));
        match growth.and_then(|growth| growth.checked_mul(self.encoder_dim)) {
            Some(dim @ 1..) => Ok(dim),
            _ => bail!(
                "snac: an encoder_dim of {} doubled {} times is out of range",
                self.encoder_dim,
                self.encoder_rates.len()
            ),
        }
    }

    /// Frames that have to be there together: those of the rarest codes, and whole windows.
    fn frames(&self) -> Result<usize> {
        let Some(rarest @ 1..) = self.vq_strides.first().copied() else {
            bail!(
                "snac: vq_strides are {:?}; the first must be at least 1",
                self.vq_strides
            )
        };
        let window = self.attn_window_size.unwrap_or(1);
        if self
            .vq_strides
            .iter()
            .any(|stride| rarest.checked_rem(*stride) != Some(0))
        {
            bail!(
                "snac: the first of vq_strides {:?} must be a multiple of each",
                self.vq_strides
            )
        }
        match lowest_common_multiple(rarest, window) {
            Some(frames) => Ok(frames),
            None => bail!("snac: attn_window_size must be at least 1, not {window}"),
        }
    }
}

/// `None` if one is 0.
fn lowest_common_multiple(a: usize, b: usize) -> Option<usize> {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let common = (a / divisor.max(1)).checked_mul(b)?;
    (common > 0).then_some(common)
}

/// A convolution of `kernel_size` with a bias whose kernels are under weight norm, in `parametrizations.weight.original0` and `original1`.
/// The norm is applied once, here, so training does not go through it.
///
/// # Errors
/// A tensor is missing or has another shape.
pub fn conv1d_weight_norm(
    in_c: usize,
    out_c: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    KernelNames::Parametrized.conv1d([in_c, out_c, kernel_size], true, config, vb)
}

/// [`conv1d_weight_norm`] without a bias.
///
/// # Errors
/// Those of [`conv1d_weight_norm`].
pub fn conv1d_weight_norm_no_bias(
    in_c: usize,
    out_c: usize,
    kernel_size: usize,
    config: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    KernelNames::Parametrized.conv1d([in_c, out_c, kernel_size], false, config, vb)
}

/// A transposed convolution whose kernels are under weight norm, with a bias if `bias` is set.
///
/// # Errors
/// Those of [`conv1d_weight_norm`].
pub fn conv_transpose1d_weight_norm(
    in_c: usize,
    out_c: usize,
    kernel_size: usize,
    bias: bool,
    config: ConvTranspose1dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    let sizes = [in_c, out_c, kernel_size];
    KernelNames::Parametrized.conv_transpose1d(sizes, bias, config, vb)
}

const HEAD_DIM: usize = 64;

/// Attention of frames to those of their window, whose result is added to what came in.
#[derive(Debug, Clone)]
struct LocalAttention {
    norm: LayerNorm,
    qkv: Linear,
    out: Linear,
    /// (window, half a head) each.
    cos: Tensor,
    sin: Tensor,
    heads: usize,
    window: usize,
}

impl LocalAttention {
    fn load(dim: usize, window: usize, vb: VarBuilder) -> Result<Self> {
        if !dim.is_multiple_of(HEAD_DIM) {
            bail!("snac: attention needs a multiple of {HEAD_DIM} channels, but there are {dim}")
        }
        let rates = inverse_frequencies(10_000., HEAD_DIM);
        let rates = Tensor::from_vec(rates, (1, HEAD_DIM / 2), vb.device())?;
        let positions: Vec<_> = (0..window).map(|i| i as f32).collect();
        let positions = Tensor::from_vec(positions, (window, 1), vb.device())?;
        let angles = positions.broadcast_mul(&rates)?;
        Ok(Self {
            norm: layer_norm(dim, 1e-5, vb.pp("norm"))?,
            qkv: linear_no_bias(dim, 3 * dim, vb.pp("to_qkv"))?,
            out: linear_no_bias(dim, dim, vb.pp("to_out"))?,
            cos: angles.cos()?.to_dtype(vb.dtype())?,
            sin: angles.sin()?.to_dtype(vb.dtype())?,
            heads: dim / HEAD_DIM,
            window,
        })
    }
}

impl Module for LocalAttention {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, dim, time) = xs.dims3()?;
        if !time.is_multiple_of(self.window) {
            bail!(
                "snac: {time} frames are not a multiple of the window size {}",
                self.window
            )
        }
        let (windows, heads) = (batch * time / self.window, self.heads);
        let qkv = self.norm.forward(&xs.transpose(1, 2)?.contiguous()?)?;
        let qkv = self.qkv.forward(&qkv)?;
        let qkv = qkv.reshape((windows, self.window, 3 * heads, HEAD_DIM))?;
        let qkv = rope_heads(&qkv.transpose(1, 2)?, &self.cos, &self.sin, 2 * heads)?;
        let part = |i| qkv.narrow(1, i * heads, heads);
        let options = SdpaOptions {
            scale: (HEAD_DIM as f32).powf(-0.5),
            ..Default::default()
        };
        let ys = sdpa_with(&part(0)?, &part(1)?, &part(2)?, &options)?;
        let ys = ys.transpose(1, 2)?.reshape((batch, time, dim))?;
        self.out.forward(&ys)?.transpose(1, 2)? + xs
    }
}

/// From sounds (batch, 1, samples) to frames (batch, channels, frames).
#[derive(Debug, Clone)]
pub struct Encoder {
    first: Conv1d,
    blocks: Vec<EncoderBlock>,
    attention: Option<LocalAttention>,
    last: Conv1d,
}

impl Encoder {
    fn load(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (form, vb) = (cfg.form(), vb.pp("block"));
        let mut dim = cfg.encoder_dim;
        let first = form.conv([1, dim, 7], 1, false, vb.pp(0))?;
        let mut blocks = Vec::with_capacity(cfg.encoder_rates.len());
        for (i, &rate) in cfg.encoder_rates.iter().enumerate() {
            dim *= 2;
            blocks.push(EncoderBlock::load(&form, dim, rate, vb.pp(i + 1))?);
        }
        let mut next = 1 + blocks.len();
        let attention = cfg.attn_window_size.map(|window| {
            next += 1;
            LocalAttention::load(dim, window, vb.pp(next - 1))
        });
        Ok(Self {
            first,
            blocks,
            attention: attention.transpose()?,
            last: form.conv([dim, dim, 7], 1, form.depthwise, vb.pp(next))?,
        })
    }
}

impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = run_all(&self.blocks, &self.first.forward(xs)?)?;
        self.last.forward(&xs.apply(&self.attention.as_ref())?)
    }
}

/// From frames (batch, channels, frames) to sounds (batch, 1, samples) from -1 to 1.
#[derive(Debug, Clone)]
pub struct Decoder {
    first: Vec<Conv1d>,
    attention: Option<LocalAttention>,
    rest: DecoderStages,
}

impl Decoder {
    fn load(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (form, vb) = (cfg.form(), vb.pp("model"));
        let (frame, dim) = (cfg.latent_dim()?, cfg.decoder_dim);
        let first = if cfg.depthwise {
            vec![
                form.conv([frame, frame, 7], 1, true, vb.pp(0))?,
                form.conv([frame, dim, 1], 1, false, vb.pp(1))?,
            ]
        } else {
            vec![form.conv([frame, dim, 7], 1, false, vb.pp(0))?]
        };
        let mut next = first.len();
        let attention = cfg.attn_window_size.map(|window| {
            next += 1;
            LocalAttention::load(dim, window, vb.pp(next - 1))
        });
        Ok(Self {
            first,
            attention: attention.transpose()?,
            rest: DecoderStages::load(&form, (dim, 1), &cfg.decoder_rates, next, &vb)?,
        })
    }
}

impl Module for Decoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = run_all(&self.first, xs)?;
        self.rest.forward(&xs.apply(&self.attention.as_ref())?)
    }
}

/// Codebooks, each for what the ones before it left, and with a rate.
#[derive(Clone, Debug)]
pub struct ResidualVectorQuantizer {
    quantizers: Vec<VectorQuantizer>,
}

impl ResidualVectorQuantizer {
    fn load(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let vb = vb.pp("quantizers");
        let sizes = [cfg.latent_dim()?, cfg.codebook_size, cfg.codebook_dim];
        let load = |(i, &stride): (usize, &usize)| {
            VectorQuantizer::load(KernelNames::Parametrized, sizes, stride, vb.pp(i))
        };
        let quantizers = cfg.vq_strides.iter().enumerate().map(load);
        Ok(Self {
            quantizers: quantizers.collect::<Result<_>>()?,
        })
    }

    fn decode(&self, codes: &[&Tensor]) -> Result<Tensor> {
        let frames = |(codes, quantizer): (&&Tensor, &VectorQuantizer)| match *codes.dims() {
            [batch, time] if time > 0 => Some((batch, time * quantizer.stride())),
            _ => None,
        };
        let mut frames = codes.iter().zip(&self.quantizers).map(frames);
        let first = frames.next().flatten();
        if !codes.is_empty() && (first.is_none() || frames.any(|others| others != first)) {
            let dims: Vec<_> = codes.iter().map(|codes| codes.dims()).collect();
            let strides: Vec<_> = self.quantizers.iter().map(|q| q.stride()).collect();
            bail!(
                "snac: codes must be (batch, frames / stride) with strides {strides:?} and the same batch and frames, not {dims:?}"
            )
        }
        let codes: Vec<_> = codes.iter().map(|codes| (*codes).clone()).collect();
        residual_decode("snac", &self.quantizers, &codes)
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
    /// Samples of a frame.
    pub hop_length: usize,
    /// The configuration of the model.
    pub config: Config,
}

impl Model {
    /// Loads `encoder`, `quantizer` and `decoder`.
    ///
    /// # Errors
    /// The numbers do not go together: a size is 0, the strides of codebooks do not divide the first one, channels cannot be halved that
    /// often, or are not a multiple of 64 where there is attention. A tensor is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.frames()?;
        cfg.latent_dim()?;
        Ok(Self {
            encoder: Encoder::load(cfg, vb.pp("encoder"))?,
            quantizer: ResidualVectorQuantizer::load(cfg, vb.pp("quantizer"))?,
            decoder: Decoder::load(cfg, vb.pp("decoder"))?,
            hop_length: cfg.encoder_rates.iter().product(),
            config: cfg.clone(),
        })
    }

    /// Codes, u32 (batch, frames / stride) for each codebook, of sounds (batch, 1, samples) from -1 to 1 at the sampling rate. What the last
    /// frames lack is silence.
    ///
    /// # Errors
    /// The sounds have another shape, or no samples.
    pub fn encode(&self, audio_data: &Tensor) -> Result<Vec<Tensor>> {
        let (_, samples) = sound("snac", audio_data, 1)?;
        let silence = samples.next_multiple_of(self.hop_length * self.config.frames()?) - samples;
        let frames = self
            .encoder
            .forward(&audio_data.pad_with_zeros(2, 0, silence)?)?;
        residual_encode(&self.quantizer.quantizers, &frames)
    }

    /// Sounds (batch, 1, samples) from -1 to 1 of each codebook's codes (batch, frames / stride), of all codebooks or the first ones. With
    /// [`noise`](Config::noise) no two results are equal.
    ///
    /// # Errors
    /// There are no codes, or those of too many codebooks; their shapes do not go together; the frames do not fill whole windows where
    /// there is attention; a code is not below `codebook_size`.
    pub fn decode(&self, audio_codes: &[&Tensor]) -> Result<Tensor> {
        self.decoder.forward(&self.quantizer.decode(audio_codes)?)
    }

    /// The configuration of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of codebooks.
    pub fn num_codebooks(&self) -> usize {
        self.quantizer.quantizers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use candle_nn::VarMap;

    /// Attention against its definition, query by query.
    #[test]
    fn attention_is_its_definition() -> Result<()> {
        let (dim, window, time) = (128, 3, 6);
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
        let attention = LocalAttention::load(dim, window, vb.clone())?;
        let xs: Vec<f32> = (0..dim * time).map(|i| (i as f32 * 0.7).sin()).collect();
        let xs = Tensor::from_vec(xs, (1, dim, time), &Device::Cpu)?;
        let frames = attention
            .norm
            .forward(&xs.transpose(1, 2)?.contiguous()?)?
            .get(0)?;
        let rows = frames.matmul(&vb.get((3 * dim, dim), "to_qkv.weight")?.t()?)?;
        let rows = rows.to_vec2::<f32>()?;
        // The head's part of a frame's queries, keys or values, rotated by the frame's index in its window.
        let head = |part: usize, head: usize, frame: usize, turned: bool| -> Vec<f32> {
            let start = part * dim + head * HEAD_DIM;
            let xs = &rows[frame][start..start + HEAD_DIM];
            let half = HEAD_DIM / 2;
            let turn = |i: usize| {
                let rate = 10_000f32.powf(-2. * (i % half) as f32 / HEAD_DIM as f32);
                let (sin, cos) = ((frame % window) as f32 * rate).sin_cos();
                if i < half {
                    xs[i] * cos - xs[i + half] * sin
                } else {
                    xs[i] * cos + xs[i - half] * sin
                }
            };
            if turned {
                (0..HEAD_DIM).map(turn).collect()
            } else {
                xs.to_vec()
            }
        };
        let mut ys = vec![0f32; time * dim];
        for (h, query) in (0..2).flat_map(|h| (0..time).map(move |t| (h, t))) {
            let q = head(0, h, query, true);
            let keys = query / window * window..query / window * window + window;
            let score = |key: usize| -> f32 {
                let k = head(1, h, key, true);
                let product: f32 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                (product / 8.).exp()
            };
            let scores: Vec<f32> = keys.clone().map(score).collect();
            let sum: f32 = scores.iter().sum();
            for (key, score) in keys.zip(scores) {
                for (i, v) in head(2, h, key, false).iter().enumerate() {
                    ys[query * dim + h * HEAD_DIM + i] += score / sum * v;
                }
            }
        }
        let ys = Tensor::from_vec(ys, (time, dim), &Device::Cpu)?;
        let out = vb.get((dim, dim), "to_out.weight")?;
        let expected = (ys.matmul(&out.t()?)?.t()?.unsqueeze(0)? + &xs)?;
        let difference = (attention.forward(&xs)? - expected)?.abs()?.max_all()?;
        let difference = difference.to_scalar::<f32>()?;
        assert!(difference < 1e-5, "{difference}");
        Ok(())
    }
}
