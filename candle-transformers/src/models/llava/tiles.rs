//! The vectors of an image's tiles as one row of tokens.

use candle_core::{bail, Result, Tensor};

use super::config::LLaVAConfig;
use super::utils::get_anyres_image_grid_shape;

/// The conversion of patches' vectors to tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merge {
    /// Tile by tile.
    Flat,
    /// The whole image in small, then row by row the image that the tiles are of.
    Spatial {
        /// Removes the padding of the tiles, and adds a token to the end of each row.
        unpad: bool,
    },
}

impl Merge {
    pub(super) fn of(config: &LLaVAConfig) -> Result<Self> {
        match config.mm_patch_merge_type.as_str() {
            "flat" => Ok(Self::Flat),
            name if name.starts_with("spatial") => Ok(Self::Spatial {
                unpad: name.contains("unpad"),
            }),
            other => bail!(
                "llava config: mm_patch_merge_type is {other:?}; it must be flat, spatial or spatial_unpad"
            ),
        }
    }
}

/// A model's settings for images in tiles.
pub(super) struct Tiles<'a> {
    pub(super) config: &'a LLaVAConfig,
    pub(super) merge: Merge,
    /// Height and width of a tile in pixels.
    pub(super) image_size: usize,
    /// Patches on the side of a tile.
    pub(super) side: usize,
    /// The token at the end of a row, (hidden_size).
    pub(super) newline: &'a Tensor,
}

impl Tiles<'_> {
    /// The tokens of an image of `size`, (width, height) in pixels: (tokens, hidden_size), from (tiles, patches, hidden_size), where the
    /// first tile is the whole image in small.
    pub(super) fn tokens(&self, tiles: &Tensor, size: Option<&(u32, u32)>) -> Result<Tensor> {
        let Merge::Spatial { unpad } = self.merge else {
            return tiles.flatten(0, 1);
        };
        let whole = tiles.get(0)?;
        let rest = match (tiles.dim(0)?, unpad) {
            (1, false) => return Ok(whole),
            (1, true) => self.newline.unsqueeze(0)?,
            (count, unpad) => {
                let picture = self.joined(&tiles.narrow(0, 1, count - 1)?, size)?;
                match (unpad, size) {
                    (true, Some(size)) => self.with_newlines(&without_borders(&picture, *size)?)?,
                    _ => picture.flatten(0, 1)?,
                }
            }
        };
        Tensor::cat(&[whole, rest], 0)
    }

    /// The image that tiles are of, (rows, columns, hidden_size) of patches.
    fn joined(&self, tiles: &Tensor, size: Option<&(u32, u32)>) -> Result<Tensor> {
        let aspect = self.config.image_aspect_ratio.as_str();
        if aspect != "anyres" {
            bail!(
                "llava: a picture has several tiles, but image_aspect_ratio is {aspect:?}; it must be anyres"
            )
        }
        let Some(size) = size else {
            bail!("llava: a picture with several tiles has no entry in image_sizes; each picture needs one")
        };
        let pinpoints = &self.config.image_grid_pinpoints;
        let (across, down) = get_anyres_image_grid_shape(*size, pinpoints, self.image_size as u32);
        let (across, down) = (across as usize, down as usize);
        let (count, patches, hidden) = tiles.dims3()?;
        let side = self.side;
        if count != across * down || patches != side * side {
            bail!(
                "llava: a picture of {size:?} pixels has {count} tiles of {patches} patches after the first; expected \
                 {across} x {down} tiles of {side} x {side}; see image_grid_pinpoints"
            )
        }
        tiles
            .reshape((down, across, side, side * hidden))?
            .transpose(1, 2)?
            .reshape((down * side, across * side, hidden))
    }

    /// Row by row with a token behind each: from (rows, columns, hidden_size) to (rows * (columns + 1), hidden_size).
    fn with_newlines(&self, picture: &Tensor) -> Result<Tensor> {
        let (rows, _, hidden) = picture.dims3()?;
        let newlines = self.newline.expand((rows, 1, hidden))?;
        Tensor::cat(&[picture, &newlines], 1)?.flatten(0, 1)
    }
}

/// The part of `picture`, (rows, columns, hidden_size), that an image of `width` and `height` fills, scaled to fit into its middle.
fn without_borders(picture: &Tensor, (width, height): (u32, u32)) -> Result<Tensor> {
    let (rows, columns, _) = picture.dims3()?;
    let (width, height) = (width as usize, height as usize);
    if width == 0 || height == 0 {
        bail!("llava: image_sizes has a picture of ({width}, {height}) pixels; both must be at least 1")
    }
    let middle = |dim, all: usize, filled: usize| {
        let border = (all - filled) / 2;
        picture.narrow(dim, border, all - 2 * border)
    };
    // In whole numbers: what fits exactly is not rounded down.
    if width * rows > height * columns {
        middle(0, rows, height * columns / width)
    } else {
        middle(1, columns, width * rows / height)
    }
}
