//! The whole model: from an image and a prompt to masks, and masks of everything in an image.

use std::ops::Range;

use candle_core::{bail, DType, IndexOp, Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::image_encoder::ImageEncoderViT;
use super::mask_decoder::MaskDecoder;
use super::prompt_encoder::PromptEncoder;
use super::tiny_vit::{tiny_vit_5m, TinyViT};
use super::FAMILY;
use crate::object_detection::{non_maximum_suppression, Bbox};

/// The side of the images that the encoder sees, in pixels. Smaller ones are filled up at the right and the bottom.
pub const IMAGE_SIZE: usize = 1024;
const PATCH: usize = 16;
/// The side of the embeddings, and of the decoder's masks.
const SIDE: usize = IMAGE_SIZE / PATCH;
const MASK: usize = 4 * SIDE;
/// Pixels on the side of a mask's element.
const PLACE: usize = IMAGE_SIZE / MASK;
const EMBEDDING: usize = 256;
const WINDOW: usize = 14;
/// Mean of red, green and blue, from 0 to 255.
const MEAN: [f32; 3] = [123.675, 116.28, 103.53];
const DEVIATION: [f32; 3] = [58.395, 57.12, 57.375];

/// Points whose masks are made together.
const TOGETHER: usize = 64;
/// Minimum estimated IoU of the masks of [`Sam::generate_masks`].
const LEAST_IOU: f32 = 0.88;
/// Offset by which the threshold is moved up and down, and the minimum fraction of the mask that has to stay.
const OFFSET: f32 = 1.;
const LEAST_STABILITY: f32 = 0.95;
/// Masks whose boxes overlap more are one.
const MOST_OVERLAP: f32 = 0.7;

#[derive(Debug)]
enum Encoder {
    Vit(Box<ImageEncoderViT>),
    Tiny(Box<TinyViT>),
}

impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Vit(encoder) => encoder.forward(xs),
            Self::Tiny(encoder) => encoder.forward(xs),
        }
    }
}

/// A prompt. All coordinates are fractions of the image: 0 at the left and the top, 1 at the right and the bottom.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prompt<'a> {
    /// Across, down, and whether the point is inside.
    pub points: &'a [(f64, f64, bool)],
    /// A box: across and down of the upper left corner, and of the lower right one.
    pub bounds: Option<[f64; 4]>,
    /// Logits of a mask that was made before, (1, 1, 256, 256).
    pub mask: Option<&'a Tensor>,
}

/// Segment Anything.
#[derive(Debug)]
pub struct Sam {
    encoder: Encoder,
    prompt_encoder: PromptEncoder,
    mask_decoder: MaskDecoder,
    /// (3, 1, 1) of f32.
    mean: Tensor,
    deviation: Tensor,
    dtype: DType,
}

