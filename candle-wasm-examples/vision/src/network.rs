//! The networks, from pixels to what is seen.

use crate::kind::Kind;
use crate::labels;
use candle_core::{bail, DType, Device, IndexOp, Module, Result, Tensor, D};
use candle_nn::ops::softmax;
use candle_nn::VarBuilder;
use candle_transformers::models::efficientnet::EfficientNetLite;
use candle_transformers::models::segment_anything::sam::{Prompt, Sam, IMAGE_SIZE};
use candle_transformers::models::yolo::found::{objects, Limits};
use candle_transformers::models::yolo::v8::{self, YoloV8};
use serde::Serialize;

/// The side of what the classifier sees, and how much of a picture's shorter side that is.
const SIDE: u32 = 224;
const CROP: f64 = 0.875;
/// Normalisation of the classifier's pixels, from 0 to 255.
const MEAN: f64 = 127.;
const DEVIATION: f64 = 128.;
/// Classes that are reported.
const BEST: usize = 5;
const LIMITS: Limits = Limits {
    confidence: 0.25,
    iou: 0.45,
};

/// The part of a picture that a network sees, in pixels, and the size in which it sees it.
#[derive(Serialize)]
pub struct View {
    x: u32,
    y: u32,
    width: u32,
    height: u32,
    columns: u32,
    rows: u32,
}

impl View {
    /// The view of an image of at least one pixel.
    pub fn of(kind: Kind, width: u32, height: u32) -> Self {
        let whole = |(columns, rows)| Self {
            x: 0,
            y: 0,
            width,
            height,
            columns,
            rows,
        };
        match kind {
            Kind::Classify { .. } => {
                let side = ((f64::from(width.min(height)) * CROP).round() as u32).max(1);
                Self {
                    x: (width - side) / 2,
                    y: (height - side) / 2,
                    width: side,
                    height: side,
                    columns: SIDE,
                    rows: SIDE,
                }
            }
            Kind::Detect { .. } => whole(v8::input_size((width, height))),
            Kind::Segment => {
                let side = IMAGE_SIZE as u32;
                let longer = f64::from(width.max(height));
                let scaled = |len: u32| {
                    let scaled = f64::from(len) * f64::from(side) / longer;
                    (scaled.round() as u32).clamp(1, side)
                };
                whole((scaled(width), scaled(height)))
            }
        }
    }
}

/// The result for a picture.
#[derive(Serialize, Default)]
pub struct Seen {
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<Vec<Class>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<Object>>,
}

#[derive(Serialize)]
struct Class {
    class: usize,
    label: String,
    probability: f32,
}

#[derive(Serialize)]
struct Object {
    #[serde(flatten)]
    class: Class,
    #[serde(rename = "box")]
    bounds: [f32; 4],
}

/// Across and down, from 0 to 1, and whether it is inside.
pub type Point = (f64, f64, bool);

/// Points as JavaScript gives them, three numbers each.
///
/// # Errors
/// No points, another number of numbers, or one that is not from 0 to 1.
pub fn points(numbers: &[f64]) -> Result<Vec<Point>> {
    if numbers.is_empty() || !numbers.len().is_multiple_of(3) {
        bail!(
            "points: found {} numbers, expected three for each point",
            numbers.len()
        )
    }
    if let Some(wrong) = numbers.iter().find(|number| !(0. ..=1.).contains(*number)) {
        bail!("points: found {wrong}, expected numbers from 0 to 1")
    }
    let points = numbers.chunks_exact(3);
    Ok(points
        .map(|point| (point[0], point[1], point[2] == 1.))
        .collect())
}

/// A network on its device.
pub enum Network {
    Classify(Box<EfficientNetLite>, Device, DType),
    Detect(Box<YoloV8>, Device, DType),
    Segment(Box<Sam>, Device),
}

impl Network {
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn load(kind: Kind, vb: VarBuilder) -> Result<Self> {
        let (device, dtype) = (vb.device().clone(), vb.dtype());
        Ok(match kind {
            Kind::Classify { classes } => {
                Self::Classify(EfficientNetLite::lite0(vb, classes)?.into(), device, dtype)
            }
            Kind::Detect { size, .. } => {
                Self::Detect(YoloV8::detect(size, vb)?.into(), device, dtype)
            }
            Kind::Segment => Self::Segment(Sam::new_tiny(vb)?.into(), device),
        })
    }

