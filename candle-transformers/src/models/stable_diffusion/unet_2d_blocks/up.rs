//! The way up: blocks whose result has twice the height and width.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{Conv2d, VarBuilder};
use tracing::{trace_span, Span};

use super::{first_then, resnets, transformer};
use crate::blocks::vision::ConvSpec;
use crate::models::stable_diffusion::attention::{SpatialTransformer, SpatialTransformerConfig};
use crate::models::stable_diffusion::resnet::{ResnetBlock2D, ResnetBlock2DConfig};

/// Each pixel repeated, and a convolution.
#[derive(Debug)]
struct Upsample {
    conv: Conv2d,
}

impl Upsample {
    /// That of `vb`, if there is to be one.
    fn load(add: bool, channels: usize, vb: &VarBuilder) -> Result<Option<Self>> {
        let load = || {
            let vb = vb.pp("upsamplers").pp("0").pp("conv");
            let conv = ConvSpec::new(channels, channels, 3).load(vb)?;
            Ok(Self { conv })
        };
        add.then(load).transpose()
    }

    /// To the given height and width, or twice those of `xs`.
    fn forward(&self, xs: &Tensor, size: Option<(usize, usize)>) -> Result<Tensor> {
        let (_, _, h, w) = xs.dims4()?;
        let (h, w) = size.unwrap_or((2 * h, 2 * w));
        self.conv.forward(&xs.upsample_nearest2d(h, w)?)
    }
}

/// The numbers of an [`UpDecoderBlock2D`].
pub type UpDecoderBlock2DConfig = UpBlock2DConfig;

/// A block of an autoencoder's decoder.
#[derive(Debug)]
pub struct UpDecoderBlock2D {
    resnets: Vec<ResnetBlock2D>,
    upsample: Option<Upsample>,
    /// The configuration of the block.
    pub config: UpDecoderBlock2DConfig,
}

impl UpDecoderBlock2D {
    /// Loads `resnets.N` and, if it doubles the size, `upsamplers.0.conv`.
    ///
    /// # Errors
    /// Groups do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        out_channels: usize,
        config: UpDecoderBlock2DConfig,
    ) -> Result<Self> {
        let resnet = config.resnet(out_channels, None);
        let inputs = first_then(in_channels, out_channels, config.num_layers);
        Ok(Self {
            resnets: resnets(inputs, resnet, &vs)?,
            upsample: Upsample::load(config.add_upsample, out_channels, &vs)?,
            config,
        })
    }
}

/// From (batch, in_channels, height, width) to (batch, out_channels, 2 * height, 2 * width), or the same size.
impl Module for UpDecoderBlock2D {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let _inside = trace_span!("up-dec2d").entered();
        let mut xs = xs.clone();
        for resnet in &self.resnets {
            xs = resnet.forward(&xs, None)?;
        }
        match &self.upsample {
            Some(upsample) => upsample.forward(&xs, None),
            None => Ok(xs),
        }
    }
}

/// The numbers of an [`UpBlock2D`].
#[derive(Debug, Clone, Copy)]
pub struct UpBlock2DConfig {
    /// Residual blocks.
    pub num_layers: usize,
    /// Norm epsilon.
    pub resnet_eps: f64,
    /// Groups of the norms.
    pub resnet_groups: usize,
    /// Divisor of the result of each residual block.
    pub output_scale_factor: f64,
    /// Whether the size is doubled.
    pub add_upsample: bool,
}

impl Default for UpBlock2DConfig {
    fn default() -> Self {
        Self {
            num_layers: 1,
            resnet_eps: 1e-6,
            resnet_groups: 32,
            output_scale_factor: 1.,
            add_upsample: true,
        }
    }
}

impl UpBlock2DConfig {
    /// The numbers of the residual blocks.
    fn resnet(&self, channels: usize, temb_channels: Option<usize>) -> ResnetBlock2DConfig {
        ResnetBlock2DConfig {
            out_channels: Some(channels),
            temb_channels,
            groups: self.resnet_groups,
            eps: self.resnet_eps,
            output_scale_factor: self.output_scale_factor,
            ..Default::default()
        }
    }
}

/// A block of a UNet on the way up, which is also given what the way down left.
#[derive(Debug)]
pub struct UpBlock2D {
    /// The residual blocks.
    pub resnets: Vec<ResnetBlock2D>,
    upsample: Option<Upsample>,
    /// The configuration of the block.
    pub config: UpBlock2DConfig,
}