impl Sam {
    /// A model with a vision transformer, from `image_encoder`, `prompt_encoder` and `mask_decoder`. ViT-B has a size of 768, 12 blocks, 12
    /// heads, and attention to the whole image in the blocks 2, 5, 8 and 11; ViT-L 1024, 24, 16 and 5, 11, 17, 23; ViT-H 1280, 32, 16
    /// and 7, 15, 23, 31.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(
        encoder_embed_dim: usize,
        encoder_depth: usize,
        encoder_num_heads: usize,
        encoder_global_attn_indexes: &[usize],
        vb: VarBuilder,
    ) -> Result<Self> {
        let encoder = ImageEncoderViT::new(
            IMAGE_SIZE,
            PATCH,
            3,
            encoder_embed_dim,
            encoder_depth,
            encoder_num_heads,
            EMBEDDING,
            true,
            true,
            true,
            WINDOW,
            encoder_global_attn_indexes,
            vb.pp("image_encoder"),
        )?;
        Self::with(Encoder::Vit(encoder.into()), vb)
    }

    /// MobileSAM, from `image_encoder`, `prompt_encoder` and `mask_decoder`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new_tiny(vb: VarBuilder) -> Result<Self> {
        let encoder = tiny_vit_5m(vb.pp("image_encoder"))?;
        Self::with(Encoder::Tiny(encoder.into()), vb)
    }

    fn with(encoder: Encoder, vb: VarBuilder) -> Result<Self> {
        let prompt_encoder = PromptEncoder::new(
            EMBEDDING,
            (SIDE, SIDE),
            (IMAGE_SIZE, IMAGE_SIZE),
            16,
            vb.pp("prompt_encoder"),
        )?;
        let per_channel = |numbers| Tensor::new(numbers, vb.device())?.reshape((3, 1, 1));
        Ok(Self {
            encoder,
            prompt_encoder,
            mask_decoder: MaskDecoder::new(EMBEDDING, 3, 3, 256, vb.pp("mask_decoder"))?,
            mean: per_channel(&MEAN)?,
            deviation: per_channel(&DEVIATION)?,
            dtype: vb.dtype(),
        })
    }

    /// The embeddings of an image, (1, 256, 64, 64), for [`forward_for_prompt`](Self::forward_for_prompt). The image is that of
    /// [`preprocess`](Self::preprocess).
    ///
    /// # Errors
    /// Those of [`preprocess`](Self::preprocess).
    pub fn embeddings(&self, img: &Tensor) -> Result<Tensor> {
        let picture = self.preprocess(img)?.unsqueeze(0)?;
        self.encoder.forward(&picture.to_dtype(self.dtype)?)
    }

    /// Masks of an image, (masks, height, width), logits that are positive inside, each element of the decoder's masks being 4x4 pixels;
    /// and their estimated intersection over union with the prompted object, (1, masks).
    ///
    /// `points` are across and down, fractions of the image from 0 to 1, and whether they are inside. With `multimask_output` there are
    /// three
    /// masks, for a prompt that may mean several things: a part, a whole, several.
    ///
    /// # Errors
    /// Those of [`preprocess`](Self::preprocess); a point is NaN.
    pub fn forward(
        &self,
        img: &Tensor,
        points: &[(f64, f64, bool)],
        multimask_output: bool,
    ) -> Result<(Tensor, Tensor)> {
        let embeddings = self.embeddings(img)?;
        let (_, h, w) = img.dims3()?;
        let (masks, iou) =
            self.forward_for_embeddings(&embeddings, h, w, points, multimask_output)?;
        let masks = masks.upsample_nearest2d(IMAGE_SIZE, IMAGE_SIZE)?;
        Ok((masks.get(0)?.i((.., ..h, ..w))?, iou))
    }

    /// The decoder's masks, (1, masks, 256, 256), and their estimated IoU, as in [`forward`](Self::forward). An element of a mask is 4x4
    /// pixels. As the image was padded to 1024x1024, masks extend beyond it: a quarter of the image's height and width belongs to it.
    ///
    /// `img_embeddings` are those of [`embeddings`](Self::embeddings), `original_h` and `original_w` the size of that image in pixels.
    ///
    /// # Errors
    /// The embeddings have another shape, or a point is NaN.
    pub fn forward_for_embeddings(
        &self,
        img_embeddings: &Tensor,
        original_h: usize,
        original_w: usize,
        points: &[(f64, f64, bool)],
        multimask_output: bool,
    ) -> Result<(Tensor, Tensor)> {
        let prompt = Prompt {
            points,
            ..Default::default()
        };
        self.forward_for_prompt(
            img_embeddings,
            original_h,
            original_w,
            &prompt,
            multimask_output,
        )
    }

    /// As [`forward_for_embeddings`](Self::forward_for_embeddings), for points, a box and a mask.
    ///
    /// # Errors
    /// Those of [`forward_for_embeddings`](Self::forward_for_embeddings), a coordinate of the box is NaN, or the mask has another shape.
    pub fn forward_for_prompt(
        &self,
        img_embeddings: &Tensor,
        original_h: usize,
        original_w: usize,
        prompt: &Prompt<'_>,
        multimask_output: bool,
    ) -> Result<(Tensor, Tensor)> {
        let device = img_embeddings.device();
        let pixel = |(x, y): (f64, f64)| -> Result<[f32; 2]> {
            if !x.is_finite() || !y.is_finite() {
                bail!("{FAMILY}: the prompt has a point at {x}, {y}; both must be finite")
            }
            Ok([x as f32 * original_w as f32, y as f32 * original_h as f32])
        };
        let n = prompt.points.len();
        let points = match n {
            0 => None,
            _ => {
                let places = prompt.points.iter().map(|(x, y, _)| pixel((*x, *y)));
                let places = places.collect::<Result<Vec<_>>>()?.concat();
                let labels = prompt
                    .points
                    .iter()
                    .map(|(_, _, inside)| f32::from(*inside));
                let labels = labels.collect::<Vec<_>>();
                Some((
                    Tensor::from_vec(places, (1, n, 2), device)?,
                    Tensor::from_vec(labels, (1, n), device)?,
                ))
            }
        };
        let bounds = match prompt.bounds {
            None => None,
            Some([left, top, right, bottom]) => {
                let corners = [pixel((left, top))?, pixel((right, bottom))?].concat();
                Some(Tensor::from_vec(corners, (1, 4), device)?)
            }
        };
        let points = points.as_ref().map(|(places, labels)| (places, labels));
        let (sparse, dense) = self
            .prompt_encoder
            .forward(points, bounds.as_ref(), prompt.mask)?;
        self.mask_decoder.forward(
            img_embeddings,
            &self.prompt_encoder.get_dense_pe()?,
            &sparse,
            &dense,
            multimask_output,
        )
    }

    /// Back from what [`preprocess`](Self::preprocess) gives to numbers from 0 to 255; what was filled up is grey.
    ///
    /// # Errors
    /// The image is not (3, height, width) of f32.
    pub fn unpreprocess(&self, img: &Tensor) -> Result<Tensor> {
        let img = img.broadcast_mul(&self.deviation)?;
        img.broadcast_add(&self.mean)?.clamp(0f32, 255f32)
    }

    /// The encoder's input for an image: (3, 1024, 1024) of f32, padded with zeros at the right and the bottom.
    ///
    /// The image is (3, height, width), red, green and blue from 0 to 255, in any dtype. Its longer side is best
    /// [`IMAGE_SIZE`]: the model was trained so.
    ///
    /// # Errors
    /// The image has another number of channels, or a side that is 0 or more than 1024.
    pub fn preprocess(&self, img: &Tensor) -> Result<Tensor> {
        let (c, h, w) = img.dims3()?;
        if c != 3 || h == 0 || w == 0 || h > IMAGE_SIZE || w > IMAGE_SIZE {
            bail!(
                "{FAMILY}: the picture is {:?}; it must be (3, height, width) with sides from 1 to {IMAGE_SIZE}; resize it",
                img.dims()
            )
        }
        let img = img.to_dtype(DType::F32)?.broadcast_sub(&self.mean)?;
        let img = img.broadcast_div(&self.deviation)?;
        let img = img.pad_with_zeros(1, 0, IMAGE_SIZE - h)?;
        img.pad_with_zeros(2, 0, IMAGE_SIZE - w)
    }

    /// The masks of `points` of a part of the image, as in [`generate_masks`](Self::generate_masks).
    fn process_crop(
        &self,
        img: &Tensor,
        crop: &Crop,
        points: &[[f64; 2]],
    ) -> Result<Vec<Bbox<Tensor>>> {
        let [rows, columns] = crop.pixels.clone();
        let part = img.i((.., rows, columns))?;
        let (_, h, w) = part.dims3()?;
        let embeddings = self.embeddings(&part)?;
        let positions = self.prompt_encoder.get_dense_pe()?;
        let device = embeddings.device();
        let [rows, columns] = crop.places.clone().map(|places| places.len());
        let mut found = Vec::new();
        for points in points.chunks(TOGETHER) {
            let n = points.len();
            let pixels = points
                .iter()
                .flat_map(|[x, y]| [*x as f32 * w as f32, *y as f32 * h as f32]);
            let pixels = Tensor::from_vec(pixels.collect::<Vec<_>>(), (n, 1, 2), device)?;
            let labels = Tensor::ones((n, 1), DType::F32, device)?;
            let (sparse, dense) =
                self.prompt_encoder
                    .forward(Some((&pixels, &labels)), None, None)?;
            let (masks, iou) =
                self.mask_decoder
                    .forward(&embeddings, &positions, &sparse, &dense, true)?;
            let masks = masks.flatten_to(1)?.i((.., ..rows, ..columns))?;
            found.extend(good(&masks, &iou.flatten_all()?)?);
        }
        let mut found = [found];
        non_maximum_suppression(&mut found, MOST_OVERLAP);
        let [found] = found;
        found.into_iter().map(|mask| crop.place(mask)).collect()
    }

    /// Masks of all objects in an image: those of a grid of `points_per_side` points a side that seem good, without those whose boxes are
    /// nearly the same, each with its box and its estimated IoU.
    ///
    /// Masks are (256, 256) of u32, 1 inside; an element is 4x4 pixels of the image, which is padded to 1024x1024. Boxes are in elements.
    ///
    /// With `crop_n_layer` the same is done for parts of the image, in layer `n` of 2^n times 2^n parts, which overlap by
    /// `crop_overlap_ratio` of the shorter side over 2^(n-1), with points a side fewer by the factor `crop_n_points_downscale_factor` from
    /// layer to layer. Of nearly equal masks of different parts the most confident is kept. Parts begin at the nearest element.
    ///
    /// # Errors
    /// Those of [`preprocess`](Self::preprocess); there are no points, the ratio is not from 0 to less than 1, or there are more parts than
    /// pixels.
    pub fn generate_masks(
        &self,
        img: &Tensor,
        points_per_side: usize,
        crop_n_layer: usize,
        crop_overlap_ratio: f64,
        crop_n_points_downscale_factor: usize,
    ) -> Result<Vec<Bbox<Tensor>>> {
        let (_, h, w) = img.dims3()?;
        let grids = (0..=crop_n_layer).map(|layer| {
            grid(
                points_per_side,
                crop_n_points_downscale_factor,
                layer as u32,
            )
        });
        let grids = grids.collect::<Result<Vec<_>>>()?;
        let mut found = Vec::new();
        for (layer, points) in grids.iter().enumerate() {
            for crop in crops([h, w], layer as u32, crop_overlap_ratio)? {
                found.extend(self.process_crop(img, &crop, points)?);
            }
        }
        let mut found = [found];
        if crop_n_layer > 0 {
            non_maximum_suppression(&mut found, MOST_OVERLAP);
        }
        let [found] = found;
        Ok(found)
    }
}

