//! The transformer.

use std::marker::PhantomData;

use candle_core::{bail, DType, Module, Result, Tensor, D};

use super::layers::{linear, Angles};
pub use super::layers::{
    DoubleStreamBlock, LastLayer, MlpEmbedder, QkNorm, SelfAttention, SingleStreamBlock,
};
use super::{WithForward, FAMILY};
use crate::blocks::diffusion::sinusoids;
use crate::blocks::{at_once, inverse_frequencies, Dense, Projection, WeightKind, Weights};

/// The size of a time's vector.
const TIME_DIM: usize = 256;
/// Times from 0 to 1 become angles of up to this.
const TIME_FACTOR: f64 = 1000.;

/// The numbers of a model.
#[derive(Debug, Clone)]
pub struct Config {
    /// Size of a patch: channels of the latents times its four positions.
    pub in_channels: usize,
    /// Size of the vector of a whole text.
    pub vec_in_dim: usize,
    /// Size of the vector of a text's token.
    pub context_in_dim: usize,
    /// Size of a token in the model.
    pub hidden_size: usize,
    /// Inner size of the feed-forward blocks, in parts of `hidden_size`.
    pub mlp_ratio: f64,
    /// Heads, which divide `hidden_size`.
    pub num_heads: usize,
    /// Blocks with separate weights for image and text.
    pub depth: usize,
    /// Blocks with the same weights for both, which come after those.
    pub depth_single_blocks: usize,
    /// Elements of a head that each axis of a token's position rotates; all of them together.
    pub axes_dim: Vec<usize>,
    /// Base of the rotations' frequencies.
    pub theta: usize,
    /// Whether the layers to queries, keys and values of the first blocks have biases.
    pub qkv_bias: bool,
    /// Whether the model has a guidance input.
    pub guidance_embed: bool,
}

impl Config {
    /// [FLUX.1-dev](https://huggingface.co/black-forest-labs/FLUX.1-dev).
    pub fn dev() -> Self {
        Self {
            in_channels: 64,
            vec_in_dim: 768,
            context_in_dim: 4096,
            hidden_size: 3072,
            mlp_ratio: 4.,
            num_heads: 24,
            depth: 19,
            depth_single_blocks: 38,
            axes_dim: vec![16, 56, 56],
            theta: 10_000,
            qkv_bias: true,
            guidance_embed: true,
        }
    }

    /// [FLUX.1-schnell](https://huggingface.co/black-forest-labs/FLUX.1-schnell).
    pub fn schnell() -> Self {
        Self {
            guidance_embed: false,
            ..Self::dev()
        }
    }

    pub(super) fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads.max(1)
    }

    /// Inner size of the feed-forward blocks.
    pub(super) fn inner(&self) -> usize {
        (self.hidden_size as f64 * self.mlp_ratio) as usize
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("in_channels", self.in_channels),
            ("vec_in_dim", self.vec_in_dim),
            ("context_in_dim", self.context_in_dim),
            ("hidden_size", self.hidden_size),
            ("num_heads", self.num_heads),
            ("theta", self.theta),
            ("mlp_ratio * hidden_size", self.inner()),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            bail!("{FAMILY}: {name} is 0; it must be at least 1")
        }
        let (hidden, heads) = (self.hidden_size, self.num_heads);
        if hidden % heads != 0 {
            bail!("{FAMILY}: {heads} heads do not divide the size {hidden}")
        }
        let axes = &self.axes_dim;
        let rotated = axes
            .iter()
            .fold(0usize, |sum, dim| sum.saturating_add(*dim));
        if rotated != self.head_dim() || axes.iter().any(|dim| dim % 2 != 0) {
            bail!(
                "{FAMILY}: axes_dim is {axes:?}; expected even numbers whose sum is the head size, {}",
                self.head_dim()
            )
        }
        Ok(())
    }
}

/// The rotations of positions with several axes.
#[derive(Debug, Clone)]
pub struct EmbedNd {
    theta: usize,
    axes_dim: Vec<usize>,
}

impl EmbedNd {
    /// With the base `theta` and `axes_dim` elements of a head per axis. `dim`, the head dimension, is not used.
    pub fn new(_dim: usize, theta: usize, axes_dim: Vec<usize>) -> Self {
        Self { theta, axes_dim }
    }

