//! The UNet of latent diffusion, [arXiv 2112.10752](https://arxiv.org/abs/2112.10752), which finds the noise in latents with the help of a
//! text. Weight names are those of diffusers' `UNet2DConditionModel`.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{group_norm, Conv2d, GroupNorm, VarBuilder};
use tracing::trace_span;

use super::embeddings::{TimestepEmbedding, Timesteps};
use super::unet_2d_blocks::{
    CrossAttnDownBlock2D, CrossAttnDownBlock2DConfig, CrossAttnUpBlock2D, CrossAttnUpBlock2DConfig,
    DownBlock2D, DownBlock2DConfig, UNetMidBlock2DCrossAttn, UNetMidBlock2DCrossAttnConfig,
    UpBlock2D, UpBlock2DConfig,
};
use crate::blocks::vision::ConvSpec;

/// The numbers of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockConfig {
    /// Its channels.
    pub out_channels: usize,
    /// Blocks of each of its transformers; it has none without it.
    pub use_cross_attn: Option<usize>,
    /// Heads, which divide the channels. The files' `config.json` has this name for their number.
    pub attention_head_dim: usize,
}

/// The numbers of a UNet.
#[derive(Debug, Clone)]
pub struct UNet2DConditionModelConfig {
    /// Whether latents come from 0 ..= 1, to be spread to -1 ..= 1.
    pub center_input_sample: bool,
    /// Whether cosines come first in the vector of time.
    pub flip_sin_to_cos: bool,
    /// The shift of the frequencies of time: [`Timesteps::new`].
    pub freq_shift: f64,
    /// The blocks of the way down; that up has the same, the last one first. All but the last halve the size.
    pub blocks: Vec<BlockConfig>,
    /// Residual blocks of each block; those of the way up have one more.
    pub layers_per_block: usize,
    /// The zeros around latents before their size is halved.
    pub downsample_padding: usize,
    /// Divisor of the results of the residual blocks in the middle.
    pub mid_block_scale_factor: f64,
    /// Groups of the norms, which divide all channels.
    pub norm_num_groups: usize,
    /// Group norm epsilon.
    pub norm_eps: f64,
    /// Size of the text's tokens.
    pub cross_attention_dim: usize,
    /// No effect: [`CrossAttention::new`](super::attention::CrossAttention::new).
    pub sliced_attention_size: Option<usize>,
    /// Whether transformers begin and end in linear layers, or in 1x1 convolutions.
    pub use_linear_projection: bool,
}

/// That of Stable Diffusion 1.5, for a text of another size.
impl Default for UNet2DConditionModelConfig {
    fn default() -> Self {
        let block = |out_channels, use_cross_attn| BlockConfig {
            out_channels,
            use_cross_attn,
            attention_head_dim: 8,
        };
        Self {
            center_input_sample: false,
            flip_sin_to_cos: true,
            freq_shift: 0.,
            blocks: vec![
                block(320, Some(1)),
                block(640, Some(1)),
                block(1280, Some(1)),
                block(1280, None),
            ],
            layers_per_block: 2,
            downsample_padding: 1,
            mid_block_scale_factor: 1.,
            norm_num_groups: 32,
            norm_eps: 1e-5,
            cross_attention_dim: 1280,
            sliced_attention_size: None,
            use_linear_projection: false,
        }
    }
}

/// A block of the way down.
#[derive(Debug)]
enum Down {
    Basic(DownBlock2D),
    CrossAttn(CrossAttnDownBlock2D),
}

impl Down {
    fn forward(&self, xs: &Tensor, time: &Tensor, text: &Tensor) -> Result<(Tensor, Vec<Tensor>)> {
        match self {
            Self::Basic(block) => block.forward(xs, Some(time)),
            Self::CrossAttn(block) => block.forward(xs, Some(time), Some(text)),
        }
    }
}

/// A block of the way up.
#[derive(Debug)]
enum Up {
    Basic(UpBlock2D),
    CrossAttn(CrossAttnUpBlock2D),
}

impl Up {
    /// Number of skip connections that it takes.
    fn takes(&self) -> usize {
        match self {
            Self::Basic(block) => block.resnets.len(),
            Self::CrossAttn(block) => block.upblock.resnets.len(),
        }
    }

    fn forward(
        &self,
        xs: &Tensor,
        left: &[Tensor],
        time: &Tensor,
        size: Option<(usize, usize)>,
        text: &Tensor,
    ) -> Result<Tensor> {
        match self {
            Self::Basic(block) => block.forward(xs, left, Some(time), size),
            Self::CrossAttn(block) => block.forward(xs, left, Some(time), size, Some(text)),
        }
    }
}

/// A UNet.
#[derive(Debug)]
pub struct UNet2DConditionModel {
    conv_in: Conv2d,
    timesteps: Timesteps,
    time_embedding: TimestepEmbedding,
    down: Vec<Down>,
    middle: UNetMidBlock2DCrossAttn,
    up: Vec<Up>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
    in_channels: usize,
    config: UNet2DConditionModelConfig,
}