/// Those of `masks`, (n, side, side) of logits, that seem good by `iou`, (n), and stay much the same if the threshold is another.
fn good(masks: &Tensor, iou: &Tensor) -> Result<Vec<Bbox<Tensor>>> {
    let inside = |threshold: f32| masks.ge(threshold);
    let count = |threshold| -> Result<Vec<f32>> {
        let inside = inside(threshold)?.to_dtype(DType::F32)?;
        inside.flatten_from(1)?.sum(1)?.to_vec1()
    };
    let iou = iou.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    let (least, most) = (count(OFFSET)?, count(-OFFSET)?);
    let is_good = |&i: &usize| iou[i] >= LEAST_IOU && least[i] / most[i] >= LEAST_STABILITY;
    let kept: Vec<_> = (0..iou.len()).filter(is_good).collect();
    if kept.is_empty() {
        return Ok(Vec::new());
    }
    let index = kept.iter().map(|i| *i as u32).collect::<Vec<_>>();
    let index = Tensor::from_vec(index, kept.len(), masks.device())?;
    let inside = inside(0.)?.to_dtype(DType::U32)?.index_select(&index, 0)?;
    let columns = inside.max(1)?.to_vec2::<u32>()?;
    let rows = inside.max(2)?.to_vec2::<u32>()?;
    let mut found = Vec::with_capacity(kept.len());
    for (i, mask) in kept.into_iter().enumerate() {
        if let (Some([xmin, xmax]), Some([ymin, ymax])) = (span(&columns[i]), span(&rows[i])) {
            found.push(Bbox {
                xmin,
                ymin,
                xmax,
                ymax,
                confidence: iou[mask],
                data: inside.get(i)?,
            });
        }
    }
    Ok(found)
}

