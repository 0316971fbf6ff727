//! The transformer.

mod layers;
mod patches;

pub use layers::{
    apply_rotary_emb, FeedForward, FinalLayer, LayerNormNoParams, QkNorm, RopeEmbedder,
    TimestepEmbedder, ZImageAttention, ZImageTransformerBlock,
};
pub use patches::{create_coordinate_grid, patchify, unpatchify};

use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::{linear, rms_norm, Linear, RmsNorm, VarBuilder};
use serde::Deserialize;

use super::FAMILY;
use layers::hidden_keys;

/// The size of a time's vector, at most that of a token.
pub const ADALN_EMBED_DIM: usize = 256;
/// The lengths of texts are padded to multiples of this.
pub const SEQ_MULTI_OF: usize = 32;
/// Cosines and sines of a time.
pub const FREQUENCY_EMBEDDING_SIZE: usize = 256;
/// The longest period of these.
pub const MAX_PERIOD: f64 = 10_000.;

/// Inner size of the layers of a time's vector.
const TIME_INNER: usize = 1024;

/// The numbers of a `config.json`, which leaves out those that are as [`Config::z_image_turbo`] has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Sides of a patch of the latents; the first one is used.
    pub all_patch_size: Vec<usize>,
    /// Frames of a patch; the first number is used.
    pub all_f_patch_size: Vec<usize>,
    /// Channels of the latents.
    pub in_channels: usize,
    /// Size of a token.
    pub dim: usize,
    /// Blocks for text and image together.
    pub n_layers: usize,
    /// Blocks before those, for the image and for the text.
    pub n_refiner_layers: usize,
    /// Query heads, which divide `dim`.
    pub n_heads: usize,
    /// Key and value heads, which divide `n_heads`.
    pub n_kv_heads: usize,
    /// RMS norm epsilon, added to the mean square.
    pub norm_eps: f64,
    /// Whether the heads of queries and keys have a norm.
    pub qk_norm: bool,
    /// Size of the vector of a text's token.
    pub cap_feat_dim: usize,
    /// Base of the rotations' frequencies.
    pub rope_theta: f64,
    /// Factor of times from 0 to 1.
    pub t_scale: f64,
    /// Elements of a head that each axis of a token's position rotates; all of them together.
    pub axes_dims: Vec<usize>,
    /// Positions of each.
    pub axes_lens: Vec<usize>,
    /// Changes nothing: attention is one kernel where the device has one.
    pub use_accelerated_attn: bool,
}

/// The defaults of omitted fields of a `config.json`.
impl Default for Config {
    fn default() -> Self {
        Self::z_image_turbo()
    }
}

impl Config {
    /// [Z-Image-Turbo](https://huggingface.co/Tongyi-MAI/Z-Image-Turbo).
    pub fn z_image_turbo() -> Self {
        Self {
            all_patch_size: vec![2],
            all_f_patch_size: vec![1],
            in_channels: 16,
            dim: 3840,
            n_layers: 30,
            n_refiner_layers: 2,
            n_heads: 30,
            n_kv_heads: 30,
            norm_eps: 1e-5,
            qk_norm: true,
            cap_feat_dim: 2560,
            rope_theta: 256.,
            t_scale: 1000.,
            axes_dims: vec![32, 48, 48],
            axes_lens: vec![1536, 512, 512],
            use_accelerated_attn: true,
        }
    }

    /// Sets [`use_accelerated_attn`](Self::use_accelerated_attn), which changes nothing.
    pub fn set_use_accelerated_attn(&mut self, enabled: bool) {
        self.use_accelerated_attn = enabled;
    }

    /// The size of a head; 0 if there are no heads.
    pub fn head_dim(&self) -> usize {
        self.dim.checked_div(self.n_heads).unwrap_or(0)
    }

    /// Inner size of the feed-forward blocks: eight thirds of `dim`.
    pub fn hidden_dim(&self) -> usize {
        self.dim / 3 * 8
    }

    fn adaln_dim(&self) -> usize {
        self.dim.min(ADALN_EMBED_DIM)
    }

