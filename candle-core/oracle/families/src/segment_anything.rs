//! Segment Anything: its parts, narrow ones, and the complete model, whose picture always has 1024x1024 pixels.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::segment_anything::image_encoder::ImageEncoderViT;
use candle_transformers::models::segment_anything::mask_decoder::MaskDecoder;
use candle_transformers::models::segment_anything::prompt_encoder::PromptEncoder;
use candle_transformers::models::segment_anything::sam::Sam;
use candle_transformers::models::segment_anything::tiny_vit::TinyViT;

pub const RUNS: &[Run] = &[
    ("sam_image_encoder", image_encoder),
    ("sam_prompt_encoder", prompt_encoder),
    ("sam_mask_decoder", mask_decoder),
    ("sam_tiny_vit", tiny_vit),
    ("sam_whole", whole),
];

fn image_encoder(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("sam_image_encoder");
    let picture = place.input("sam_image_encoder", (1, 3, 64, 64))?;
    // Windows that do not divide the picture, and one window of the complete picture.
    let outputs = [(true, 3), (true, 0), (false, 3)].map(|(positions, window)| {
        let model = ImageEncoderViT::new(
            64,
            8,
            3,
            32,
            3,
            2,
            16,
            positions,
            positions,
            true,
            window,
            &[1],
            vb.clone(),
        )?;
        model.forward(&picture)
    });
    outputs.into_iter().collect()
}

fn prompt_encoder(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("sam_prompt_encoder");
    let model = PromptEncoder::new(32, (5, 6), (40, 48), 8, vb)?;
    let points = (place.input("sam points", (2, 3, 2))? * 20.)?;
    let labels = [[1f32, 0., -1.], [0., 1., 1.]];
    let labels = Tensor::new(&labels, &place.device)?;
    let (sparse, dense) = model.forward(Some((&points, &labels)), None, None)?;
    // Upstream has both corners of a box in one row.
    let boxes = (place.input("sam boxes", (1, 4))? * 20.)?;
    let (corners, _) = model.forward(None, Some(&boxes), None)?;
    let masks = place.input("sam masks", (2, 1, 20, 24))?;
    let (_, of_masks) = model.forward(None, None, Some(&masks))?;
    let corners = corners.flatten_from(1)?;
    Ok(vec![
        sparse,
        dense,
        corners,
        of_masks,
        model.get_dense_pe()?,
    ])
}

fn mask_decoder(place: &Place) -> Result<Vec<Tensor>> {
    let model = MaskDecoder::new(32, 3, 3, 24, place.weights("sam_mask_decoder"))?;
    let picture = place.input("sam picture", (1, 32, 5, 6))?;
    let positions = place.input("sam positions", (1, 32, 5, 6))?;
    let sparse = place.input("sam sparse", (2, 3, 32))?;
    let dense = place.input("sam dense", (2, 32, 5, 6))?;
    let (masks, quality) = model.forward(&picture, &positions, &sparse, &dense, true)?;
    let (mask, quality_of_one) = model.forward(&picture, &positions, &sparse, &dense, false)?;
    Ok(vec![masks, quality, mask, quality_of_one])
}

fn tiny_vit(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("sam_tiny_vit");
    let model = TinyViT::new(&[8, 16, 32], &[1, 1, 2], &[1, 2, 2], &[7, 5, 7], 10, vb)?;
    let picture = place.input("sam_tiny_vit", (1, 3, 1024, 1024))?;
    Ok(vec![model.forward(&picture)?])
}

/// Weights of a model with high mask scores and simple masks.
struct Sure;

impl SimpleBackend for Sure {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let weight = weight(name, &s)?.to_dtype(dtype)?.to_device(dev)?;
        match name.trim_start_matches("mask_decoder.") {
            "iou_prediction_head.layers.2.weight" => weight * 0.01,
            "iou_prediction_head.layers.2.bias" => weight.ones_like(),
            name if name.starts_with("output_hyper") && name.ends_with("2.weight") => weight * 100.,
            _ => Ok(weight),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// Only windows, because global attention takes minutes on a software adapter. One element more or less in a mask does not matter.
fn whole(place: &Place) -> Result<Vec<Tensor>> {
    let vb = VarBuilder::from_backend(Box::new(Sure), DType::F32, place.device.clone());
    let sam = Sam::new(16, 1, 1, &[], vb)?;
    let photo = place.input("sam photo", (3, 700, 1000))?;
    let photo = photo.affine(127., 127.)?;
    let (masks, quality) = sam.forward(&photo, &[(0.3, 0.6, true), (0.8, 0.1, false)], true)?;
    let mut outputs = vec![(masks / 100.)?, quality];
    let found = sam.generate_masks(&photo, 1, 0, 0.3, 1)?;
    outputs.push(Tensor::new(found.len() as f32, &place.device)?);
    for mask in found {
        let share = mask.data.to_dtype(DType::F32)?.mean_all()?;
        let numbers = [mask.confidence, mask.xmin, mask.xmax, mask.ymin, mask.ymax];
        outputs.extend([share, Tensor::new(&numbers, &place.device)?]);
    }
    Ok(outputs)
}
