//! The encoder of sound: two convolutions of the spectrogram, then a conformer ([arXiv 2005.08100](https://arxiv.org/abs/2005.08100)) whose
//! attention is in blocks, with relative positions as [arXiv 1901.02860](https://arxiv.org/abs/1901.02860) has them.

use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::{
    conv1d_no_bias, conv2d_no_bias, linear, linear_no_bias, rms_norm, Conv1d, Conv1dConfig, Conv2d,
    Conv2dConfig, LayerNorm, Linear, RmsNorm, VarBuilder,
};

use super::audio_attention::Attention;
use super::config::Gemma4AudioConfig;
use super::parts::{has, ClippedLinear};
use super::FAMILY;

/// Zeros at both ends of the bands.
const BAND_PADDING: usize = 1;

/// A convolution of frames and bands, a norm of its channels, and a ReLU.
#[derive(Debug, Clone)]
struct Subsample {
    conv: Conv2d,
    norm: LayerNorm,
    stride: usize,
    /// Zeros at both ends of the frames.
    padding: usize,
}

impl Subsample {
    fn load(cfg: &Gemma4AudioConfig, i: usize, inputs: usize, vb: VarBuilder) -> Result<Self> {
        let outputs = cfg.sscp_conv_channel_size[i];
        let (kernel, stride) = (
            cfg.sscp_conv_kernel_size[i][0],
            cfg.sscp_conv_stride_size[i][0],
        );
        let config = Conv2dConfig {
            stride,
            ..Default::default()
        };
        let vb_norm = vb.pp("norm");
        let weight = if has(&vb_norm, "weight") {
            vb_norm.get(outputs, "weight")?
        } else {
            Tensor::ones(outputs, vb.dtype(), vb.device())?
        };
        Ok(Self {
            conv: conv2d_no_bias(inputs, outputs, kernel, config, vb.pp("conv"))?,
            norm: LayerNorm::new_no_bias(weight, cfg.rms_norm_eps),
            stride,
            padding: kernel / 2,
        })
    }

    /// From (b, frames, bands, channels) and a mask (b, frames) to fewer frames and bands.
    fn forward(&self, xs: &Tensor, mask: &Tensor) -> Result<(Tensor, Tensor)> {
        let heard = mask.eq(0f64)?.to_dtype(xs.dtype())?;
        let xs = xs.broadcast_mul(&heard.unsqueeze(2)?.unsqueeze(3)?)?;
        let xs = xs
            .permute((0, 3, 1, 2))?
            .pad_with_zeros(3, BAND_PADDING, BAND_PADDING)?
            .pad_with_zeros(2, self.padding, self.padding)?;
        let xs = self
            .conv
            .forward(&xs)?
            .permute((0, 2, 3, 1))?
            .contiguous()?;
        let xs = self.norm.forward(&xs)?.relu()?;
        let mask = every(mask, self.stride, xs.dim(1)?)?;
        Ok((xs, mask))
    }
}

/// `count` of the entries along dimension 1, one in `stride`; the last again where there are none.
fn every(xs: &Tensor, stride: usize, count: usize) -> Result<Tensor> {
    let last = xs.dim(1)?.saturating_sub(1);
    let taken: Vec<_> = (0..count).map(|i| (i * stride).min(last) as u32).collect();
    xs.index_select(&Tensor::from_vec(taken, count, xs.device())?, 1)
}

/// The largest number that activations are clamped to.
fn limit(cfg: &Gemma4AudioConfig, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => cfg.gradient_clipping.min(65_504.),
        _ => cfg.gradient_clipping,
    }
}

#[derive(Debug, Clone)]
struct FeedForward {
    before: RmsNorm,
    up: ClippedLinear,
    down: ClippedLinear,
    after: RmsNorm,
    scale: f64,
    limit: f64,
}

