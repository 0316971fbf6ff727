//! Embeddings of latents as tokens, and of positions, times and texts; and the way back from tokens to latents.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear, Linear, VarBuilder};

use super::FAMILY;
use crate::blocks::diffusion::sinusoids;
use crate::blocks::vision::{ConvSpec, PatchEmbedding, Picture};

fn check_patch(patch_size: usize) -> Result<()> {
    if patch_size == 0 {
        bail!("{FAMILY}: patch_size is 0; it must be at least 1")
    }
    Ok(())
}

/// Squares of latents as tokens.
#[derive(Debug, Clone)]
pub struct PatchEmbedder {
    patches: PatchEmbedding,
}

impl PatchEmbedder {
    /// Loads the convolution `proj`, whose kernel and stride are `patch_size`.
    ///
    /// # Errors
    /// If `patch_size` is 0, or a weight is missing or has another shape.
    pub fn new(
        patch_size: usize,
        in_channels: usize,
        embed_dim: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        check_patch(patch_size)?;
        let conv = ConvSpec::patches(in_channels, embed_dim, patch_size).load(vb.pp("proj"))?;
        let picture = Picture {
            channels: in_channels,
            ..Picture::any(FAMILY)
        };
        Ok(Self {
            patches: PatchEmbedding::of(conv, picture, patch_size),
        })
    }
}

/// From (batch, in_channels, height, width) to (batch, patches, embed_dim), row by row. Elements after the last whole patch are ignored.
///
/// # Errors
/// The latents have another shape, dtype or device.
impl Module for PatchEmbedder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.patches.forward(x)?.0)
    }
}

/// Tokens as latents.
#[derive(Debug, Clone)]
pub struct Unpatchifier {
    patch_size: usize,
    out_channels: usize,
}

impl Unpatchifier {
    /// For tokens that hold `out_channels` of each position of a patch.
    ///
    /// # Errors
    /// If `patch_size` is 0.
    pub fn new(patch_size: usize, out_channels: usize) -> Result<Self> {
        check_patch(patch_size)?;
        Ok(Self {
            patch_size,
            out_channels,
        })
    }

    /// From (batch, rows * columns, patch_size * patch_size * out_channels) to (batch, out_channels, patch_size * rows, patch_size *
    /// columns), where rows and columns are those that cover `h` and `w`.
    ///
    /// # Errors
    /// If the tokens have another shape.
    pub fn unpatchify(&self, x: &Tensor, h: usize, w: usize) -> Result<Tensor> {
        let (patch, channels) = (self.patch_size, self.out_channels);
        let (rows, columns) = (h.div_ceil(patch), w.div_ceil(patch));
        let size = patch * patch * channels;
        let b = match *x.dims() {
            [b, n, c] if n == rows * columns && c == size => b,
            _ => bail!(
                "{FAMILY}: the tokens are {:?}; they must be (batch, {}, {size}) for latents of {h} x {w}",
                x.dims(),
                rows * columns
            ),
        };
        x.reshape((b, rows, columns, patch, patch, channels))?
            .permute((0, 5, 1, 3, 2, 4))?
            .reshape((b, channels, patch * rows, patch * columns))
    }
}

/// Vectors of positions, from the middle of a large square.
#[derive(Debug, Clone)]
pub struct PositionEmbedder {
    /// (side, side, hidden)
    table: Tensor,
    patch_size: usize,
    side: usize,
}

impl PositionEmbedder {
    /// Loads `pos_embed`, (1, pos_embed_max_size * pos_embed_max_size, hidden_size).
    ///
    /// # Errors
    /// If `patch_size` is 0, or the table is missing or has another shape.
    pub fn new(
        hidden_size: usize,
        patch_size: usize,
        pos_embed_max_size: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        check_patch(patch_size)?;
        let side = pos_embed_max_size;
        let table = vb.get((1, side.saturating_mul(side), hidden_size), "pos_embed")?;
        Ok(Self {
            table: table.reshape((side, side, hidden_size))?,
            patch_size,
            side,
        })
    }

    /// The vectors of the patches that cover latents of `h` and `w`, (1, patches, hidden_size), row by row.
    ///
    /// # Errors
    /// If there are more than the table has.
    pub fn get_cropped_pos_embed(&self, h: usize, w: usize) -> Result<Tensor> {
        let (rows, columns) = (h.div_ceil(self.patch_size), w.div_ceil(self.patch_size));
        let side = self.side;
        if rows > side || columns > side {
            bail!(
                "{FAMILY}: latents of {h} x {w} have {rows} x {columns} patches, but the model has positions for {side} x {side}; use smaller latents"
            )
        }
        self.table
            .narrow(0, (side - rows) / 2, rows)?
            .narrow(1, (side - columns) / 2, columns)?
            .reshape((1, rows * columns, ()))
    }
}

/// Two layers and SiLU between them.
#[derive(Debug, Clone)]
struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new(inputs: usize, hidden: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            first: linear(inputs, hidden, vb.pp("mlp.0"))?,
            second: linear(hidden, hidden, vb.pp("mlp.2"))?,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.second.forward(&self.first.forward(xs)?.silu()?)
    }
}

/// Vectors of times.
#[derive(Debug, Clone)]
pub struct TimestepEmbedder {
    mlp: Mlp,
    size: usize,
}

impl TimestepEmbedder {
    /// Loads `mlp.0` and `mlp.2`; times are `frequency_embedding_size` cosines and sines first.
    ///
    /// # Errors
    /// If `frequency_embedding_size` is odd or 0, or a weight is missing or has another shape.
    pub fn new(
        hidden_size: usize,
        frequency_embedding_size: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let size = frequency_embedding_size;
        if size == 0 || !size.is_multiple_of(2) {
            bail!("{FAMILY}: frequency_embedding_size is {size}; it must be even and at least 2")
        }
        Ok(Self {
            mlp: Mlp::new(size, hidden_size, vb)?,
            size,
        })
    }
}

/// From times of any dtype, (batch), to (batch, hidden_size) in the dtype of the weights.
impl Module for TimestepEmbedder {
    fn forward(&self, t: &Tensor) -> Result<Tensor> {
        let dtype = self.mlp.first.weight().dtype();
        self.mlp.forward(&sinusoids(t, self.size)?.to_dtype(dtype)?)
    }
}

/// Vectors of whole texts.
#[derive(Debug, Clone)]
pub struct VectorEmbedder {
    mlp: Mlp,
}

impl VectorEmbedder {
    /// Loads `mlp.0` and `mlp.2`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(input_dim: usize, hidden_size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            mlp: Mlp::new(input_dim, hidden_size, vb)?,
        })
    }
}

/// From (batch, input_dim) to (batch, hidden_size).
impl Module for VectorEmbedder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.mlp.forward(x)
    }
}
