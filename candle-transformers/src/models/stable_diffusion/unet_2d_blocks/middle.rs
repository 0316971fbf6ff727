//! The blocks between the ways down and up.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use tracing::trace_span;

use super::transformer;
use crate::models::stable_diffusion::attention::{
    AttentionBlock, AttentionBlockConfig, SpatialTransformer, SpatialTransformerConfig,
};
use crate::models::stable_diffusion::resnet::{ResnetBlock2D, ResnetBlock2DConfig};

/// A residual block, and attention and another one as often as there are layers.
#[derive(Debug)]
struct Middle<A> {
    first: ResnetBlock2D,
    layers: Vec<(A, ResnetBlock2D)>,
}

impl<A> Middle<A> {
    fn load(
        channels: usize,
        layers: usize,
        resnet: ResnetBlock2DConfig,
        vb: &VarBuilder,
        attention: impl Fn(VarBuilder) -> Result<A>,
    ) -> Result<Self> {
        let resnet = |i: usize| ResnetBlock2D::new(vb.pp("resnets").pp(i), channels, resnet);
        let layer = |i| Ok((attention(vb.pp("attentions").pp(i))?, resnet(i + 1)?));
        Ok(Self {
            first: resnet(0)?,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
        })
    }

    fn forward(
        &self,
        xs: &Tensor,
        temb: Option<&Tensor>,
        attend: impl Fn(&A, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut xs = self.first.forward(xs, temb)?;
        for (attention, resnet) in &self.layers {
            xs = resnet.forward(&attend(attention, &xs)?, temb)?;
        }
        Ok(xs)
    }
}

/// The requested number of groups, or by default one per four channels, at most 32.
fn groups(asked: Option<usize>, channels: usize) -> usize {
    asked.unwrap_or_else(|| usize::min(channels / 4, 32))
}

/// The numbers of a [`UNetMidBlock2D`].
#[derive(Debug, Clone, Copy)]
pub struct UNetMidBlock2DConfig {
    /// Number of pairs of attention and a residual block after the first residual block.
    pub num_layers: usize,
    /// Norm epsilon.
    pub resnet_eps: f64,
    /// Groups of the norms; a quarter of the channels, and 32 at most, without it.
    pub resnet_groups: Option<usize>,
    /// Head dimension; `None` for one head over all channels.
    pub attn_num_head_channels: Option<usize>,
    /// Divisor of the result of each part.
    pub output_scale_factor: f64,
}

impl Default for UNetMidBlock2DConfig {
    fn default() -> Self {
        Self {
            num_layers: 1,
            resnet_eps: 1e-6,
            resnet_groups: Some(32),
            attn_num_head_channels: Some(1),
            output_scale_factor: 1.,
        }
    }
}

/// The block in the middle of an autoencoder.
#[derive(Debug)]
pub struct UNetMidBlock2D {
    middle: Middle<AttentionBlock>,
    /// The configuration of the block.
    pub config: UNetMidBlock2DConfig,
}

impl UNetMidBlock2D {
    /// Loads `resnets.N` and `attentions.N`.
    ///
    /// # Errors
    /// Groups or the size of a head do not divide the channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        temb_channels: Option<usize>,
        config: UNetMidBlock2DConfig,
    ) -> Result<Self> {
        let groups = groups(config.resnet_groups, in_channels);
        let resnet = ResnetBlock2DConfig {
            temb_channels,
            groups,
            eps: config.resnet_eps,
            output_scale_factor: config.output_scale_factor,
            ..Default::default()
        };
        let attention = AttentionBlockConfig {
            num_head_channels: config.attn_num_head_channels,
            num_groups: groups,
            rescale_output_factor: config.output_scale_factor,
            eps: config.resnet_eps,
        };
        let load = |vs: VarBuilder| AttentionBlock::new(vs, in_channels, attention);
        Ok(Self {
            middle: Middle::load(in_channels, config.num_layers, resnet, &vs, load)?,
            config,
        })
    }

