//! The codec: sounds to frames to codes, and back.

use candle_core::{bail, DType, Device, Module, Result, StreamTensor, StreamingModule, Tensor};
use candle_nn::{Activation, VarBuilder};

use super::{conv, quantization, seanet, transformer, NormType};
use crate::blocks::codec::sound;

/// The method of resampling frames.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum ResampleMethod {
    /// By convolutions.
    Conv,
    /// Not supported: an error at loading.
    Interpolate,
}

/// The numbers of a codec.
#[derive(Debug, Clone)]
pub struct Config {
    /// Channels of a sound. The model takes those of `seanet`.
    pub channels: usize,
    /// Samples per second.
    pub sample_rate: f64,
    /// Frames with codes, per second.
    pub frame_rate: f64,
    /// Whether sounds are divided by their loudness before. The model does not do that.
    pub renormalize: bool,
    /// The resampling of SEANet's frames to `frame_rate`.
    pub resample_method: ResampleMethod,
    /// Configuration of the convolutions.
    pub seanet: seanet::Config,
    /// Configuration of the transformers over SEANet's frames.
    pub transformer: transformer::Config,
    /// Codebooks.
    pub quantizer_n_q: usize,
    /// Vectors of a codebook.
    pub quantizer_bins: usize,
    /// Size of a codebook's vectors.
    pub quantizer_dim: usize,
}

impl Config {
    /// [kyutai/mimi](https://huggingface.co/kyutai/mimi)'s, with the first `num_codebooks` of its 32, 16 by default.
    pub fn v0_1(num_codebooks: Option<usize>) -> Self {
        let seanet = seanet::Config {
            dimension: 512,
            channels: 1,
            causal: true,
            n_filters: 64,
            n_residual_layers: 1,
            ratios: vec![8, 6, 5, 4],
            activation: Activation::Elu(1.),
            norm: conv::Norm::WeightNorm,
            kernel_size: 7,
            residual_kernel_size: 3,
            last_kernel_size: 3,
            dilation_base: 2,
            pad_mode: conv::PadMode::Constant,
            true_skip: true,
            compress: 2,
            lstm: 0,
            disable_norm_outer_blocks: 0,
            final_activation: None,
        };
        let transformer = transformer::Config {
            d_model: seanet.dimension,
            num_heads: 8,
            num_layers: 8,
            causal: true,
            norm_first: true,
            bias_ff: false,
            bias_attn: false,
            layer_scale: Some(0.01),
            positional_embedding: transformer::PositionalEmbedding::Rope,
            use_conv_block: false,
            cross_attention: false,
            conv_kernel_size: 5,
            use_conv_bias: true,
            gating: None,
            norm: NormType::LayerNorm,
            context: 250,
            max_period: 10_000,
            max_seq_len: 8192,
            kv_repeat: 1,
            dim_feedforward: 2048,
            conv_layout: true,
        };
        Self {
            channels: 1,
            sample_rate: 24_000.,
            frame_rate: 12.5,
            renormalize: true,
            resample_method: ResampleMethod::Conv,
            seanet,
            transformer,
            quantizer_n_q: num_codebooks.unwrap_or(16),
            quantizer_bins: 2048,
            quantizer_dim: 256,
        }
    }

    /// Number of SEANet's frames per code.
    fn resampling(&self) -> Result<usize> {
        if self.resample_method == ResampleMethod::Interpolate {
            bail!("mimi: resample_method must be Conv; Interpolate is not supported")
        }
        let hop: f64 = self
            .seanet
            .ratios
            .iter()
            .map(|ratio| *ratio as f64)
            .product();
        let times = self.sample_rate / hop / self.frame_rate;
        // Not `times < 1.`, which is false for NaN.
        if !(1. ..1e6).contains(&times) {
            bail!(
                "mimi: a sample_rate of {}, ratios {:?} and a frame_rate of {} give {times} frames of the convolutions for one with codes; \
                 it must be at least 1",
                self.sample_rate,
                self.seanet.ratios,
                self.frame_rate
            )
        }
        Ok(times as usize)
    }
}

/// The codec. It takes a sound or codes as a whole ([`encode`](Self::encode), [`decode`](Self::decode)), or in consecutive pieces
/// ([`encode_step`](Self::encode_step), [`decode_step`](Self::decode_step)), for which it keeps a state.
#[derive(Debug, Clone)]
pub struct Encodec {
    encoder: seanet::SeaNetEncoder,
    decoder: seanet::SeaNetDecoder,
    encoder_transformer: transformer::ProjectedTransformer,
    decoder_transformer: transformer::ProjectedTransformer,
    downsample: conv::ConvDownsample1d,
    upsample: conv::ConvTrUpsample1d,
    quantizer: quantization::SplitResidualVectorQuantizer,
    config: Config,
}

