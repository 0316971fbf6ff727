//! The way down: blocks whose result has half the height and width.

use candle_core::{Module, Result, Tensor, D};
use candle_nn::{Conv2d, VarBuilder};
use tracing::trace_span;

use super::{first_then, resnets, transformer};
use crate::blocks::vision::ConvSpec;
use crate::models::stable_diffusion::attention::{SpatialTransformer, SpatialTransformerConfig};
use crate::models::stable_diffusion::resnet::{ResnetBlock2D, ResnetBlock2DConfig};

/// A convolution of stride 2.
#[derive(Debug)]
struct Downsample {
    conv: Conv2d,
    padding: usize,
}

impl Downsample {
    fn load(channels: usize, padding: usize, vb: VarBuilder) -> Result<Self> {
        let conv = ConvSpec::new(channels, channels, 3).stride(2);
        Ok(Self {
            conv: conv.padding(padding).load(vb.pp("conv"))?,
            padding,
        })
    }
}

impl Module for Downsample {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self.padding {
            // Zeros at the right and the bottom alone.
            0 => {
                let wider = xs.pad_with_zeros(D::Minus1, 0, 1)?;
                self.conv.forward(&wider.pad_with_zeros(D::Minus2, 0, 1)?)
            }
            _ => self.conv.forward(xs),
        }
    }
}

/// Residual blocks, and the convolution of stride 2 behind them if there is one.
#[derive(Debug)]
struct Down {
    resnets: Vec<ResnetBlock2D>,
    downsample: Option<Downsample>,
}

impl Down {
    fn load(
        [in_channels, out_channels]: [usize; 2],
        temb_channels: Option<usize>,
        config: &DownBlock2DConfig,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let resnet = ResnetBlock2DConfig {
            out_channels: Some(out_channels),
            temb_channels,
            groups: config.resnet_groups,
            eps: config.resnet_eps,
            output_scale_factor: config.output_scale_factor,
            ..Default::default()
        };
        let inputs = first_then(in_channels, out_channels, config.num_layers);
        let downsample = || {
            let vb = vb.pp("downsamplers").pp("0");
            Downsample::load(out_channels, config.downsample_padding, vb)
        };
        Ok(Self {
            resnets: resnets(inputs, resnet, vb)?,
            downsample: config.add_downsample.then(downsample).transpose()?,
        })
    }

    /// The result, and what each block gave with `then` applied, and at last the convolution.
    fn forward(
        &self,
        xs: &Tensor,
        temb: Option<&Tensor>,
        then: impl Fn(usize, Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (mut xs, mut states) = (xs.clone(), Vec::with_capacity(self.resnets.len() + 1));
        for (i, resnet) in self.resnets.iter().enumerate() {
            xs = then(i, resnet.forward(&xs, temb)?)?;
            states.push(xs.clone());
        }
        if let Some(downsample) = &self.downsample {
            xs = downsample.forward(&xs)?;
            states.push(xs.clone());
        }
        Ok((xs, states))
    }
}

/// The numbers of a [`DownEncoderBlock2D`].
pub type DownEncoderBlock2DConfig = DownBlock2DConfig;

/// A block of an autoencoder's encoder.
#[derive(Debug)]
pub struct DownEncoderBlock2D {
    down: Down,
    /// The configuration of the block.
    pub config: DownEncoderBlock2DConfig,
}

impl DownEncoderBlock2D {
    /// Loads `resnets.N` and, if it halves the size, `downsamplers.0.conv`.
    ///
    /// # Errors
    /// Groups do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        out_channels: usize,
        config: DownEncoderBlock2DConfig,
    ) -> Result<Self> {
        Ok(Self {
            down: Down::load([in_channels, out_channels], None, &config, &vs)?,
            config,
        })
    }
}

/// From (batch, in_channels, height, width) to (batch, out_channels, height / 2, width / 2), or the whole size.
impl Module for DownEncoderBlock2D {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _inside = trace_span!("down-enc2d").entered();
        let (xs, _) = self.down.forward(xs, None, |_, xs| Ok(xs))?;
        Ok(xs)
    }
}

/// The numbers of a [`DownBlock2D`].
#[derive(Debug, Clone, Copy)]
pub struct DownBlock2DConfig {
    /// Residual blocks.
    pub num_layers: usize,
    /// Norm epsilon.
    pub resnet_eps: f64,
    /// Groups of the norms.
    pub resnet_groups: usize,
    /// Divisor of the result of each residual block.
    pub output_scale_factor: f64,
    /// Whether the size is halved.
    pub add_downsample: bool,
    /// Padding before the size is halved; 0 for a row and a column at the bottom and the right.
    pub downsample_padding: usize,
}