    /// The result for a picture, and its embeddings for [`mask`](Self::mask) if the network cuts out.
    ///
    /// # Errors
    /// Other pixels than `columns` x `rows` of four bytes, or a size that the network does not take.
    pub async fn look(
        &self,
        pixels: &[u8],
        size: [usize; 2],
        names: &[String],
    ) -> Result<(Seen, Option<Tensor>)> {
        match self {
            Self::Classify(network, device, dtype) => {
                let pixels = picture(pixels, size, device)?.to_dtype(*dtype)?;
                let pixels = ((pixels - MEAN)? / DEVIATION)?;
                let logits = network.forward(&pixels.unsqueeze(0)?)?;
                let likely = softmax(&logits.to_dtype(DType::F32)?, D::Minus1)?;
                let likely = likely.flatten_all()?.to_vec1_async::<f32>().await?;
                let seen = Seen {
                    classes: Some(best(&likely, names)?),
                    ..Default::default()
                };
                Ok((seen, None))
            }
            Self::Detect(network, device, dtype) => {
                let pixels = (picture(pixels, size, device)?.to_dtype(*dtype)? / 255.)?;
                let candidates = network.forward(&pixels.unsqueeze(0)?)?.squeeze(0)?;
                let dims = candidates.dims2()?;
                let numbers = candidates.to_dtype(DType::F32)?.flatten_all()?;
                let numbers = numbers.to_vec1_async::<f32>().await?;
                let candidates = Tensor::from_vec(numbers, dims, &Device::Cpu)?;
                let found = objects(&candidates, v8::CLASSES, LIMITS)?;
                let [columns, rows] = size.map(|len| len as f32);
                let part = |at: f32, of: f32| (at / of).clamp(0., 1.);
                let found = found.into_iter().map(|object| Object {
                    class: Class {
                        class: object.data.class,
                        label: labels::name(names, object.data.class),
                        probability: object.confidence,
                    },
                    bounds: [
                        part(object.xmin, columns),
                        part(object.ymin, rows),
                        part(object.xmax, columns),
                        part(object.ymax, rows),
                    ],
                });
                let seen = Seen {
                    objects: Some(found.collect()),
                    ..Default::default()
                };
                Ok((seen, None))
            }
            Self::Segment(network, device) => {
                let embeddings = network.embeddings(&picture(pixels, size, device)?)?;
                // Errors of the device belong to this picture, not to the first mask.
                device.synchronize_async().await?;
                Ok((Seen::default(), Some(embeddings)))
            }
        }
    }

    /// The mask of an image's object at the given points, and its estimated IoU.
    ///
    /// # Errors
    /// A network that does not cut out.
    pub async fn mask(
        &self,
        picture: &Tensor,
        [columns, rows]: [usize; 2],
        points: &[Point],
    ) -> Result<(Vec<u8>, f32)> {
        let Self::Segment(network, _) = self else {
            bail!("this model cuts nothing out; load MobileSAM")
        };
        let prompt = Prompt {
            points,
            ..Default::default()
        };
        // One point may mean a part, a whole or several things.
        let several = points.len() == 1;
        let (masks, iou) = network.forward_for_prompt(picture, rows, columns, &prompt, several)?;
        let iou = iou.to_dtype(DType::F32)?.flatten_all()?;
        let iou = iou.to_vec1_async::<f32>().await?;
        let best = (0..iou.len()).max_by(|&a, &b| iou[a].total_cmp(&iou[b]));
        let best = best.unwrap_or(0);
        let mask = masks.narrow(1, best, 1)?.to_dtype(DType::F32)?;
        let mask = mask.upsample_bilinear2d(IMAGE_SIZE, IMAGE_SIZE, false)?;
        let mask = mask.i((0, 0, ..rows, ..columns))?.flatten_all()?;
        let logits = mask.to_vec1_async::<f32>().await?;
        let inside = logits.iter().map(|logit| u8::from(*logit > 0.));
        Ok((inside.collect(), iou[best]))
    }
}

/// Red, green and blue, (3, rows, columns) of u8 on the device.
fn picture(pixels: &[u8], [columns, rows]: [usize; 2], device: &Device) -> Result<Tensor> {
    let expected = columns
        .checked_mul(rows)
        .and_then(|count| count.checked_mul(4));
    if expected != Some(pixels.len()) || pixels.is_empty() {
        bail!(
            "a picture of {columns}x{rows} pixels has {} bytes; expected four for each pixel",
            pixels.len()
        )
    }
    let colors: Vec<u8> = pixels
        .chunks_exact(4)
        .flat_map(|pixel| &pixel[..3])
        .copied()
        .collect();
    let picture = Tensor::from_vec(colors, (rows, columns, 3), device)?;
    picture.permute((2, 0, 1))?.contiguous()
}

/// The likeliest classes.
fn best(likely: &[f32], names: &[String]) -> Result<Vec<Class>> {
    if likely.iter().any(|number| !number.is_finite()) {
        bail!("the network gives numbers that are not finite: are these weights damaged?")
    }
    let mut order: Vec<usize> = (0..likely.len()).collect();
    order.sort_by(|&a, &b| likely[b].total_cmp(&likely[a]));
    let classes = order.into_iter().take(BEST).map(|class| Class {
        class,
        label: labels::name(names, class),
        probability: likely[class],
    });
    Ok(classes.collect())
}