impl UNet2DConditionModel {
    /// Loads `conv_in`, `time_embedding`, `down_blocks.N`, `mid_block`, `up_blocks.N`, `conv_norm_out` and `conv_out`, for latents of
    /// `in_channels` channels to `out_channels`. `use_flash_attn` changes nothing:
    /// [`CrossAttention::new`](super::attention::CrossAttention::new).
    ///
    /// # Errors
    /// There are no blocks, groups or heads do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        out_channels: usize,
        use_flash_attn: bool,
        config: UNet2DConditionModelConfig,
    ) -> Result<Self> {
        let (Some(&first), Some(&last)) = (config.blocks.first(), config.blocks.last()) else {
            bail!("unet: no blocks; at least one is required")
        };
        let (channels, count) = (first.out_channels, config.blocks.len());
        let loader = Loader {
            config: &config,
            time: Some(4 * channels),
            use_flash_attn,
            vb: &vs,
        };
        let size = 4 * channels;
        Ok(Self {
            conv_in: ConvSpec::new(in_channels, channels, 3).load(vs.pp("conv_in"))?,
            timesteps: Timesteps::new(channels, config.flip_sin_to_cos, config.freq_shift),
            time_embedding: TimestepEmbedding::new(vs.pp("time_embedding"), channels, size)?,
            down: (0..count).map(|i| loader.down(i)).collect::<Result<_>>()?,
            middle: loader.middle(last)?,
            up: (0..count).map(|i| loader.up(i)).collect::<Result<_>>()?,
            norm_out: group_norm(
                config.norm_num_groups,
                channels,
                config.norm_eps,
                vs.pp("conv_norm_out"),
            )?,
            conv_out: ConvSpec::new(channels, out_channels, 3).load(vs.pp("conv_out"))?,
            in_channels,
            config,
        })
    }

    /// The model's prediction for latents `xs`, (batch, in_channels, height, width), at training step `timestep`: (batch, out_channels,
    /// height, width). `encoder_hidden_states` is the text, (batch, tokens, cross_attention_dim).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match, or the latents are too small to be halved for each block.
    pub fn forward(
        &self,
        xs: &Tensor,
        timestep: f64,
        encoder_hidden_states: &Tensor,
    ) -> Result<Tensor> {
        self.forward_with_additional_residuals(xs, timestep, encoder_hidden_states, None, None)
    }

    /// As [`forward`](Self::forward), with what a ControlNet ([arXiv 2302.05543](https://arxiv.org/abs/2302.05543)) adds to the tensors
    /// that the way down leaves, all of them in their order, and to the result of the middle.
    ///
    /// # Errors
    /// There is not one residual for each tensor of the way down, and those of [`forward`](Self::forward).
    pub fn forward_with_additional_residuals(
        &self,
        xs: &Tensor,
        timestep: f64,
        encoder_hidden_states: &Tensor,
        down_block_additional_residuals: Option<&[Tensor]>,
        mid_block_additional_residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let _inside = trace_span!("unet2d").entered();
        self.check(xs, encoder_hidden_states)?;
        let text = encoder_hidden_states;
        let xs = if self.config.center_input_sample {
            xs.affine(2., -1.)?
        } else {
            xs.clone()
        };
        let time = self.time(&xs, timestep)?;

        let mut xs = self.conv_in.forward(&xs)?;
        let mut left = vec![xs.clone()];
        for block in &self.down {
            let (ys, states) = block.forward(&xs, &time, text)?;
            left.extend(states);
            xs = ys;
        }
        if let Some(residuals) = down_block_additional_residuals {
            left = added(left, residuals)?;
        }

        xs = self.middle.forward(&xs, Some(&time), Some(text))?;
        if let Some(residual) = mid_block_additional_residual {
            xs = (xs + residual)?;
        }
        for block in &self.up {
            let Some(rest) = left.len().checked_sub(block.takes()) else {
                bail!("unet: the up blocks need more tensors than the down blocks left")
            };
            let taken = left.split_off(rest);
            // Twice the size, but where an odd one was halved.
            let size = match left.last() {
                Some(next) => Some((next.dim(2)?, next.dim(3)?)),
                None => None,
            };
            xs = block.forward(&xs, &taken, &time, size, text)?;
        }
        self.conv_out.forward(&self.norm_out.forward(&xs)?.silu()?)
    }

    /// The vector of time, (batch, 4 * channels). In f32 until it is made, since 16 bits round the time itself.
    fn time(&self, xs: &Tensor, timestep: f64) -> Result<Tensor> {
        let times = vec![timestep as f32; xs.dim(0)?];
        let times = Tensor::new(times, xs.device())?;
        let times = self.timesteps.forward(&times)?.to_dtype(xs.dtype())?;
        self.time_embedding.forward(&times)
    }

    fn check(&self, xs: &Tensor, text: &Tensor) -> Result<()> {
        let (channels, size) = (self.in_channels, self.config.cross_attention_dim);
        let batch = match *xs.dims() {
            [batch, c, h, w] if c == channels && h > 0 && w > 0 => batch,
            _ => bail!(
                "unet: the latents are {:?}; they must be (batch, {channels}, height, width)",
                xs.dims()
            ),
        };
        match *text.dims() {
            [b, tokens, s] if b == batch && s == size && tokens > 0 => Ok(()),
            _ => bail!(
                "unet: the text is {:?}; it must be ({batch}, tokens, {size})",
                text.dims()
            ),
        }
    }
}

