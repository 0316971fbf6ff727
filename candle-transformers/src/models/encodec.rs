//! EnCodec, a codec of sound: [arXiv 2210.13438](https://arxiv.org/abs/2210.13438). Weight names are those of Hugging Face's checkpoints,
//! such as [facebook/encodec_24khz](https://huggingface.co/facebook/encodec_24khz).
//!
//! [SEANet](super::mimi::seanet) takes a sound to frames, 75 of them a second. Codebooks give each frame some numbers, the codes, and back.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::encodec::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { num_filters: 2, codebook_size: 16, target_bandwidths: vec![1.5], num_lstm_layers: 1, ..Config::default() };
//! # /*
//! let config = Config::default();
//! # */
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = Model::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! // A tenth of a second.
//! let sound = Tensor::zeros((1, 1, 2400), DType::F32, &device)?;
//! let codes = model.encode(&sound)?;
//! assert_eq!(codes.dim(2)?, 8);
//! assert_eq!(model.decode(&codes)?.dims(), &[1, 1, 8 * 320]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{
    Activation, Conv1d, Conv1dConfig, ConvTranspose1d, ConvTranspose1dConfig, VarBuilder,
};

use super::mimi::conv::{self, ConvSpec, Norm, StreamableConv1d, StreamableConvTranspose1d};
use super::mimi::seanet::{self, Form, SeaNetDecoder, SeaNetEncoder, SeaNetResnetBlock};
use crate::blocks::codec::{
    residual_decode, residual_encode, sound, Codebook, KernelNames, ResidualLstm, Stage,
};

/// The padding at both ends of a sound.
#[derive(Debug, Copy, Clone, PartialEq, Eq, serde::Deserialize)]
pub enum PadMode {
    /// Zeros.
    #[serde(alias = "constant")]
    Constant,
    /// Its mirror image, whose axis is the first or the last sample. What a sound is too short for is taken from zeros behind it.
    #[serde(alias = "reflect")]
    Reflect,
    /// The first and the last sample.
    #[serde(alias = "replicate")]
    Replicate,
}

impl From<PadMode> for conv::PadMode {
    fn from(mode: PadMode) -> Self {
        match mode {
            PadMode::Constant => Self::Constant,
            PadMode::Reflect => Self::Reflect,
            PadMode::Replicate => Self::Replicate,
        }
    }
}

/// The normalisation of convolutions.
#[derive(Debug, Copy, Clone, PartialEq, Eq, serde::Deserialize)]
pub enum NormType {
    /// Each kernel has a length and a direction, `weight_g` and `weight_v`.
    #[serde(alias = "weight_norm")]
    WeightNorm,
    /// Channels and time together, behind the convolution; not with causal ones.
    #[serde(alias = "time_group_norm")]
    TimeGroupNorm,
    /// Not at all.
    #[serde(alias = "none")]
    None,
}

/// The numbers of a `config.json`.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Config {
    /// Kilobits a second that a sound may take; the last says how many codebooks there are.
    pub target_bandwidths: Vec<f64>,
    /// Samples per second.
    pub sampling_rate: usize,
    /// Channels of a sound.
    pub audio_channels: usize,
    /// Whether sounds are divided by their loudness before. The model does not do that.
    pub normalize: bool,
    /// Chunk length for long sounds, in seconds. The model does not split sounds.
    pub chunk_length_s: Option<usize>,
    /// Fraction by which such chunks overlap. The model does not use it.
    pub overlap: Option<usize>,
    /// Channels of a frame.
    pub hidden_size: usize,
    /// Channels of the outermost layers.
    pub num_filters: usize,
    /// Residual blocks in a stage.
    pub num_residual_layers: usize,
    /// Upsampling factor of each stage of the decoder.
    pub upsampling_ratios: Vec<usize>,
    /// Norm of the convolutions.
    pub norm_type: NormType,
    /// Kernel of each network's first convolution.
    pub kernel_size: usize,
    /// Kernel of each network's last convolution.
    pub last_kernel_size: usize,
    /// Kernel of residual blocks.
    pub residual_kernel_size: usize,
    /// Residual block `j` of a stage has dilation `dilation_growth_rate` to the power of `j`.
    pub dilation_growth_rate: usize,
    /// Whether a frame depends on earlier samples alone.
    pub use_causal_conv: bool,
    /// The padding at both ends of a sound. Checkpoints require [`PadMode::Reflect`].
    pub pad_mode: PadMode,
    /// Factor by which residual blocks reduce the channels inside.
    pub compress: usize,
    /// Layers of each network's LSTM.
    pub num_lstm_layers: usize,
    /// Fraction, from 0 to 1, of causal transposed convolutions' trimming that is at the end.
    pub trim_right_ratio: f64,
    /// Codes that a codebook has.
    pub codebook_size: usize,
    /// Size of a codebook's vectors; `hidden_size`, as there are no projections.
    pub codebook_dim: Option<usize>,
    /// Whether residual blocks convolve what they add.
    pub use_conv_shortcut: bool,
}

