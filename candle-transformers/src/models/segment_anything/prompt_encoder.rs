//! The encoder of prompts: points, boxes and masks as what the decoder reads. Places are sines and cosines of random projections,
//! [arXiv 2006.10739](https://arxiv.org/abs/2006.10739).

use std::f64::consts::PI;

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::{embedding, Activation, Conv2d, VarBuilder};

use super::{LayerNorm2d, EPS, FAMILY};
use crate::blocks::vision::{run_all, ConvSpec};

const GELU: Activation = Activation::GeluPytorchTanh;

/// Vectors of points in an image.
#[derive(Debug)]
struct Positions {
    /// The projections as angles, (2, size / 2) of f32: in 16 bits, angles of many rotations would be off by a fraction of one.
    angles: Tensor,
    dtype: DType,
}

impl Positions {
    fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        let projections = vb.get((2, size / 2), "positional_encoding_gaussian_matrix")?;
        Ok(Self {
            angles: (projections.to_dtype(DType::F32)? * (2. * PI))?,
            dtype: vb.dtype(),
        })
    }

    /// From points (n, 2) of f32, across and down, each from 0 to 1, to (n, size).
    fn forward(&self, places: &Tensor) -> Result<Tensor> {
        let angles = places.affine(2., -1.)?.matmul(&self.angles)?;
        Tensor::cat(&[angles.sin()?, angles.cos()?], 1)?.to_dtype(self.dtype)
    }

    /// Those of the centres of a grid over the image: (1, size, rows, columns).
    fn of_grid(&self, (rows, columns): (usize, usize)) -> Result<Tensor> {
        let middle = |i: usize, n: usize| (i as f32 + 0.5) / n as f32;
        let places = (0..rows * columns)
            .flat_map(|i| [middle(i % columns, columns), middle(i / columns, rows)]);
        let places = places.collect::<Vec<_>>();
        let places = Tensor::from_vec(places, (rows * columns, 2), self.angles.device())?;
        let vectors = self.forward(&places)?.t()?.contiguous()?;
        vectors.reshape((1, (), rows, columns))
    }
}

/// A convolution, and the norm and the activation behind all but the last.
#[derive(Debug)]
struct Smaller {
    conv: Conv2d,
    norm: Option<LayerNorm2d>,
}

impl Module for Smaller {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.conv.forward(xs)?;
        match &self.norm {
            Some(norm) => GELU.forward(&norm.forward(&xs)?),
            None => Ok(xs),
        }
    }
}

/// The encoder of prompts.
#[derive(Debug)]
pub struct PromptEncoder {
    positions: Positions,
    /// Those of the image's grid.
    of_image: Tensor,
    /// Added to a padding point, to a point outside and to one inside: (3, embed_dim).
    points: Tensor,
    /// To a box's first and second corner: (1, 2, embed_dim).
    corners: Tensor,
    /// (1, embed_dim)
    no_mask: Tensor,
    masks: Vec<Smaller>,
    /// Width and height in pixels, (2) of f32.
    pixels: Tensor,
    image_embedding_size: (usize, usize),
    embed_dim: usize,
}

impl PromptEncoder {
    /// Loads `pe_layer.positional_encoding_gaussian_matrix`, `point_embeddings.N`, `not_a_point_embed`, `no_mask_embed` and
    /// `mask_downscaling`, which has `mask_in_chans` channels inside.
    ///
    /// `image_embedding_size` is the height and width of the image's embeddings, `input_image_size` that of the image in pixels.
    ///
    /// # Errors
    /// `embed_dim` is odd, `mask_in_chans` is not a multiple of 4, a size is 0, or a weight is missing or has another shape.
    pub fn new(
        embed_dim: usize,
        image_embedding_size: (usize, usize),
        input_image_size: (usize, usize),
        mask_in_chans: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let (rows, columns) = image_embedding_size;
        let (h, w) = input_image_size;
        let sizes = [rows, columns, h, w, embed_dim, mask_in_chans];
        if !embed_dim.is_multiple_of(2) || !mask_in_chans.is_multiple_of(4) || sizes.contains(&0) {
            bail!(
                "{FAMILY}: embed_dim {embed_dim} must be even and mask_in_chans {mask_in_chans} a multiple of 4, and both and the sizes \
                 {image_embedding_size:?} and {input_image_size:?} more than 0"
            )
        }
        let vector = |vb: VarBuilder| -> Result<Tensor> {
            Ok(embedding(1, embed_dim, vb)?.embeddings().clone())
        };
        let kind = |i: usize| vector(vb.pp("point_embeddings").pp(i));
        let vb_masks = vb.pp("mask_downscaling");
        let half = |inputs, outputs, at: usize| -> Result<_> {
            Ok(Smaller {
                conv: ConvSpec::patches(inputs, outputs, 2).load(vb_masks.pp(at))?,
                norm: Some(LayerNorm2d::new(outputs, EPS, vb_masks.pp(at + 1))?),
            })
        };
        let last = ConvSpec::new(mask_in_chans, embed_dim, 1);
        let positions = Positions::load(embed_dim, vb.pp("pe_layer"))?;
        let no_point = vector(vb.pp("not_a_point_embed"))?;
        Ok(Self {
            of_image: positions.of_grid(image_embedding_size)?,
            positions,
            points: Tensor::cat(&[no_point, kind(0)?, kind(1)?], 0)?,
            corners: Tensor::cat(&[kind(2)?, kind(3)?], 0)?.unsqueeze(0)?,
            no_mask: vector(vb.pp("no_mask_embed"))?,
            masks: vec![
                half(1, mask_in_chans / 4, 0)?,
                half(mask_in_chans / 4, mask_in_chans, 3)?,
                Smaller {
                    conv: last.load(vb_masks.pp(6))?,
                    norm: None,
                },
            ],
            pixels: Tensor::new(&[w as f32, h as f32], vb.device())?,
            image_embedding_size,
            embed_dim,
        })
    }