impl UpBlock2D {
    /// Loads `resnets.N` and, if it doubles the size, `upsamplers.0.conv`. `prev_output_channels` come from the block before; what the way
    /// down left has `out_channels`, but `in_channels` for the last residual block.
    ///
    /// # Errors
    /// Groups do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        prev_output_channels: usize,
        out_channels: usize,
        temb_channels: Option<usize>,
        config: UpBlock2DConfig,
    ) -> Result<Self> {
        let resnet = config.resnet(out_channels, temb_channels);
        let layers = config.num_layers;
        let inputs = first_then(prev_output_channels, out_channels, layers);
        let inputs = inputs.enumerate().map(|(i, inputs)| {
            if i + 1 == layers {
                inputs + in_channels
            } else {
                inputs + out_channels
            }
        });
        Ok(Self {
            resnets: resnets(inputs, resnet, &vs)?,
            upsample: Upsample::load(config.add_upsample, out_channels, &vs)?,
            config,
        })
    }

    /// From (batch, prev_output_channels, height, width) to (batch, out_channels, 2 * height, 2 * width), or `upsample_size`, or the same
    /// size. `res_xs` are the skip connections of the down blocks; the first residual block takes the last one.
    ///
    /// # Errors
    /// There are fewer `res_xs` than residual blocks, or shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        xs: &Tensor,
        res_xs: &[Tensor],
        temb: Option<&Tensor>,
        upsample_size: Option<(usize, usize)>,
    ) -> Result<Tensor> {
        let _inside = trace_span!("up2d").entered();
        self.forward_then(xs, res_xs, temb, upsample_size, |_, xs| Ok(xs))
    }

    /// As [`forward`](Self::forward), with `then` applied to what each residual block gives.
    fn forward_then(
        &self,
        xs: &Tensor,
        res_xs: &[Tensor],
        temb: Option<&Tensor>,
        size: Option<(usize, usize)>,
        then: impl Fn(usize, Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if res_xs.len() < self.resnets.len() {
            bail!(
                "up block: {} skip tensors for {} residual blocks; expected one for each",
                res_xs.len(),
                self.resnets.len()
            )
        }
        let mut xs = xs.clone();
        for (i, (resnet, left)) in self.resnets.iter().zip(res_xs.iter().rev()).enumerate() {
            let both = Tensor::cat(&[&xs, left], 1)?;
            xs = then(i, resnet.forward(&both, temb)?)?;
        }
        match &self.upsample {
            Some(upsample) => upsample.forward(&xs, size),
            None => Ok(xs),
        }
    }
}

/// The numbers of a [`CrossAttnUpBlock2D`].
#[derive(Debug, Clone, Copy)]
pub struct CrossAttnUpBlock2DConfig {
    /// The configuration of the parts other than attention.
    pub upblock: UpBlock2DConfig,
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

impl Default for CrossAttnUpBlock2DConfig {
    fn default() -> Self {
        Self {
            upblock: UpBlock2DConfig::default(),
            attn_num_head_channels: 1,
            cross_attention_dim: 1280,
            sliced_attention_size: None,
            use_linear_projection: false,
            transformer_layers_per_block: 1,
        }
    }
}

/// A block of a UNet on the way up, with a transformer behind each residual block.
#[derive(Debug)]
pub struct CrossAttnUpBlock2D {
    /// All but attention.
    pub upblock: UpBlock2D,
    /// The transformers, one for each residual block.
    pub attentions: Vec<SpatialTransformer>,
    /// The configuration of the block.
    pub config: CrossAttnUpBlock2DConfig,
    span: Span,
}

impl CrossAttnUpBlock2D {
    /// Loads what [`UpBlock2D::new`] does, and `attentions.N`. `use_flash_attn` changes nothing:
    /// [`CrossAttention::new`](crate::models::stable_diffusion::attention::CrossAttention::new).
    ///
    /// # Errors
    /// Groups or heads do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        prev_output_channels: usize,
        out_channels: usize,
        temb_channels: Option<usize>,
        use_flash_attn: bool,
        config: CrossAttnUpBlock2DConfig,
    ) -> Result<Self> {
        let spec = SpatialTransformerConfig {
            depth: config.transformer_layers_per_block,
            num_groups: config.upblock.resnet_groups,
            context_dim: Some(config.cross_attention_dim),
            sliced_attention_size: config.sliced_attention_size,
            use_linear_projection: config.use_linear_projection,
        };
        let (heads, layers) = (config.attn_num_head_channels, config.upblock.num_layers);
        let attention = |i| {
            let vs = vs.pp("attentions").pp(i);
            transformer(out_channels, heads, use_flash_attn, spec, vs)
        };
        Ok(Self {
            attentions: (0..layers).map(attention).collect::<Result<_>>()?,
            upblock: UpBlock2D::new(
                vs.clone(),
                in_channels,
                prev_output_channels,
                out_channels,
                temb_channels,
                config.upblock,
            )?,
            config,
            span: trace_span!("xa-up2d"),
        })
    }

    /// As [`UpBlock2D::forward`], with a text that the transformers attend to; without one they attend to the image again.
    ///
    /// # Errors
    /// There is not a transformer for each residual block, and those of [`UpBlock2D::forward`].
    pub fn forward(
        &self,
        xs: &Tensor,
        res_xs: &[Tensor],
        temb: Option<&Tensor>,
        upsample_size: Option<(usize, usize)>,
        encoder_hidden_states: Option<&Tensor>,
    ) -> Result<Tensor> {
        let _inside = self.span.enter();
        let (resnets, attentions) = (self.upblock.resnets.len(), self.attentions.len());
        if resnets != attentions {
            bail!("up block: {attentions} transformers for {resnets} residual blocks; expected one for each")
        }
        let attend = |i: usize, xs| self.attentions[i].forward(&xs, encoder_hidden_states);
        self.upblock
            .forward_then(xs, res_xs, temb, upsample_size, attend)
    }
}