/// [facebook/encodec_24khz](https://huggingface.co/facebook/encodec_24khz)'s, but for `pad_mode`, which is [`PadMode::Replicate`] as in
/// Candle.
impl Default for Config {
    fn default() -> Self {
        Self {
            target_bandwidths: vec![1.5, 3.0, 6.0, 12.0, 24.0],
            sampling_rate: 24_000,
            audio_channels: 1,
            normalize: false,
            chunk_length_s: None,
            overlap: None,
            hidden_size: 128,
            num_filters: 32,
            num_residual_layers: 1,
            upsampling_ratios: vec![8, 5, 4, 2],
            norm_type: NormType::WeightNorm,
            kernel_size: 7,
            last_kernel_size: 7,
            residual_kernel_size: 3,
            dilation_growth_rate: 2,
            use_causal_conv: true,
            pad_mode: PadMode::Replicate,
            compress: 2,
            num_lstm_layers: 2,
            trim_right_ratio: 1.0,
            codebook_size: 1024,
            codebook_dim: None,
            use_conv_shortcut: true,
        }
    }
}

/// Bits of bandwidth per code.
const BITS_OF_A_CODE: usize = 10;

impl Config {
    fn codebook_dim(&self) -> usize {
        self.codebook_dim.unwrap_or(self.hidden_size)
    }

    /// Number of codebooks for the largest bandwidth.
    fn codebooks(&self) -> Result<usize> {
        let hop = self
            .upsampling_ratios
            .iter()
            .try_fold(1usize, |hop, ratio| hop.checked_mul(*ratio));
        let (Some(hop @ 1..), rate @ 1..) = (hop, self.sampling_rate) else {
            bail!(
                "encodec: a sampling rate of {} with ratios {:?} yields no frames",
                self.sampling_rate,
                self.upsampling_ratios
            )
        };
        let frame_rate = rate.div_ceil(hop);
        let Some(bandwidth) = self.target_bandwidths.last() else {
            bail!(
                "encodec: target_bandwidths is empty; its last value sets the number of codebooks"
            )
        };
        match (1000. * bandwidth) as usize / (frame_rate * BITS_OF_A_CODE) {
            0 => bail!(
                "encodec: {bandwidth} kbit/s are too few for a codebook, which needs {frame_rate} codes a second of \
                 {BITS_OF_A_CODE} bits"
            ),
            codebooks => Ok(codebooks),
        }
    }

    fn norm(&self) -> Option<Norm> {
        match self.norm_type {
            NormType::WeightNorm => Some(Norm::WeightNorm),
            NormType::TimeGroupNorm => Some(Norm::TimeGroupNorm),
            NormType::None => None,
        }
    }