    /// Sides and frames of a patch.
    fn patch(&self) -> Result<(usize, usize)> {
        match (self.all_patch_size.first(), self.all_f_patch_size.first()) {
            (Some(&patch), Some(&frames)) if patch > 0 && frames > 0 => Ok((patch, frames)),
            _ => bail!(
                "{FAMILY}: all_patch_size is {:?} and all_f_patch_size {:?}; each must start with a number of at least 1",
                self.all_patch_size,
                self.all_f_patch_size
            ),
        }
    }

    fn check(&self) -> Result<()> {
        let (heads, kv_heads, dim) = (self.n_heads, self.n_kv_heads, self.dim);
        if heads == 0 || dim < 3 || !dim.is_multiple_of(heads) {
            bail!("{FAMILY}: {heads} heads do not divide the size {dim}")
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            bail!("{FAMILY}: {heads} query heads cannot be grouped over {kv_heads} key heads")
        }
        let axes = &self.axes_dims;
        let rotated = axes
            .iter()
            .fold(0usize, |sum, dim| sum.saturating_add(*dim));
        if axes.len() != 3 || rotated != self.head_dim() || axes.iter().any(|dim| dim % 2 != 0) {
            bail!(
                "{FAMILY}: axes_dims is {axes:?}; expected three even numbers whose sum is the head size, {}",
                self.head_dim()
            )
        }
        if self.in_channels == 0 || self.cap_feat_dim == 0 {
            bail!(
                "{FAMILY}: in_channels is {} and cap_feat_dim {}; each must be at least 1",
                self.in_channels,
                self.cap_feat_dim
            )
        }
        Ok(())
    }
}

/// Texts filled up to multiples of [`SEQ_MULTI_OF`].
struct Texts {
    /// (batch, tokens, dim)
    tokens: Tensor,
    /// Added to the scores of tokens, (batch, 1, 1, tokens): those beyond a text's multiple are hidden.
    hidden: Tensor,
    /// Tokens that are not hidden, (batch, 1) of f32.
    lens: Tensor,
}

/// The model.
#[derive(Debug, Clone)]
pub struct ZImageTransformer2DModel {
    t_embedder: TimestepEmbedder,
    cap_norm: RmsNorm,
    cap_embedder: Linear,
    x_embedder: Linear,
    /// The padding of texts, (1, dim).
    cap_pad: Tensor,
    /// The padding of patches, (1, dim).
    x_pad: Tensor,
    final_layer: FinalLayer,
    noise_refiner: Vec<ZImageTransformerBlock>,
    context_refiner: Vec<ZImageTransformerBlock>,
    layers: Vec<ZImageTransformerBlock>,
    rope: RopeEmbedder,
    cfg: Config,
}