/// The tensors with a residual added to each.
fn added(tensors: Vec<Tensor>, residuals: &[Tensor]) -> Result<Vec<Tensor>> {
    if tensors.len() != residuals.len() {
        bail!(
            "unet: got {} residuals for the down blocks; expected {}",
            residuals.len(),
            tensors.len()
        )
    }
    let pairs = tensors.into_iter().zip(residuals);
    pairs.map(|(tensor, residual)| tensor + residual).collect()
}

/// Loads a model's blocks.
struct Loader<'a> {
    config: &'a UNet2DConditionModelConfig,
    /// Size of the vector of time.
    time: Option<usize>,
    use_flash_attn: bool,
    vb: &'a VarBuilder<'a>,
}

impl Loader<'_> {
    fn down(&self, i: usize) -> Result<Down> {
        let config = self.config;
        let block = config.blocks[i];
        let inputs = config.blocks[i.saturating_sub(1)].out_channels;
        let vb = self.vb.pp("down_blocks").pp(i);
        let downblock = DownBlock2DConfig {
            num_layers: config.layers_per_block,
            resnet_eps: config.norm_eps,
            resnet_groups: config.norm_num_groups,
            add_downsample: i + 1 < config.blocks.len(),
            downsample_padding: config.downsample_padding,
            ..Default::default()
        };
        let outputs = block.out_channels;
        let Some(transformer_layers_per_block) = block.use_cross_attn else {
            let block = DownBlock2D::new(vb, inputs, outputs, self.time, downblock)?;
            return Ok(Down::Basic(block));
        };
        let spec = CrossAttnDownBlock2DConfig {
            downblock,
            attn_num_head_channels: block.attention_head_dim,
            cross_attention_dim: config.cross_attention_dim,
            sliced_attention_size: config.sliced_attention_size,
            use_linear_projection: config.use_linear_projection,
            transformer_layers_per_block,
        };
        let (time, flash) = (self.time, self.use_flash_attn);
        let block = CrossAttnDownBlock2D::new(vb, inputs, outputs, time, flash, spec)?;
        Ok(Down::CrossAttn(block))
    }

    fn middle(&self, last: BlockConfig) -> Result<UNetMidBlock2DCrossAttn> {
        let config = self.config;
        let spec = UNetMidBlock2DCrossAttnConfig {
            resnet_eps: config.norm_eps,
            resnet_groups: Some(config.norm_num_groups),
            attn_num_head_channels: last.attention_head_dim,
            output_scale_factor: config.mid_block_scale_factor,
            cross_attn_dim: config.cross_attention_dim,
            use_linear_projection: config.use_linear_projection,
            transformer_layers_per_block: last.use_cross_attn.unwrap_or(1),
            ..Default::default()
        };
        let (channels, time, flash) = (last.out_channels, self.time, self.use_flash_attn);
        UNetMidBlock2DCrossAttn::new(self.vb.pp("mid_block"), channels, time, flash, spec)
    }

    fn up(&self, i: usize) -> Result<Up> {
        let config = self.config;
        let last = config.blocks.len() - 1;
        let block = config.blocks[last - i];
        let outputs = block.out_channels;
        let before = config.blocks[usize::min(last - i + 1, last)].out_channels;
        let inputs = config.blocks[(last - i).saturating_sub(1)].out_channels;
        let vb = self.vb.pp("up_blocks").pp(i);
        let upblock = UpBlock2DConfig {
            num_layers: config.layers_per_block + 1,
            resnet_eps: config.norm_eps,
            resnet_groups: config.norm_num_groups,
            add_upsample: i < last,
            ..Default::default()
        };
        let Some(transformer_layers_per_block) = block.use_cross_attn else {
            let block = UpBlock2D::new(vb, inputs, before, outputs, self.time, upblock)?;
            return Ok(Up::Basic(block));
        };
        let spec = CrossAttnUpBlock2DConfig {
            upblock,
            attn_num_head_channels: block.attention_head_dim,
            cross_attention_dim: config.cross_attention_dim,
            sliced_attention_size: config.sliced_attention_size,
            use_linear_projection: config.use_linear_projection,
            transformer_layers_per_block,
        };
        let (time, flash) = (self.time, self.use_flash_attn);
        let block = CrossAttnUpBlock2D::new(vb, inputs, before, outputs, time, flash, spec)?;
        Ok(Up::CrossAttn(block))
    }
}