impl FeedForward {
    fn load(cfg: &Gemma4AudioConfig, vb: VarBuilder) -> Result<Self> {
        let size = cfg.hidden_size;
        let norm = |name| rms_norm(size, cfg.rms_norm_eps, vb.pp(name));
        Ok(Self {
            before: norm("pre_layer_norm")?,
            up: ClippedLinear::load(size, 4 * size, vb.pp("ffw_layer_1"))?,
            down: ClippedLinear::load(4 * size, size, vb.pp("ffw_layer_2"))?,
            after: norm("post_layer_norm")?,
            scale: cfg.conf_residual_weight,
            limit: limit(cfg, vb.dtype()),
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.before.forward(&xs.clamp(-self.limit, self.limit)?)?;
        let ys = self.down.forward(&self.up.forward(&ys)?.silu()?)?;
        let ys = self.after.forward(&ys.clamp(-self.limit, self.limit)?)?;
        xs + (ys * self.scale)?
    }
}

/// A causal convolution over the frames of each channel.
#[derive(Debug, Clone)]
struct LightConv {
    before: RmsNorm,
    start: ClippedLinear,
    conv: Conv1d,
    norm: RmsNorm,
    end: ClippedLinear,
    padding: usize,
    limit: f64,
}

impl LightConv {
    fn load(cfg: &Gemma4AudioConfig, vb: VarBuilder) -> Result<Self> {
        let (size, kernel) = (cfg.hidden_size, cfg.conf_conv_kernel_size);
        let config = Conv1dConfig {
            groups: size,
            ..Default::default()
        };
        let norm = |name| rms_norm(size, cfg.rms_norm_eps, vb.pp(name));
        Ok(Self {
            before: norm("pre_layer_norm")?,
            start: ClippedLinear::load(size, 2 * size, vb.pp("linear_start"))?,
            conv: conv1d_no_bias(size, size, kernel, config, vb.pp("depthwise_conv1d"))?,
            norm: norm("conv_norm")?,
            end: ClippedLinear::load(size, size, vb.pp("linear_end"))?,
            padding: kernel - 1,
            limit: limit(cfg, vb.dtype()),
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.start.forward(&self.before.forward(xs)?)?;
        let half = ys.dim(D::Minus1)? / 2;
        let gate = candle_nn::ops::sigmoid(&ys.narrow(D::Minus1, half, half)?)?;
        let ys = (ys.narrow(D::Minus1, 0, half)? * gate)?.transpose(1, 2)?;
        let ys = ys.pad_with_zeros(2, self.padding, 0)?;
        let ys = self.conv.forward(&ys)?.transpose(1, 2)?.contiguous()?;
        let ys = self.norm.forward(&ys.clamp(-self.limit, self.limit)?)?;
        xs + self.end.forward(&ys.silu()?)?
    }
}

#[derive(Debug, Clone)]
struct Block {
    first: FeedForward,
    before: RmsNorm,
    attention: Attention,
    after: RmsNorm,
    conv: LightConv,
    last: FeedForward,
    norm: RmsNorm,
    limit: f64,
}

impl Block {
    fn load(cfg: &Gemma4AudioConfig, vb: VarBuilder) -> Result<Self> {
        let norm = |name| rms_norm(cfg.hidden_size, cfg.rms_norm_eps, vb.pp(name));
        Ok(Self {
            first: FeedForward::load(cfg, vb.pp("feed_forward1"))?,
            before: norm("norm_pre_attn")?,
            attention: Attention::load(cfg, vb.pp("self_attn"))?,
            after: norm("norm_post_attn")?,
            conv: LightConv::load(cfg, vb.pp("lconv1d"))?,
            last: FeedForward::load(cfg, vb.pp("feed_forward2"))?,
            norm: norm("norm_out")?,
            limit: limit(cfg, vb.dtype()),
        })
    }

    fn forward(&self, xs: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let clamped = |xs: Tensor| xs.clamp(-self.limit, self.limit);
        let xs = self.first.forward(xs)?;
        let ys = self.before.forward(&clamped(xs.clone())?)?;
        let ys = clamped(self.attention.forward(&ys, mask)?)?;
        let xs = (xs + self.after.forward(&ys)?)?;
        let xs = self.conv.forward(&xs)?;
        self.norm.forward(&clamped(self.last.forward(&xs)?)?)
    }
}

/// The encoder of sound.
#[derive(Debug, Clone)]
pub struct AudioModel {
    subsample: [Subsample; 2],
    input: Linear,
    blocks: Vec<Block>,
    output: Option<Linear>,
    cfg: Gemma4AudioConfig,
}

impl AudioModel {
    /// Loads `subsample_conv_projection`, `layers.N`, and `output_proj` if the configuration has its size.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Gemma4AudioConfig, vb: VarBuilder) -> Result<Self> {
        check(cfg)?;
        let size = cfg.hidden_size;
        let vb_first = vb.pp("subsample_conv_projection");
        let channels = &cfg.sscp_conv_channel_size;
        let mut bands = cfg.input_feat_size;
        for i in 0..2 {
            let (kernel, stride) = (
                cfg.sscp_conv_kernel_size[i][1],
                cfg.sscp_conv_stride_size[i][1],
            );
            bands = (bands + 2 * BAND_PADDING).saturating_sub(kernel) / stride + 1;
        }
        let layers =
            (0..cfg.conf_num_hidden_layers).map(|i| Block::load(cfg, vb.pp("layers").pp(i)));
        let input = vb_first.pp("input_proj_linear");
        Ok(Self {
            subsample: [
                Subsample::load(cfg, 0, 1, vb_first.pp("layer0"))?,
                Subsample::load(cfg, 1, channels[0], vb_first.pp("layer1"))?,
            ],
            input: linear_no_bias(channels[1] * bands, size, input)?,
            blocks: layers.collect::<Result<_>>()?,
            output: match cfg.output_proj_dims {
                Some(dim) => Some(linear(size, dim, vb.pp("output_proj"))?),
                None => None,
            },
            cfg: cfg.clone(),
        })
    }

    /// From spectrograms, (b, frames, input_feat_size), and their masks, (b, frames) of numbers that are 0 where a frame is heard and 1
    /// where it fills the row up, to vectors, (b, frames / 4, output_proj_dims), and their masks. Vectors that are not heard are 0.
    ///
    /// # Errors
    /// If the shapes are others, or there are no frames.
    pub fn forward(&self, audio_mel: &Tensor, audio_mel_mask: &Tensor) -> Result<(Tensor, Tensor)> {
        let bands = self.cfg.input_feat_size;
        let fits = match *audio_mel.dims() {
            [b, t, n] => n == bands && b * t > 0 && audio_mel_mask.dims() == [b, t],
            _ => false,
        };
        if !fits {
            bail!(
                "{FAMILY}: a spectrogram of {:?} with a mask of {:?}; they must be (batch, frames, {bands}) and (batch, frames), \
                 with at least one frame",
                audio_mel.dims(),
                audio_mel_mask.dims()
            )
        }
        let xs = audio_mel
            .to_dtype(self.input.weight().dtype())?
            .unsqueeze(3)?;
        let [first, second] = &self.subsample;
        let (xs, mask) = first.forward(&xs, audio_mel_mask)?;
        let (xs, mut mask) = second.forward(&xs, &mask)?;
        let mut xs = self.input.forward(&xs.flatten_from(2)?)?;
        for block in &self.blocks {
            xs = block.forward(&xs, &mask)?;
        }
        let reduction = self.cfg.conf_reduction_factor;
        if reduction > 1 {
            let count = xs.dim(1)?.div_ceil(reduction);
            xs = every(&xs, reduction, count)?;
            mask = every(&mask, reduction, count)?;
        }
        if let Some(output) = &self.output {
            xs = output.forward(&xs)?;
        }
        let heard = mask.eq(0f64)?.unsqueeze(2)?.broadcast_as(xs.shape())?;
        let xs = heard.where_cond(&xs, &xs.zeros_like()?)?;
        Ok((xs, mask))
    }
}

fn check(cfg: &Gemma4AudioConfig) -> Result<()> {
    let (size, heads) = (cfg.hidden_size, cfg.conf_num_attention_heads);
    if heads == 0 || size == 0 || size % heads != 0 {
        bail!("{FAMILY} config: {heads} heads do not divide hidden_size {size} of audio_config")
    }
    let (chunk, kernel) = (cfg.conf_attention_chunk_size, cfg.conf_conv_kernel_size);
    if chunk == 0 || kernel == 0 || cfg.input_feat_size == 0 {
        bail!(
            "{FAMILY} config: attention_chunk_size {chunk}, conv_kernel_size {kernel} and input_feat_size {} must be at least 1",
            cfg.input_feat_size
        )
    }
    let pairs = |sizes: &Vec<Vec<usize>>| {
        sizes.len() >= 2 && sizes[..2].iter().all(|s| s.len() == 2 && !s.contains(&0))
    };
    let (channels, kernels, strides) = (
        &cfg.sscp_conv_channel_size,
        &cfg.sscp_conv_kernel_size,
        &cfg.sscp_conv_stride_size,
    );
    if channels.len() < 2 || channels.contains(&0) || !pairs(kernels) || !pairs(strides) {
        bail!(
            "{FAMILY} config: channels {channels:?}, kernels {kernels:?} and strides {strides:?} of the convolutions of audio_config; \
             there must be two of each, of at least 1"
        )
    }
    Ok(())
}
