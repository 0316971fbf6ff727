//! Transformers over frames that arrive in pieces: each frame sees itself and a number of earlier frames.

mod attention;
mod parts;

pub use attention::{
    RotaryEmbedding, StreamingMultiheadAttention, StreamingMultiheadCrossAttention,
};
pub use parts::{LayerScale, Mlp, Norm, RmsNorm};

use std::sync::Arc;

use candle_core::{bail, Module, Result, StreamTensor, StreamingModule, Tensor, D};
use candle_nn::kv_cache::RotatingKvCache;
use candle_nn::{layer_norm, linear_no_bias, Activation, LayerNorm, Linear, VarBuilder};

use super::NormType;
use attention::{Heads, Seen};

fn linear(from: usize, to: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    if bias {
        candle_nn::linear(from, to, vb)
    } else {
        linear_no_bias(from, to, vb)
    }
}

/// The kind of position embedding of frames.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum PositionalEmbedding {
    /// Queries and keys are rotated.
    Rope,
    /// Cosines and sines are added to the frames.
    Sin,
    /// Not at all.
    None,
}

/// The numbers of a transformer.
#[derive(Debug, Clone)]
pub struct Config {
    /// Channels of its frames.
    pub d_model: usize,
    /// Heads, which divide `d_model`.
    pub num_heads: usize,
    /// Layers.
    pub num_layers: usize,
    /// Whether frames see only earlier ones; has to be `true`.
    pub causal: bool,
    /// Whether norms precede the blocks; has to be `true`.
    pub norm_first: bool,
    /// Whether feed-forward blocks without a gate have biases.
    pub bias_ff: bool,
    /// Whether attention has biases.
    pub bias_attn: bool,
    /// Whether blocks have a factor for each channel, and what training began with.
    pub layer_scale: Option<f64>,
    /// The kind of position embedding.
    pub positional_embedding: PositionalEmbedding,
    /// Not supported.
    pub use_conv_block: bool,
    /// Whether layers attend to another sequence.
    pub cross_attention: bool,
    /// Kernel size of convolutions, which are not supported.
    pub conv_kernel_size: usize,
    /// Whether convolutions, which are not supported, have a bias.
    pub use_conv_bias: bool,
    /// Activation of gated feed-forward blocks; they have no gate without it.
    pub gating: Option<Activation>,
    /// Norm before each block.
    pub norm: NormType,
    /// Number of frames that a frame sees, itself included.
    pub context: usize,
    /// Base of the positions' angles.
    pub max_period: usize,
    /// Positions whose angles are computed at loading.
    pub max_seq_len: usize,
    /// Query heads that share keys and values.
    pub kv_repeat: usize,
    /// Inner size of feed-forward blocks.
    pub dim_feedforward: usize,
    /// Whether [`ProjectedTransformer`] has frames of (batch, channels, time) rather than (batch, time, channels).
    pub conv_layout: bool,
}

/// Attention and a feed-forward block, each after a norm and added to what came in.
#[derive(Debug, Clone)]
pub struct StreamingTransformerLayer {
    self_attn: StreamingMultiheadAttention,
    mlp: Mlp,
    norm1: Norm,
    norm2: Norm,
    layer_scale_1: Option<LayerScale>,
    layer_scale_2: Option<LayerScale>,
    cross_attn: Option<(LayerNorm, StreamingMultiheadCrossAttention)>,
}

impl StreamingTransformerLayer {
    /// Loads `self_attn`, `mlp` or `gating`, `input_layernorm` and `post_attention_layernorm` or the same with `rmsnorm`,
    /// `self_attn_layer_scale` and `mlp_layer_scale`, `norm_cross` and `cross_attention`, as the configuration asks.
    ///
    /// # Errors
    /// It asks for what is not supported, heads do not divide sizes, or a tensor is missing or has another shape.
    pub fn new(rope: &Option<Arc<RotaryEmbedding>>, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        if cfg.use_conv_block {
            bail!("mimi: use_conv_block must be false; convolution blocks are not supported")
        }
        if !cfg.norm_first || !cfg.causal {
            bail!(
                "mimi: norm_first is {} and causal {}; both must be true",
                cfg.norm_first,
                cfg.causal
            )
        }
        let model = cfg.d_model;
        let suffix = match cfg.norm {
            NormType::LayerNorm => "layernorm",
            NormType::RmsNorm => "rmsnorm",
        };
        let norm = |name: &str| Norm::new(model, cfg, vb.pp(format!("{name}_{suffix}")));
        let scale = |name: &str| {
            let load = |init| LayerScale::new(model, init, vb.pp(name));
            cfg.layer_scale.map(load).transpose()
        };
        let cross_attn = cfg.cross_attention.then(|| {
            let norm = layer_norm(model, 1e-5, vb.pp("norm_cross"))?;
            let attention = StreamingMultiheadCrossAttention::new(cfg, vb.pp("cross_attention"))?;
            Ok::<_, candle_core::Error>((norm, attention))
        });
        Ok(Self {
            self_attn: StreamingMultiheadAttention::new(rope, cfg, vb.pp("self_attn"))?,
            mlp: Mlp::new(cfg, vb.clone())?,
            norm1: norm("input")?,
            norm2: norm("post_attention")?,
            layer_scale_1: scale("self_attn_layer_scale")?,
            layer_scale_2: scale("mlp_layer_scale")?,
            cross_attn: cross_attn.transpose()?,
        })
    }