    /// From (batch, in_channels, height, width) to the same shape.
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, temb: Option<&Tensor>) -> Result<Tensor> {
        let _inside = trace_span!("mid2d").entered();
        self.middle.forward(xs, temb, AttentionBlock::forward)
    }
}

/// The numbers of a [`UNetMidBlock2DCrossAttn`].
#[derive(Debug, Clone, Copy)]
pub struct UNetMidBlock2DCrossAttnConfig {
    /// Number of pairs of a transformer and a residual block after the first residual block.
    pub num_layers: usize,
    /// Norm epsilon.
    pub resnet_eps: f64,
    /// Groups of the norms; a quarter of the channels, and 32 at most, without it.
    pub resnet_groups: Option<usize>,
    /// Heads, which divide the channels.
    pub attn_num_head_channels: usize,
    /// Divisor of the result of each residual block.
    pub output_scale_factor: f64,
    /// Size of the text's tokens.
    pub cross_attn_dim: usize,
    /// No effect: [`CrossAttention::new`](crate::models::stable_diffusion::attention::CrossAttention::new).
    pub sliced_attention_size: Option<usize>,
    /// Whether transformers begin and end in linear layers, or in 1x1 convolutions.
    pub use_linear_projection: bool,
    /// Blocks of each transformer.
    pub transformer_layers_per_block: usize,
}

impl Default for UNetMidBlock2DCrossAttnConfig {
    fn default() -> Self {
        Self {
            num_layers: 1,
            resnet_eps: 1e-6,
            resnet_groups: Some(32),
            attn_num_head_channels: 1,
            output_scale_factor: 1.,
            cross_attn_dim: 1280,
            sliced_attention_size: None,
            use_linear_projection: false,
            transformer_layers_per_block: 1,
        }
    }
}

/// The block in the middle of a UNet.
#[derive(Debug)]
pub struct UNetMidBlock2DCrossAttn {
    middle: Middle<SpatialTransformer>,
    /// The configuration of the block.
    pub config: UNetMidBlock2DCrossAttnConfig,
}

impl UNetMidBlock2DCrossAttn {
    /// Loads `resnets.N` and `attentions.N`. `use_flash_attn` changes nothing:
    /// [`CrossAttention::new`](crate::models::stable_diffusion::attention::CrossAttention::new).
    ///
    /// # Errors
    /// Groups or heads do not divide the channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        temb_channels: Option<usize>,
        use_flash_attn: bool,
        config: UNetMidBlock2DCrossAttnConfig,
    ) -> Result<Self> {
        let groups = groups(config.resnet_groups, in_channels);
        let resnet = ResnetBlock2DConfig {
            temb_channels,
            groups,
            eps: config.resnet_eps,
            output_scale_factor: config.output_scale_factor,
            ..Default::default()
        };
        let spec = SpatialTransformerConfig {
            depth: config.transformer_layers_per_block,
            num_groups: groups,
            context_dim: Some(config.cross_attn_dim),
            sliced_attention_size: config.sliced_attention_size,
            use_linear_projection: config.use_linear_projection,
        };
        let heads = config.attn_num_head_channels;
        let load = |vs: VarBuilder| transformer(in_channels, heads, use_flash_attn, spec, vs);
        Ok(Self {
            middle: Middle::load(in_channels, config.num_layers, resnet, &vs, load)?,
            config,
        })
    }

    /// From (batch, in_channels, height, width) to the same shape, with a text that the transformers attend to.
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        xs: &Tensor,
        temb: Option<&Tensor>,
        encoder_hidden_states: Option<&Tensor>,
    ) -> Result<Tensor> {
        let _inside = trace_span!("xa-mid2d").entered();
        let attend = |attention: &SpatialTransformer, xs: &Tensor| {
            attention.forward(xs, encoder_hidden_states)
        };
        self.middle.forward(xs, temb, attend)
    }
}