impl ZImageTransformer2DModel {
    /// Loads the model.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.check()?;
        let (patch, frames) = cfg.patch()?;
        let (dim, cap) = (cfg.dim, cfg.cap_feat_dim);
        let size = patch * patch * frames * cfg.in_channels;
        let of_patch = |name| vb.pp(name).pp(format!("{patch}-{frames}"));
        // Not with_capacity: a configuration can ask for any number of blocks that no file has.
        let blocks = |name, count, modulation| -> Result<Vec<_>> {
            let vb = vb.pp(name);
            (0..count)
                .map(|i| ZImageTransformerBlock::new(cfg, modulation, vb.pp(i)))
                .collect()
        };
        let (axes, lens) = (cfg.axes_dims.clone(), cfg.axes_lens.clone());
        Ok(Self {
            t_embedder: TimestepEmbedder::new(cfg.adaln_dim(), TIME_INNER, vb.pp("t_embedder"))?,
            cap_norm: rms_norm(cap, cfg.norm_eps, vb.pp("cap_embedder.0"))?,
            cap_embedder: linear(cap, dim, vb.pp("cap_embedder.1"))?,
            x_embedder: linear(size, dim, of_patch("all_x_embedder"))?,
            cap_pad: vb.get((1, dim), "cap_pad_token")?,
            x_pad: vb.get((1, dim), "x_pad_token")?,
            final_layer: FinalLayer::new(dim, size, of_patch("all_final_layer"))?,
            noise_refiner: blocks("noise_refiner", cfg.n_refiner_layers, true)?,
            context_refiner: blocks("context_refiner", cfg.n_refiner_layers, false)?,
            layers: blocks("layers", cfg.n_layers, true)?,
            rope: RopeEmbedder::new(cfg.rope_theta, axes, lens, vb.device(), vb.dtype())?,
            cfg: cfg.clone(),
        })
    }

    /// The direction in which noise becomes the latents of an image, of the shape of `x`.
    ///
    /// - `x`: latents, (batch, in_channels, frames, height, width); images have one frame. `t`: times from 0, noise, to 1, (batch).
    /// - `cap_feats`: vectors of the texts' tokens, (batch, tokens, cap_feat_dim); `cap_mask`: 1 for tokens and 0 for what texts are filled
    ///   up with behind them, (batch, tokens).
    ///
    /// Each text and the patches are filled up to a multiple of [`SEQ_MULTI_OF`] with vectors of the model, which are seen as tokens are:
    /// so the model was trained. What a text has beyond that is hidden.
    ///
    /// # Errors
    /// If the latents cannot be cut into patches, there are more tokens or patches than positions, or shapes, dtypes or devices do not
    /// match.
    pub fn forward(
        &self,
        x: &Tensor,
        t: &Tensor,
        cap_feats: &Tensor,
        cap_mask: &Tensor,
    ) -> Result<Tensor> {
        let grid = self.check_inputs(x, t, cap_feats, cap_mask)?;
        let (patch, frames) = self.cfg.patch()?;
        let time = (t.to_dtype(DType::F32)? * self.cfg.t_scale)?;
        let time = self.t_embedder.forward(&time)?;

        let (patches, size) = patchify(x, patch, frames)?;
        let xs = self.x_embedder.forward(&patches)?;
        let (b, count, dim) = xs.dims3()?;
        let filled = count.next_multiple_of(SEQ_MULTI_OF);
        let padding = self.x_pad.expand((b, filled - count, dim))?;
        let mut xs = Tensor::cat(&[xs, padding], 1)?;
        let Texts {
            tokens: mut cap,
            hidden,
            lens,
        } = self.texts(cap_feats, cap_mask)?;

        let tokens = cap.dim(1)?;
        let (cos, sin) = self.rotations(grid, filled, tokens, &lens)?;
        let rows = |start, len| -> Result<_> {
            let part = |table: &Tensor| table.narrow(D::Minus2, start, len);
            Ok((part(&cos)?, part(&sin)?))
        };
        let (x_cos, x_sin) = rows(0, filled)?;
        for block in &self.noise_refiner {
            xs = block.with_bias(&xs, None, &x_cos, &x_sin, Some(&time))?;
        }
        let (cap_cos, cap_sin) = rows(filled, tokens)?;
        for block in &self.context_refiner {
            cap = block.with_bias(&cap, Some(&hidden), &cap_cos, &cap_sin, None)?;
        }
        let mut all = Tensor::cat(&[&xs, &cap], 1)?;
        let hidden = hidden.pad_with_zeros(D::Minus1, filled, 0)?;
        for block in &self.layers {
            all = block.with_bias(&all, Some(&hidden), &cos, &sin, Some(&time))?;
        }
        let xs = self.final_layer.forward(&all.narrow(1, 0, count)?, &time)?;
        unpatchify(&xs, size, patch, frames, self.cfg.in_channels)
    }

    fn texts(&self, cap_feats: &Tensor, cap_mask: &Tensor) -> Result<Texts> {
        let tokens = self.cap_norm.forward(cap_feats)?;
        let tokens = self.cap_embedder.forward(&tokens)?;
        let (_, count, _) = tokens.dims3()?;
        let multiple = SEQ_MULTI_OF as f64;
        let filled = count.next_multiple_of(SEQ_MULTI_OF);
        let tokens = tokens.pad_with_zeros(1, 0, filled - count)?;
        let mask = cap_mask.to_dtype(DType::F32)?.ne(0f32)?;
        let mask = mask.pad_with_zeros(1, 0, filled - count)?;
        let is_token = mask.unsqueeze(2)?.broadcast_as(tokens.shape())?;
        let padding = self.cap_pad.broadcast_as(tokens.shape())?;
        // Lengths stay on the device: nothing waits for them.
        let lens = mask.to_dtype(DType::F32)?.sum_keepdim(1)?;
        let lens = ((lens / multiple)?.ceil()? * multiple)?;
        let places = Tensor::arange(0f32, filled as f32, tokens.device())?.unsqueeze(0)?;
        Ok(Texts {
            tokens: is_token.where_cond(&tokens, &padding)?,
            hidden: hidden_keys(&lens.broadcast_gt(&places)?)?,
            lens,
        })
    }

    /// The cosines and sines of `patches` patches with padding, the first of which are those of `grid`, and then of `tokens` tokens:
    /// (patches + tokens, head_dim / 2), or (batch, patches + tokens, head_dim / 2).
    fn rotations(
        &self,
        grid: (usize, usize, usize),
        patches: usize,
        tokens: usize,
        lens: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (device, b) = (lens.device(), lens.dim(0)?);
        let places = |size, start| -> Result<Tensor> {
            let places = create_coordinate_grid(size, start, device)?;
            places.to_dtype(DType::F32)?.unsqueeze(0)
        };
        // The text's tokens have frames from 1 on, the image comes behind them; what fills it up is at 0.
        let behind = lens.unsqueeze(2)?.pad_with_zeros(2, 0, 2)?;
        let of_patches = places(grid, (1, 0, 0))?.broadcast_add(&behind)?;
        let missing = patches - of_patches.dim(1)?;
        let of_patches = of_patches.pad_with_zeros(1, 0, missing)?;
        let of_tokens = places((tokens, 1, 1), (1, 0, 0))?.repeat((b, 1, 1))?;
        let all = Tensor::cat(&[of_patches, of_tokens], 1)?;
        let all = all.to_dtype(DType::U32)?.flatten(0, 1)?;
        let (cos, sin) = self.rope.forward(&all)?;
        match b {
            1 => Ok((cos, sin)),
            _ => {
                let shape = (b, patches + tokens, ());
                Ok((cos.reshape(shape)?, sin.reshape(shape)?))
            }
        }
    }

    /// Frames, rows and columns of patches.
    fn check_inputs(
        &self,
        x: &Tensor,
        t: &Tensor,
        cap_feats: &Tensor,
        cap_mask: &Tensor,
    ) -> Result<(usize, usize, usize)> {
        let channels = self.cfg.in_channels;
        let (b, size) = match *x.dims() {
            [b, c, f, h, w] if c == channels && b > 0 => (b, (f, h, w)),
            _ => bail!(
                "{FAMILY}: the latents are {:?}; they must be (batch, {channels}, frames, height, width)",
                x.dims()
            ),
        };
        let tokens = match *cap_feats.dims() {
            [texts, tokens, c] if texts == b && tokens > 0 && c == self.cfg.cap_feat_dim => tokens,
            _ => bail!(
                "{FAMILY}: cap_feats is {:?}; for latents of {:?} it must be ({b}, tokens, {})",
                cap_feats.dims(),
                x.dims(),
                self.cfg.cap_feat_dim
            ),
        };
        if cap_mask.dims() != [b, tokens] || !matches!(*t.dims(), [n] if n == 1 || n == b) {
            bail!(
                "{FAMILY}: cap_mask is {:?} and t is {:?}; they must be ({b}, {tokens}) and ({b})",
                cap_mask.dims(),
                t.dims()
            )
        }
        let (patch, frames) = self.cfg.patch()?;
        let grid = patches::counts(size, patch, frames)?;
        let (f, rows, columns) = grid;
        let needed = [tokens.next_multiple_of(SEQ_MULTI_OF) + 1 + f, rows, columns];
        if needed
            .iter()
            .zip(&self.cfg.axes_lens)
            .any(|(n, len)| n > len)
        {
            bail!(
                "{FAMILY}: a text of {tokens} tokens and {f} x {rows} x {columns} patches need {needed:?} positions, but axes_lens is {:?}",
                self.cfg.axes_lens
            )
        }
        Ok(grid)
    }

    /// The numbers of the model.
    pub fn config(&self) -> &Config {
        &self.cfg
    }
}