    /// The next positions (batch, time, `d_model`), which attend to `ca_src` (batch, other time, `d_model`) too, if it is given and the layer
    /// has cross-attention. `mask` is that of [`StreamingMultiheadAttention::forward`].
    ///
    /// # Errors
    /// The shapes do not go together.
    pub fn forward(
        &mut self,
        xs: &Tensor,
        ca_src: Option<&Tensor>,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.run(xs, ca_src, Seen::All(mask))
    }

    fn run(&mut self, xs: &Tensor, ca_src: Option<&Tensor>, seen: Seen) -> Result<Tensor> {
        let ys = self.self_attn.attend(&self.norm1.forward(xs)?, seen)?;
        let mut xs = (xs + ys.apply(&self.layer_scale_1.as_ref())?)?;
        if let (Some((norm, attention)), Some(ca_src)) = (&self.cross_attn, ca_src) {
            xs = (&xs + attention.forward(&norm.forward(&xs)?, ca_src, None)?)?;
        }
        let ys = self.mlp.forward(&self.norm2.forward(&xs)?)?;
        xs + ys.apply(&self.layer_scale_2.as_ref())?
    }

    /// Forgets all positions.
    pub fn reset_kv_cache(&mut self) {
        self.self_attn.reset_kv_cache();
    }

    /// [`StreamingMultiheadAttention::set_kv_cache`].
    pub fn set_kv_cache(&mut self, kv_cache: RotatingKvCache) {
        self.self_attn.set_kv_cache(kv_cache);
    }
}

/// Layers in order.
#[derive(Debug, Clone)]
pub struct StreamingTransformer {
    layers: Vec<StreamingTransformerLayer>,
    positional_embedding: PositionalEmbedding,
    max_period: usize,
}

impl StreamingTransformer {
    /// Loads `layers.0` and so on.
    ///
    /// # Errors
    /// There are no layers, `d_model` is odd or below 4 where sines are added, or those of [`StreamingTransformerLayer::new`].
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (model, heads) = (cfg.d_model, Heads::of(cfg)?);
        if cfg.num_layers == 0 {
            bail!("mimi: num_layers must be at least 1, not 0")
        }
        if cfg.positional_embedding == PositionalEmbedding::Sin && (model < 4 || model % 2 == 1) {
            bail!(
                "mimi: d_model is {model}; sinusoidal positions need an even number of at least 4"
            )
        }
        let rope = match cfg.positional_embedding {
            PositionalEmbedding::Rope => {
                let theta = cfg.max_period as f32;
                let rope = RotaryEmbedding::new(heads.dim, cfg.max_seq_len, theta, vb.device());
                Some(Arc::new(rope?))
            }
            PositionalEmbedding::Sin | PositionalEmbedding::None => None,
        };
        let vb = vb.pp("layers");
        let layer = |i| StreamingTransformerLayer::new(&rope, cfg, vb.pp(i));
        Ok(Self {
            layers: (0..cfg.num_layers).map(layer).collect::<Result<_>>()?,
            positional_embedding: cfg.positional_embedding,
            max_period: cfg.max_period,
        })
    }

    /// The output of the next positions, (batch, time, `d_model`): the same as for the whole sequence.
    ///
    /// # Errors
    /// The shape is another, or the batch is not that of the pieces before it.
    pub fn forward(&mut self, xs: &Tensor) -> Result<Tensor> {
        self.forward_ca(xs, None)
    }

    /// [`forward`](Self::forward) with another sequence (batch, other time, `d_model`) for cross-attention.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    pub fn forward_ca(&mut self, xs: &Tensor, ca_src: Option<&Tensor>) -> Result<Tensor> {
        let mut xs = match self.positional_embedding {
            PositionalEmbedding::Sin => xs.broadcast_add(&self.sines(xs)?)?,
            PositionalEmbedding::Rope | PositionalEmbedding::None => xs.clone(),
        };
        for layer in &mut self.layers {
            xs = layer.run(&xs, ca_src, Seen::Window)?;
        }
        Ok(xs)
    }

    /// Cosines, then sines, of the positions of `xs`: (time, `d_model`).
    fn sines(&self, xs: &Tensor) -> Result<Tensor> {
        let (_, time, model) = xs.dims3()?;
        let start = self
            .layers
            .first()
            .map_or(0, |layer| layer.self_attn.position());
        let half = model / 2;
        let rate = |i: usize| (self.max_period as f32).powf(-(i as f32) / (half as f32 - 1.));
        let angles = (start..start + time).flat_map(|t| (0..half).map(move |i| t as f32 * rate(i)));
        let angles = Tensor::from_vec(angles.collect::<Vec<f32>>(), (time, half), xs.device())?;
        Tensor::cat(&[angles.cos()?, angles.sin()?], D::Minus1)?.to_dtype(xs.dtype())
    }

    /// Takes over what `from` remembers; both can go on from there.
    ///
    /// # Errors
    /// It has another number of layers.
    pub fn copy_state(&mut self, from: &Self) -> Result<()> {
        if self.layers.len() != from.layers.len() {
            bail!(
                "mimi: the transformer has {} layers, but the state has {}",
                self.layers.len(),
                from.layers.len()
            )
        }
        for (layer, from) in self.layers.iter_mut().zip(&from.layers) {
            layer.self_attn.copy_state(&from.self_attn);
        }
        Ok(())
    }
}