    fn seanet(&self) -> seanet::Config {
        seanet::Config {
            dimension: self.hidden_size,
            channels: self.audio_channels,
            causal: self.use_causal_conv,
            n_filters: self.num_filters,
            n_residual_layers: self.num_residual_layers,
            ratios: self.upsampling_ratios.clone(),
            activation: Activation::Elu(1.),
            norm: self.norm().unwrap_or(Norm::WeightNorm),
            kernel_size: self.kernel_size,
            residual_kernel_size: self.residual_kernel_size,
            last_kernel_size: self.last_kernel_size,
            dilation_base: self.dilation_growth_rate,
            pad_mode: self.pad_mode.into(),
            true_skip: !self.use_conv_shortcut,
            compress: self.compress,
            lstm: self.num_lstm_layers,
            disable_norm_outer_blocks: match self.norm() {
                Some(_) => 0,
                None => usize::MAX,
            },
            final_activation: None,
        }
    }

    fn form(&self) -> Form {
        Form {
            names: KernelNames::Pair,
            trim_right: self.trim_right_ratio,
        }
    }

    fn conv(&self, sizes: [usize; 3], stride: usize, dilation: usize) -> ConvSpec {
        ConvSpec {
            stride,
            dilation,
            pad_mode: self.pad_mode.into(),
            names: KernelNames::Pair,
            ..ConvSpec::new(sizes, true, self.use_causal_conv, self.norm())
        }
    }

    fn has_lstm(&self) -> Result<()> {
        if self.num_lstm_layers == 0 {
            bail!("encodec: num_lstm_layers must be at least 1, not 0")
        }
        Ok(())
    }
}

/// A convolution of `kernel_size` with a bias whose kernels are under weight norm: `weight_g`, `weight_v` and `bias`. The norm is applied
/// once, here, so training does not go through it.
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
    KernelNames::Pair.conv1d([in_c, out_c, kernel_size], true, config, vb)
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
    KernelNames::Pair.conv1d([in_c, out_c, kernel_size], false, config, vb)
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
    KernelNames::Pair.conv_transpose1d([in_c, out_c, kernel_size], bias, config, vb)
}

/// The vectors of a codebook, each with a number.
#[derive(Clone, Debug)]
pub struct EuclideanCodebook {
    vectors: Codebook,
}

impl EuclideanCodebook {
    /// Loads `embed` (`codebook_size`, `codebook_dim`). What training counted is not read.
    ///
    /// # Errors
    /// It is missing, empty, or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (size, dim) = (cfg.codebook_size, cfg.codebook_dim());
        if size == 0 || dim == 0 {
            bail!("encodec: a codebook of {size} vectors with {dim} numbers is empty")
        }
        let vectors = Codebook::by_distance(vb.get((size, dim), "embed")?)?;
        Ok(Self { vectors })
    }

    /// The same as [`encode`](Self::encode). They differ in Candle.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_slow(&self, xs: &Tensor) -> Result<Tensor> {
        self.encode(xs)
    }

    /// The numbers, u32 (…), of the vectors at the smallest distance from `xs` (…, dim). Runs on every device.
    ///
    /// # Errors
    /// `xs` has another last size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        self.vectors.nearest(xs)
    }

    /// The vectors (…, dim) with these numbers (…).
    ///
    /// # Errors
    /// The numbers are not integers, or not below the number of vectors.
    pub fn decode(&self, embed_ind: &Tensor) -> Result<Tensor> {
        self.vectors.lookup(embed_ind)
    }
}

/// A codebook for frames.
#[derive(Clone, Debug)]
pub struct VectorQuantization {
    codebook: EuclideanCodebook,
}

impl VectorQuantization {
    /// Loads `codebook`.
    ///
    /// # Errors
    /// Those of [`EuclideanCodebook::new`].
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let codebook = EuclideanCodebook::new(cfg, vb.pp("codebook"))?;
        Ok(Self { codebook })
    }

    /// Codes, u32 (batch, frames), of frames (batch, dim, frames).
    ///
    /// # Errors
    /// The frames have another size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        self.codebook.encode(&xs.transpose(1, 2)?)
    }

    /// Frames (batch, dim, frames) of codes (batch, frames).
    ///
    /// # Errors
    /// Those of [`EuclideanCodebook::decode`].
    pub fn decode(&self, embed_ind: &Tensor) -> Result<Tensor> {
        self.codebook.decode(embed_ind)?.transpose(1, 2)
    }
}