/// The first and the last that is not 0.
fn span(values: &[u32]) -> Option<[f32; 2]> {
    let first = values.iter().position(|value| *value > 0)?;
    let last = values.iter().rposition(|value| *value > 0)?;
    Some([first as f32, last as f32])
}

/// A part of an image: its rows and columns.
#[derive(Debug, Clone, PartialEq)]
struct Crop {
    pixels: [Range<usize>; 2],
    /// Its rows and columns in the image's masks.
    places: [Range<usize>; 2],
}

impl Crop {
    fn of(pixels: [Range<usize>; 2]) -> Self {
        let places = pixels.clone().map(|pixels| {
            let start = ((pixels.start + PLACE / 2) / PLACE).min(MASK - 1);
            start..(start + pixels.len().div_ceil(PLACE)).min(MASK)
        });
        Self { pixels, places }
    }

    /// All of it. Its masks have what was filled up as well.
    fn whole([h, w]: [usize; 2]) -> Self {
        Self {
            pixels: [0..h, 0..w],
            places: [0..MASK, 0..MASK],
        }
    }

    /// A mask of the part as one of the image.
    fn place(&self, mask: Bbox<Tensor>) -> Result<Bbox<Tensor>> {
        let mut data = mask.data;
        for (dim, places) in self.places.iter().enumerate() {
            if places.len() < MASK {
                data = data.pad_with_zeros(dim, places.start, MASK - places.end)?;
            }
        }
        let [down, across] = self.places.clone().map(|places| places.start as f32);
        Ok(Bbox {
            xmin: mask.xmin + across,
            xmax: mask.xmax + across,
            ymin: mask.ymin + down,
            ymax: mask.ymax + down,
            data,
            ..mask
        })
    }
}