    /// The positions of the image's embeddings, (1, embed_dim, height, width).
    ///
    /// # Errors
    /// None: they were computed when the encoder was loaded.
    pub fn get_dense_pe(&self) -> Result<Tensor> {
        Ok(self.of_image.clone())
    }

    /// The vectors of the middles of pixels (batch, n, 2), across and down: (batch, n, embed_dim).
    fn at(&self, pixels: &Tensor) -> Result<Tensor> {
        let (b, n, _) = pixels.dims3()?;
        let pixels = pixels.to_dtype(DType::F32)?.reshape((b * n, 2))?;
        let places = (pixels + 0.5)?.broadcast_div(&self.pixels)?;
        self.positions
            .forward(&places)?
            .reshape((b, n, self.embed_dim))
    }

    /// Points, and one that is none behind them if `pad`.
    fn embed_points(&self, coords: &Tensor, labels: &Tensor, pad: bool) -> Result<Tensor> {
        let (mut points, mut labels) = (self.at(coords)?, labels.to_dtype(DType::F32)?);
        let (b, n, size) = points.dims3()?;
        let (dtype, device) = (points.dtype(), points.device().clone());
        if pad {
            let none = Tensor::zeros((b, 1, size), dtype, &device)?;
            points = Tensor::cat(&[&points, &none], 1)?;
            let none = Tensor::full(-1f32, (b, 1), &device)?;
            labels = Tensor::cat(&[&labels, &none], 1)?;
        }
        // The coordinates of a padding point do not matter.
        let kinds = [labels.lt(0f32)?, labels.eq(0f32)?, labels.eq(1f32)?];
        let kinds = Tensor::stack(&kinds, 2)?.to_dtype(dtype)?;
        let is_point = labels.ge(0f32)?.to_dtype(dtype)?.unsqueeze(2)?;
        let n = n + usize::from(pad);
        let kinds = kinds.reshape((b * n, 3))?.matmul(&self.points)?;
        points.broadcast_mul(&is_point)? + kinds.reshape((b, n, size))?
    }

    /// The decoder's inputs: of points and boxes (batch, tokens, embed_dim), and of masks (batch, embed_dim, height, width) or, without
    /// masks, (1, embed_dim, height, width), with the height and width of the image's embeddings.
    ///
    /// - `points` are coordinates in pixels, (batch, n, 2), across and down, and labels, (batch, n): 1 inside what is meant, 0 outside, and
    ///   -1 for a point that does not count.
    /// - `boxes` are (batch, 4): across and down of the first corner and of the second.
    /// - `masks` are logits, (batch, 1, 4 * height, 4 * width), such as the decoder gives.
    ///
    /// Without points and boxes there are no tokens, in a batch of 1.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        points: Option<(&Tensor, &Tensor)>,
        boxes: Option<&Tensor>,
        masks: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (rows, columns) = self.image_embedding_size;
        let mut sparse = Vec::new();
        if let Some((coords, labels)) = points {
            match (coords.dims(), labels.dims()) {
                ([b, n, 2], [batch, count]) if [b, n] == [batch, count] => {}
                _ => bail!(
                    "{FAMILY}: the points are {:?} and their labels {:?}; they must be (batch, n, 2) and (batch, n)",
                    coords.dims(),
                    labels.dims()
                ),
            }
            sparse.push(self.embed_points(coords, labels, boxes.is_none())?);
        }
        if let Some(boxes) = boxes {
            let [b, 4] = *boxes.dims() else {
                bail!(
                    "{FAMILY}: the boxes are {:?}; they must be (batch, 4)",
                    boxes.dims()
                )
            };
            let corners = self.at(&boxes.reshape((b, 2, 2))?)?;
            sparse.push(corners.broadcast_add(&self.corners)?);
        }
        let sparse = match sparse.as_slice() {
            [] => Tensor::zeros(
                (1, 0, self.embed_dim),
                self.no_mask.dtype(),
                self.no_mask.device(),
            )?,
            parts => Tensor::cat(parts, 1)?,
        };
        let dense = match masks {
            None => {
                let no_mask = self.no_mask.reshape((1, self.embed_dim, 1, 1))?;
                no_mask.expand((1, self.embed_dim, rows, columns))?
            }
            Some(masks) => {
                let wanted = [1, 4 * rows, 4 * columns];
                if masks.rank() != 4 || masks.dims()[1..] != wanted {
                    bail!(
                        "{FAMILY}: the masks are {:?}; they must be (batch, {}, {}, {})",
                        masks.dims(),
                        wanted[0],
                        wanted[1],
                        wanted[2]
                    )
                }
                run_all(&self.masks, masks)?
            }
        };
        Ok((sparse, dense))
    }
}