impl Default for DownBlock2DConfig {
    fn default() -> Self {
        Self {
            num_layers: 1,
            resnet_eps: 1e-6,
            resnet_groups: 32,
            output_scale_factor: 1.,
            add_downsample: true,
            downsample_padding: 1,
        }
    }
}

/// A block of a UNet on the way down.
#[derive(Debug)]
pub struct DownBlock2D {
    down: Down,
    /// The configuration of the block.
    pub config: DownBlock2DConfig,
}

impl DownBlock2D {
    /// Loads `resnets.N` and, if it halves the size, `downsamplers.0.conv`.
    ///
    /// # Errors
    /// Groups do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        out_channels: usize,
        temb_channels: Option<usize>,
        config: DownBlock2DConfig,
    ) -> Result<Self> {
        Ok(Self {
            down: Down::load([in_channels, out_channels], temb_channels, &config, &vs)?,
            config,
        })
    }

    /// From (batch, in_channels, height, width) to (batch, out_channels, height / 2, width / 2), or the whole size; and what each
    /// residual block gave, and then the result if its size was halved.
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, temb: Option<&Tensor>) -> Result<(Tensor, Vec<Tensor>)> {
        let _inside = trace_span!("down2d").entered();
        self.down.forward(xs, temb, |_, xs| Ok(xs))
    }
}

/// The numbers of a [`CrossAttnDownBlock2D`].
#[derive(Debug, Clone, Copy)]
pub struct CrossAttnDownBlock2DConfig {
    /// The configuration of the parts other than attention.
    pub downblock: DownBlock2DConfig,
    /// Heads, which divide the channels.
    pub attn_num_head_channels: usize,
    /// Size of the text's tokens.
    pub cross_attention_dim: usize,
    /// No effect: [`CrossAttention::new`](crate::models::stable_diffusion::attention::CrossAttention::new).
    pub sliced_attention_size: Option<usize>,
    /// Whether transformers begin and end in linear layers, or in 1x1 convolutions.
    pub use_linear_projection: bool,
    /// Blocks of each transformer.
    pub transformer_layers_per_block: usize,
}

impl Default for CrossAttnDownBlock2DConfig {
    fn default() -> Self {
        Self {
            downblock: DownBlock2DConfig::default(),
            attn_num_head_channels: 1,
            cross_attention_dim: 1280,
            sliced_attention_size: None,
            use_linear_projection: false,
            transformer_layers_per_block: 1,
        }
    }
}

/// A block of a UNet on the way down, with a transformer behind each residual block.
#[derive(Debug)]
pub struct CrossAttnDownBlock2D {
    downblock: DownBlock2D,
    attentions: Vec<SpatialTransformer>,
    /// The configuration of the block.
    pub config: CrossAttnDownBlock2DConfig,
}

impl CrossAttnDownBlock2D {
    /// Loads `resnets.N`, `attentions.N` and, if it halves the size, `downsamplers.0.conv`. `use_flash_attn` changes nothing:
    /// [`CrossAttention::new`](crate::models::stable_diffusion::attention::CrossAttention::new).
    ///
    /// # Errors
    /// Groups or heads do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        out_channels: usize,
        temb_channels: Option<usize>,
        use_flash_attn: bool,
        config: CrossAttnDownBlock2DConfig,
    ) -> Result<Self> {
        let spec = SpatialTransformerConfig {
            depth: config.transformer_layers_per_block,
            num_groups: config.downblock.resnet_groups,
            context_dim: Some(config.cross_attention_dim),
            sliced_attention_size: config.sliced_attention_size,
            use_linear_projection: config.use_linear_projection,
        };
        let (heads, down) = (config.attn_num_head_channels, config.downblock);
        let attention = |i| {
            let vs = vs.pp("attentions").pp(i);
            transformer(out_channels, heads, use_flash_attn, spec, vs)
        };
        let attentions = (0..down.num_layers).map(attention);
        Ok(Self {
            attentions: attentions.collect::<Result<_>>()?,
            downblock: DownBlock2D::new(vs, in_channels, out_channels, temb_channels, down)?,
            config,
        })
    }

    /// As [`DownBlock2D::forward`], with a text that the transformers attend to; without one they attend to the image again.
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        xs: &Tensor,
        temb: Option<&Tensor>,
        encoder_hidden_states: Option<&Tensor>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let _inside = trace_span!("xa-down2d").entered();
        let attend = |i: usize, xs| self.attentions[i].forward(&xs, encoder_hidden_states);
        self.downblock.down.forward(xs, temb, attend)
    }
}