    /// The angles of positions (batch, n, axes): (batch, n, pairs) of f32.
    fn angles(&self, ids: &Tensor) -> Result<Tensor> {
        let (_, _, axes) = ids.dims3()?;
        if axes > self.axes_dim.len() {
            bail!(
                "{FAMILY}: the positions are {:?}; their {axes} axes exceed the {} rotated axes",
                ids.dims(),
                self.axes_dim.len()
            )
        }
        let (mut axis_of, mut frequencies) = (Vec::new(), Vec::new());
        for (axis, &dim) in self.axes_dim[..axes].iter().enumerate() {
            if dim % 2 != 0 {
                bail!("{FAMILY}: {dim} elements of a head cannot be rotated in pairs; the number must be even")
            }
            axis_of.resize(axis_of.len() + dim / 2, axis as u32);
            frequencies.extend(inverse_frequencies(self.theta as f64, dim));
        }
        let (pairs, device) = (axis_of.len(), ids.device());
        let axis_of = Tensor::from_vec(axis_of, pairs, device)?;
        let frequencies = Tensor::from_vec(frequencies, (1, 1, pairs), device)?;
        // In f32: 16 bits can represent neither positions above a few hundred nor low frequencies.
        let places = ids
            .to_dtype(DType::F32)?
            .index_select(&axis_of, D::Minus1)?;
        places.broadcast_mul(&frequencies)
    }

    fn rows(&self, ids: &Tensor, dtype: DType) -> Result<Angles> {
        let mut angles = self.angles(ids)?;
        if angles.dim(0)? == 1 {
            angles = angles.squeeze(0)?;
        }
        Ok(Angles {
            cos: angles.cos()?.to_dtype(dtype)?,
            sin: angles.sin()?.to_dtype(dtype)?,
        })
    }
}

/// From positions (batch, n, axes) to a matrix for each pair of a head's elements, (batch, 1, n, head_dim / 2, 2, 2): `cos, -sin` above
/// `sin, cos`. In the dtype of the positions; f32 if they are integers.
///
/// # Errors
/// The positions have more numbers than there are axes, or an axis rotates an odd number of elements.
impl Module for EmbedNd {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let angles = self.angles(ids)?;
        let (b, n, pairs) = angles.dims3()?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let matrices = Tensor::stack(&[&cos, &sin.neg()?, &sin, &cos], D::Minus1)?;
        let dtype = if ids.dtype().is_float() {
            ids.dtype()
        } else {
            DType::F32
        };
        matrices.reshape((b, 1, n, pairs, 2, 2))?.to_dtype(dtype)
    }
}

/// The model, over dense or quantised weights.
#[derive(Debug, Clone)]
pub struct Transformer<W> {
    img_in: Projection,
    txt_in: Projection,
    time_in: MlpEmbedder,
    vector_in: MlpEmbedder,
    guidance_in: Option<MlpEmbedder>,
    embed: EmbedNd,
    double_blocks: Vec<DoubleStreamBlock>,
    single_blocks: Vec<SingleStreamBlock>,
    final_layer: LastLayer,
    in_channels: usize,
    of: PhantomData<fn() -> W>,
}