impl StreamingModule for StreamingTransformer {
    fn reset_state(&mut self) {
        self.layers
            .iter_mut()
            .for_each(|layer| layer.reset_kv_cache());
    }

    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        let ys = xs.as_option().map(|xs| self.forward(xs));
        ys.transpose().map(StreamTensor::from)
    }
}

/// A transformer between projections, which are there where sizes differ.
#[derive(Debug, Clone)]
pub struct ProjectedTransformer {
    transformer: StreamingTransformer,
    input_proj: Option<Linear>,
    output_projs: Vec<Option<Linear>>,
    conv_layout: bool,
}

impl ProjectedTransformer {
    /// Loads `layers`, `input_proj`, and `output_projs.0` and so on, one for each of the results.
    ///
    /// # Errors
    /// There are no results, or those of [`StreamingTransformer::new`].
    pub fn new(
        input_dim: usize,
        output_dims: &[usize],
        cfg: &Config,
        vb: VarBuilder,
    ) -> Result<Self> {
        if output_dims.is_empty() {
            bail!("mimi: a transformer needs at least 1 output")
        }
        let model = cfg.d_model;
        let project = |from, to, vb| {
            (from != to)
                .then(|| linear_no_bias(from, to, vb))
                .transpose()
        };
        let vb_outputs = vb.pp("output_projs");
        let outputs = output_dims.iter().enumerate();
        let outputs = outputs.map(|(i, &dim)| project(model, dim, vb_outputs.pp(i)));
        Ok(Self {
            input_proj: project(input_dim, model, vb.pp("input_proj"))?,
            output_projs: outputs.collect::<Result<_>>()?,
            transformer: StreamingTransformer::new(cfg, vb)?,
            conv_layout: cfg.conv_layout,
        })
    }

    /// (batch, channels, time) as (batch, time, channels), and back, if that is the layout.
    fn turned(&self, xs: &Tensor) -> Result<Tensor> {
        if self.conv_layout {
            xs.transpose(1, 2)?.contiguous()
        } else {
            Ok(xs.clone())
        }
    }

    /// The next positions: each result, (batch, channels, time) if `conv_layout`, (batch, time, channels) otherwise.
    ///
    /// # Errors
    /// Those of [`StreamingTransformer::forward`].
    pub fn forward(&mut self, xs: &Tensor) -> Result<Vec<Tensor>> {
        let xs = self.turned(xs)?.apply(&self.input_proj.as_ref())?;
        let xs = self.transformer.forward(&xs)?;
        let output = |proj: &Option<Linear>| self.turned(&xs.apply(&proj.as_ref())?);
        self.output_projs.iter().map(output).collect()
    }

    /// The first result for a whole sequence; the state is not touched.
    pub(super) fn whole(&self, xs: &Tensor) -> Result<Tensor> {
        let mut fresh = self.clone();
        fresh.reset_state();
        fresh.first(xs)
    }

    fn first(&mut self, xs: &Tensor) -> Result<Tensor> {
        match self.forward(xs)?.into_iter().next() {
            Some(first) => Ok(first),
            None => bail!("mimi: the transformer has no outputs"),
        }
    }
}

impl StreamingModule for ProjectedTransformer {
    fn reset_state(&mut self) {
        self.transformer.reset_state();
    }

    /// The first result.
    fn step(&mut self, xs: &StreamTensor) -> Result<StreamTensor> {
        let ys = xs.as_option().map(|xs| self.first(xs));
        ys.transpose().map(StreamTensor::from)
    }
}