impl Stage for VectorQuantization {
    fn numbers(&self, xs: &Tensor) -> Result<Tensor> {
        self.encode(xs)
    }

    fn values(&self, numbers: &Tensor) -> Result<Tensor> {
        self.decode(numbers)
    }
}

/// Codebooks, each for what the ones before it left.
#[derive(Clone, Debug)]
pub struct ResidualVectorQuantizer {
    layers: Vec<VectorQuantization>,
}

impl ResidualVectorQuantizer {
    /// Loads `layers.0` and so on, the number for the last of `target_bandwidths`.
    ///
    /// # Errors
    /// That number is 0, or those of [`EuclideanCodebook::new`].
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let vb = vb.pp("layers");
        let layers = (0..cfg.codebooks()?).map(|i| VectorQuantization::new(cfg, vb.pp(i)));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// Codes, u32 (codebooks, batch, frames), of frames (batch, dim, frames).
    ///
    /// # Errors
    /// The frames have another size.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        Tensor::stack(&residual_encode(&self.layers, xs)?, 0)
    }

    /// Frames (batch, dim, frames) of the first codebooks' codes (codebooks, batch, frames).
    ///
    /// # Errors
    /// There are no codes, or those of more codebooks than there are, or those of [`EuclideanCodebook::decode`].
    pub fn decode(&self, codes: &Tensor) -> Result<Tensor> {
        let (codebooks, _, _) = codes.dims3()?;
        let codes: Vec<_> = (0..codebooks)
            .map(|i| codes.get(i))
            .collect::<Result<_>>()?;
        residual_decode("encodec", &self.layers, &codes)
    }
}

/// LSTM layers, whose result is added to what came in.
#[derive(Clone, Debug)]
pub struct EncodecLSTM {
    lstm: ResidualLstm,
}

impl EncodecLSTM {
    /// Loads `lstm.weight_ih_l0` and so on: `num_lstm_layers` layers with `dim` features.
    ///
    /// # Errors
    /// There are no layers, or a tensor is missing or has another shape.
    pub fn new(dim: usize, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.has_lstm()?;
        ResidualLstm::load(dim, cfg.num_lstm_layers, vb).map(|lstm| Self { lstm })
    }
}

impl Module for EncodecLSTM {
    /// Applied to (batch, dim, frames).
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.lstm.forward(xs)
    }
}

/// A convolution that gives a frame for each stride of (batch, channels, time).
#[derive(Clone, Debug)]
pub struct EncodecConv1d {
    conv: StreamableConv1d,
}

impl EncodecConv1d {
    /// Loads `conv`, and `norm` of a group norm.
    ///
    /// # Errors
    /// A size is 0, the stride is larger than what the kernel spans, or a tensor is missing or has another shape.
    pub fn new(
        in_c: usize,
        out_c: usize,
        kernel_size: usize,
        stride: usize,
        dilation: usize,
        cfg: &Config,
        vb: VarBuilder,
    ) -> Result<Self> {
        let spec = cfg.conv([in_c, out_c, kernel_size], stride, dilation);
        StreamableConv1d::load(spec, vb).map(|conv| Self { conv })
    }
}

impl Module for EncodecConv1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.conv.forward(xs)
    }
}

/// A transposed convolution that gives a stride of samples for each frame: part of Candle's interface, which has no constructor for it
/// either. [`Decoder`] has its like inside.
#[derive(Clone, Debug)]
pub struct EncodecConvTranspose1d {
    conv: StreamableConvTranspose1d,
}

impl Module for EncodecConvTranspose1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.conv.forward(xs)
    }
}

/// Two convolutions with fewer channels between them, whose result is added to what came in, or to a convolution of it.
#[derive(Clone, Debug)]
pub struct EncodecResnetBlock {
    block: SeaNetResnetBlock,
}