/// The parts of an image of `[height, width]` in a layer; the first layer has one.
fn crops(size: [usize; 2], layer: u32, overlap: f64) -> Result<Vec<Crop>> {
    let shorter = size[0].min(size[1]);
    let count = match 1usize.checked_shl(layer) {
        Some(count) if count <= shorter => count,
        _ => bail!("{FAMILY}: crops of layer {layer} are 2^{layer} per side, more than the {shorter} pixels of the shorter side"),
    };
    if !(0. ..1.).contains(&overlap) {
        bail!("{FAMILY}: crop_overlap_ratio is {overlap}; it must be at least 0 and less than 1")
    }
    if layer == 0 {
        return Ok(vec![Crop::whole(size)]);
    }
    let overlap = (overlap * shorter as f64 * 2. / count as f64) as usize;
    let [rows, columns] = size.map(|len| {
        let part = (overlap * (count - 1) + len).div_ceil(count);
        // A part is longer than what it shares unless the image is a few pixels.
        let step = part.saturating_sub(overlap);
        (0..count).map(move |i| (step * i).min(len - 1)..(step * i + part).min(len))
    });
    let of_columns = columns.map(|columns| {
        rows.clone()
            .map(move |rows| Crop::of([rows, columns.clone()]))
    });
    Ok(of_columns.flatten().collect())
}

/// Points in the middle of each of the squares that an image is divided into, parts of its width and height, column by column.
fn grid(per_side: usize, factor: usize, layer: u32) -> Result<Vec<[f64; 2]>> {
    let n = match factor.checked_pow(layer) {
        Some(factor) if factor > 0 => per_side / factor,
        _ => 0,
    };
    if n == 0 {
        bail!("{FAMILY}: no points in crop layer {layer}: {per_side} per side, divided by {factor} per layer")
    }
    let middle = |i: usize| (2 * i + 1) as f64 / (2 * n) as f64;
    Ok((0..n * n).map(|i| [middle(i / n), middle(i % n)]).collect())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// By the formulas of the paper's program: parts share a third of the shorter side, and the last ends with the image.
    #[test]
    fn parts_of_a_picture_overlap_and_cover_it() -> Result<()> {
        assert_eq!(crops([300, 500], 0, 0.3)?, [Crop::whole([300, 500])]);
        let parts = crops([300, 500], 1, 1. / 3.)?;
        let pixels: Vec<_> = parts.iter().map(|part| part.pixels.clone()).collect();
        let (above, below) = (0..200, 100..300);
        let (left, right) = (0..300, 200..500);
        let expected = [
            [above.clone(), left.clone()],
            [below.clone(), left],
            [above, right.clone()],
            [below, right],
        ];
        assert_eq!(pixels, expected);
        assert_eq!(crops([300, 500], 2, 1. / 3.)?.len(), 16);
        for part in crops([1, 1000], 0, 0.)?
            .iter()
            .chain(&crops([4, 9], 2, 0.9)?)
        {
            assert!(part.pixels.iter().all(|pixels| !pixels.is_empty()));
        }
        for (layer, overlap) in [(9, 0.), (70, 0.), (1, 1.), (1, f64::NAN), (1, -0.1)] {
            assert!(
                crops([300, 500], layer, overlap).is_err(),
                "{layer} {overlap}"
            );
        }
        Ok(())
    }

    #[test]
    fn masks_of_parts_are_where_the_part_is() -> Result<()> {
        let part = Crop::of([402..500, 1000..1024]);
        assert_eq!(part.places, [101..126, 250..256]);
        let data = Tensor::ones((25, 6), DType::U32, &Device::Cpu)?;
        let mask = part.place(Bbox {
            xmin: 0.,
            ymin: 2.,
            xmax: 5.,
            ymax: 24.,
            confidence: 1.,
            data,
        })?;
        assert_eq!([mask.xmin, mask.ymin], [250., 103.]);
        assert_eq!([mask.xmax, mask.ymax], [255., 125.]);
        assert_eq!(mask.data.dims(), &[MASK, MASK]);
        let inside = mask.data.i((101..126, 250..))?;
        assert_eq!(inside.sum_all()?.to_scalar::<u32>()?, 25 * 6);
        assert_eq!(mask.data.sum_all()?.to_scalar::<u32>()?, 25 * 6);
        Ok(())
    }

    #[test]
    fn points_are_in_the_middle() -> Result<()> {
        let points = [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]];
        assert_eq!(grid(2, 3, 0)?, points);
        assert_eq!(grid(4, 2, 1)?, points);
        for (per_side, factor, layer) in [(0, 1, 0), (1, 2, 1), (4, 0, 1), (4, usize::MAX, 2)] {
            assert!(grid(per_side, factor, layer).is_err());
        }
        Ok(())
    }
}