impl<W: WeightKind> Transformer<W> {
    /// Loads the model.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        W::load(vb, |weights| at_once(Self::load(cfg, weights)))
    }

    async fn load(cfg: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        cfg.check()?;
        let hidden = cfg.hidden_size;
        let img_in = linear(weights, "img_in".to_string(), cfg.in_channels, hidden).await?;
        let txt_in = linear(weights, "txt_in".to_string(), cfg.context_in_dim, hidden).await?;
        // Not with_capacity: a configuration can ask for any number of blocks that no file has.
        let (mut double_blocks, mut single_blocks) = (Vec::new(), Vec::new());
        for i in 0..cfg.depth {
            let prefix = format!("double_blocks.{i}");
            double_blocks.push(DoubleStreamBlock::load(weights, &prefix, cfg).await?);
        }
        for i in 0..cfg.depth_single_blocks {
            let prefix = format!("single_blocks.{i}");
            single_blocks.push(SingleStreamBlock::load(weights, &prefix, cfg).await?);
        }
        let guidance_in = if cfg.guidance_embed {
            Some(MlpEmbedder::load(weights, "guidance_in", TIME_DIM, hidden).await?)
        } else {
            None
        };
        Ok(Self {
            img_in,
            txt_in,
            time_in: MlpEmbedder::load(weights, "time_in", TIME_DIM, hidden).await?,
            vector_in: MlpEmbedder::load(weights, "vector_in", cfg.vec_in_dim, hidden).await?,
            guidance_in,
            embed: EmbedNd::new(cfg.head_dim(), cfg.theta, cfg.axes_dim.clone()),
            double_blocks,
            single_blocks,
            final_layer: LastLayer::load(weights, cfg).await?,
            in_channels: cfg.in_channels,
            of: PhantomData,
        })
    }

    /// The condition of all blocks, (batch, hidden_size) or (1, hidden_size), with its activation.
    fn condition(
        &self,
        timesteps: &Tensor,
        y: &Tensor,
        guidance: Option<&Tensor>,
        dtype: DType,
    ) -> Result<Tensor> {
        let time = |times: &Tensor, mlp: &MlpEmbedder| {
            let times = (times.to_dtype(DType::F32)? * TIME_FACTOR)?;
            mlp.forward(&sinusoids(&times, TIME_DIM)?.to_dtype(dtype)?)
        };
        let mut sum = time(timesteps, &self.time_in)?;
        if let (Some(mlp), Some(guidance)) = (&self.guidance_in, guidance) {
            sum = sum.broadcast_add(&time(guidance, mlp)?)?;
        }
        sum.broadcast_add(&self.vector_in.forward(y)?)?.silu()
    }
}

impl<W: WeightKind> WithForward for Transformer<W> {
    fn forward(
        &self,
        img: &Tensor,
        img_ids: &Tensor,
        txt: &Tensor,
        txt_ids: &Tensor,
        timesteps: &Tensor,
        y: &Tensor,
        guidance: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (batch, patches) = match *img.dims() {
            [b, n, c] if c == self.in_channels && b > 0 && n > 0 => (b, n),
            _ => bail!(
                "{FAMILY}: img is {:?}; it must be (batch, patches, {})",
                img.dims(),
                self.in_channels
            ),
        };
        let tokens = match *txt.dims() {
            [b, n, _] if b == batch => n,
            _ => bail!(
                "{FAMILY}: txt is {:?}; it must be ({batch}, tokens, context_in_dim) for img of {:?}",
                txt.dims(),
                img.dims()
            ),
        };
        for (name, ids, len) in [("img_ids", img_ids, patches), ("txt_ids", txt_ids, tokens)] {
            let axes = self.embed.axes_dim.len();
            match *ids.dims() {
                [b, n, a] if (b == 1 || b == batch) && n == len && a == axes => {}
                _ => bail!(
                    "{FAMILY}: {name} is {:?}; it must be ({batch}, {len}, {axes})",
                    ids.dims()
                ),
            }
        }
        let dtype = img.dtype();
        let rows = |t: &Tensor, rank| {
            let rows = t.dims().first().copied().unwrap_or(0);
            t.rank() == rank && (rows == 1 || rows == batch)
        };
        if !rows(timesteps, 1) || !rows(y, 2) || guidance.is_some_and(|g| !rows(g, 1)) {
            bail!(
                "{FAMILY}: timesteps are {:?}, y is {:?} and guidance {:?}; they must be ({batch}), ({batch}, vec_in_dim) and \
                 ({batch}) for img of {:?}",
                timesteps.dims(),
                y.dims(),
                guidance.map(Tensor::dims),
                img.dims()
            )
        }
        let condition = self.condition(timesteps, y, guidance, dtype)?;
        let angles = self
            .embed
            .rows(&Tensor::cat(&[txt_ids, img_ids], 1)?, dtype)?;
        let (mut img, mut txt) = (self.img_in.forward(img)?, self.txt_in.forward(txt)?);
        for block in &self.double_blocks {
            (img, txt) = block.forward(&img, &txt, &condition, &angles)?;
        }
        let mut all = Tensor::cat(&[&txt, &img], 1)?;
        for block in &self.single_blocks {
            all = block.forward(&all, &condition, &angles)?;
        }
        let img = all.narrow(1, tokens, patches)?;
        self.final_layer.forward(&img, &condition)
    }
}

/// The model over dense weights. `img`, `txt` and `y` have their dtype; places and times may have any.
pub type Flux = Transformer<Dense>;