impl EncodecResnetBlock {
    /// Loads `block.1`, `block.3` and `shortcut`. The dilations are of the first convolution and of the second.
    ///
    /// # Errors
    /// `compress` leaves no channels, or those of [`EncodecConv1d::new`].
    pub fn new(
        dim: usize,
        (dilation1, dilation2): (usize, usize),
        cfg: &Config,
        vb: VarBuilder,
    ) -> Result<Self> {
        let kernels = [(cfg.residual_kernel_size, dilation1), (1, dilation2)];
        let inner = (cfg.compress, !cfg.use_conv_shortcut);
        let conv = cfg.conv([dim; 3], 1, 1);
        SeaNetResnetBlock::load(conv, &kernels, Activation::Elu(1.), inner, vb)
            .map(|block| Self { block })
    }
}

impl Module for EncodecResnetBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.block.forward(xs)
    }
}

/// From sounds (batch, channels, samples) to frames (batch, `hidden_size`, frames).
#[derive(Clone, Debug)]
pub struct Encoder {
    net: SeaNetEncoder,
}

impl Encoder {
    /// Loads `layers.0` and so on.
    ///
    /// # Errors
    /// A size is 0 or too large, or a tensor is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.has_lstm()?;
        SeaNetEncoder::load(&cfg.seanet(), &cfg.form(), vb).map(|net| Self { net })
    }
}

impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.net.forward(xs)
    }
}

/// From frames (batch, `hidden_size`, frames) to sounds (batch, channels, samples).
#[derive(Clone, Debug)]
pub struct Decoder {
    net: SeaNetDecoder,
}

impl Decoder {
    /// Loads `layers.0` and so on.
    ///
    /// # Errors
    /// Those of [`Encoder::new`].
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.has_lstm()?;
        SeaNetDecoder::load(&cfg.seanet(), &cfg.form(), vb).map(|net| Self { net })
    }
}

impl Module for Decoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.net.forward(xs)
    }
}

/// The codec.
#[derive(Debug, Clone)]
pub struct Model {
    encoder: Encoder,
    decoder: Decoder,
    quantizer: ResidualVectorQuantizer,
    channels: usize,
}

impl Model {
    /// Loads `encoder`, `decoder` and `quantizer`.
    ///
    /// # Errors
    /// The numbers do not go together: a size is 0 or too large, codebooks have another size than frames, or there are none. A tensor is
    /// missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        if cfg.codebook_dim() != cfg.hidden_size {
            bail!(
                "encodec: codebook_dim is {}; it must equal hidden_size, {}, as there are no projections",
                cfg.codebook_dim(),
                cfg.hidden_size
            )
        }
        cfg.codebooks()?;
        Ok(Self {
            encoder: Encoder::new(cfg, vb.pp("encoder"))?,
            decoder: Decoder::new(cfg, vb.pp("decoder"))?,
            quantizer: ResidualVectorQuantizer::new(cfg, vb.pp("quantizer"))?,
            channels: cfg.audio_channels,
        })
    }

    /// Codes, u32 (batch, codebooks, frames), of sounds (batch, channels, samples) from -1 to 1 at the sampling rate. The last frame may
    /// have samples beyond the sound's end.
    ///
    /// # Errors
    /// The sounds have another shape, or no samples.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        sound("encodec", xs, self.channels)?;
        let codes = self.quantizer.encode(&self.encoder.forward(xs)?)?;
        codes.transpose(0, 1)
    }

    /// Sounds (batch, channels, samples) of codes (batch, codebooks, frames), which may be those of the first codebooks alone.
    ///
    /// # Errors
    /// There are no codes, or those of more codebooks than there are; a code is not below `codebook_size`.
    pub fn decode(&self, codes: &Tensor) -> Result<Tensor> {
        match *codes.dims() {
            [_, codebooks, frames] if codebooks > 0 && frames > 0 => {}
            _ => bail!(
                "encodec: codes must be (batch, codebooks, frames) with at least 1 frame, not {:?}",
                codes.dims()
            ),
        }
        let frames = self.quantizer.decode(&codes.transpose(0, 1)?)?;
        self.decoder.forward(&frames)
    }
}