impl Encodec {
    /// Loads `encoder`, `decoder`, `encoder_transformer`, `decoder_transformer`, `downsample`, `upsample` and `quantizer`.
    ///
    /// # Errors
    /// The numbers do not go together, or ask for what is not supported; a tensor is missing or has another shape.
    pub fn new(cfg: Config, vb: VarBuilder) -> Result<Self> {
        let (dim, stride) = (cfg.seanet.dimension, cfg.resampling()?);
        let transformer = |name: &str| {
            let vb = vb.pp(name);
            transformer::ProjectedTransformer::new(dim, &[dim], &cfg.transformer, vb)
        };
        Ok(Self {
            encoder: seanet::SeaNetEncoder::new(&cfg.seanet, vb.pp("encoder"))?,
            decoder: seanet::SeaNetDecoder::new(&cfg.seanet, vb.pp("decoder"))?,
            encoder_transformer: transformer("encoder_transformer")?,
            decoder_transformer: transformer("decoder_transformer")?,
            downsample: conv::ConvDownsample1d::new(stride, dim, true, true, vb.pp("downsample"))?,
            upsample: conv::ConvTrUpsample1d::new(stride, dim, true, true, vb.pp("upsample"))?,
            quantizer: quantization::SplitResidualVectorQuantizer::new(
                cfg.quantizer_dim,
                Some(dim),
                Some(dim),
                cfg.quantizer_n_q,
                cfg.quantizer_bins,
                vb.pp("quantizer"),
            )?,
            config: cfg,
        })
    }

    /// The configuration of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Frames (batch, dimension, frames) of a whole sound (batch, channels, samples), before they get codes. Pieces that are under way are
    /// not touched.
    ///
    /// # Errors
    /// The sound has another shape, or no samples.
    pub fn encode_pre_quantize(&mut self, xs: &Tensor) -> Result<Tensor> {
        sound("mimi", xs, self.config.seanet.channels)?;
        let frames = self.encoder_transformer.whole(&self.encoder.forward(xs)?)?;
        self.downsample.forward(&frames)
    }

    /// Codes, u32 (batch, codebooks, frames), of a whole sound (batch, channels, samples) from -1 to 1 at the sampling rate. Pieces that are
    /// under way are not touched.
    ///
    /// # Errors
    /// The sound has another shape, or no samples.
    pub fn encode(&mut self, xs: &Tensor) -> Result<Tensor> {
        let frames = self.encode_pre_quantize(xs)?;
        self.quantizer.encode(&frames)
    }

    /// Codes, u32 (batch, codebooks, frames), of the frames that the next piece of a sound, (batch, channels, samples), completes: often
    /// none.
    ///
    /// # Errors
    /// The piece has another batch or channels than the ones before it.
    pub fn encode_step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        let frames = self.encoder.step(xs)?;
        let frames = self.encoder_transformer.step(&frames)?;
        let frames = self.downsample.step(&frames)?;
        let codes = frames
            .as_option()
            .map(|frames| self.quantizer.encode(frames));
        codes.transpose().map(StreamTensor::from)
    }

    /// A whole sound (batch, channels, samples) of codes (batch, codebooks, frames). Pieces that are under way are not touched.
    ///
    /// # Errors
    /// The codes are of another number of codebooks, there are no frames, or a code is not below the number of vectors.
    pub fn decode(&mut self, codes: &Tensor) -> Result<Tensor> {
        let frames = self.upsample.forward(&self.quantizer.decode(codes)?)?;
        self.decoder
            .forward(&self.decoder_transformer.whole(&frames)?)
    }

    /// The next piece of a sound (batch, channels, samples) of the next codes (batch, codebooks, frames).
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode), or another batch than before.
    pub fn decode_step(&mut self, codes: &StreamTensor) -> Result<StreamTensor> {
        let frames = codes.as_option().map(|codes| self.quantizer.decode(codes));
        let frames = self.upsample.step(&frames.transpose()?.into())?;
        let frames = self.decoder_transformer.step(&frames)?;
        self.decoder.step(&frames)
    }

    /// Clears the state: the next pieces begin a sound.
    pub fn reset_state(&mut self) {
        self.encoder.reset_state();
        self.encoder_transformer.reset_state();
        self.downsample.reset_state();
        self.upsample.reset_state();
        self.decoder_transformer.reset_state();
        self.decoder.reset_state();
    }
}

/// Mimi in f32 from a safetensors file with [`Config::v0_1`]. The file is memory-mapped while it is read; nothing may change it meanwhile.
///
/// # Errors
/// The file cannot be read, `num_codebooks` is 0, or a tensor is missing or has another shape.
pub fn load(model_file: &str, num_codebooks: Option<usize>, dev: &Device) -> Result<Encodec> {
    // SAFETY: the documentation requires that nothing changes the file.
    let vb = unsafe { VarBuilder::from_mmaped_safetensors(&[model_file], DType::F32, dev)? };
    Encodec::new(Config::v0_1(num_codebooks), vb)
}
