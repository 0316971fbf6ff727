//! What is at a point or in a box of an image, by Segment Anything.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example segment -- \
//!     [cpu|webgpu|cuda] --tiny --weights lmz/candle-sam:mobile_sam-tiny-vitt.safetensors --image photo.jpg \
//!     --point 0.5,0.4 --point 0.1,0.1,0 --out mask.png
//! ```
//!
//! The weights are MobileSAM's (`--tiny`) or those of Segment Anything's ViT-B, a `.pth` or a safetensors file with the same names. Points are
//! across and down, parts of the image from 0 to 1; one with a 0 behind it is outside of what is meant. `--box` is two corners. Prints how
//! good the model thinks its masks are, and writes the best over the image.

#[path = "../common/mod.rs"]
mod common;
#[path = "../pictures/mod.rs"]
mod pictures;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_core::{bail, DType, Device, IndexOp, Result, Tensor};
use candle_nn::{ops::sigmoid, VarBuilder};
use candle_transformers::models::segment_anything::sam::{Prompt, Sam, IMAGE_SIZE};
use clap::Parser;
use image::imageops::{self, FilterType};
use image::{GrayImage, RgbImage};

/// Segments the object at a point or in a box of an image.
#[derive(Parser)]
struct Args {
    /// Device; by default the best one.
    #[arg(value_enum)]
    device: Option<common::On>,
    /// A .pth or a safetensors file, or owner/name:file of the Hugging Face Hub.
    #[arg(long)]
    weights: String,
    /// The weights are MobileSAM's.
    #[arg(long)]
    tiny: bool,
    /// A PNG or JPEG.
    #[arg(long)]
    image: PathBuf,
    /// Across and down, from 0 to 1, and a 0 behind it if the point is outside.
    #[arg(long = "point", value_name = "X,Y[,0|1]", value_parser = point, required_unless_present = "bounds")]
    points: Vec<(f64, f64, bool)>,
    /// The upper left corner and the lower right one.
    #[arg(long = "box", value_name = "X0,Y0,X1,Y1", value_parser = bounds)]
    bounds: Option<[f64; 4]>,
    /// The PNG to write.
    #[arg(long)]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("segment: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let device = common::device(args.device)?;
    let picture = pictures::read(&args.image)?;
    let vb = read_weights(&common::file(&args.weights)?, &device)?;
    let sam = if args.tiny {
        Sam::new_tiny(vb)?
    } else {
        Sam::new(768, 12, 12, &[2, 5, 8, 11], vb)?
    };

    let seen = resized(&picture);
    let (w, h) = (seen.width() as usize, seen.height() as usize);
    let pixels = Tensor::from_vec(seen.into_raw(), (h, w, 3), &device)?;
    let embeddings = sam.embeddings(&pixels.permute((2, 0, 1))?)?;
    let prompt = Prompt {
        points: &args.points,
        bounds: args.bounds,
        ..Default::default()
    };
    // One point may mean a part, a whole or several things.
    let several = args.points.len() == 1 && args.bounds.is_none();
    let (masks, iou) = sam.forward_for_prompt(&embeddings, h, w, &prompt, several)?;
    let iou = iou.get(0)?.to_vec1::<f32>()?;
    for (mask, iou) in iou.iter().enumerate() {
        println!("mask {mask}: IoU {iou:.3}");
    }
    let best = (0..iou.len()).max_by(|&a, &b| iou[a].total_cmp(&iou[b]));
    let best = masks.narrow(1, best.unwrap_or(0), 1)?;

    let large = best.upsample_bilinear2d(IMAGE_SIZE, IMAGE_SIZE, false)?;
    let inside = (sigmoid(&large.i((0, 0, ..h, ..w))?)? * 255.)?.to_dtype(DType::U8)?;
    let inside = inside.flatten_all()?.to_vec1::<u8>()?;
    let Some(inside) = GrayImage::from_raw(w as u32, h as u32, inside) else {
        bail!("the mask has not {w}x{h} pixels")
    };
    pictures::write(&drawn(picture, &inside), &args.out)
}

/// The numbers of a list with commas between, each from 0 to 1.
fn parts(text: &str) -> std::result::Result<Vec<f64>, String> {
    let part = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if (0. ..=1.).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is not a number from 0 to 1")),
    };
    text.split(',').map(part).collect()
}

fn point(text: &str) -> std::result::Result<(f64, f64, bool), String> {
    match parts(text)?.as_slice() {
        [x, y] => Ok((*x, *y, true)),
        [x, y, inside] if [0., 1.].contains(inside) => Ok((*x, *y, *inside == 1.)),
        _ => Err("two numbers, and perhaps a 0 or a 1".to_string()),
    }
}

fn bounds(text: &str) -> std::result::Result<[f64; 4], String> {
    match parts(text)?.as_slice() {
        &[left, top, right, bottom] if left < right && top < bottom => {
            Ok([left, top, right, bottom])
        }
        _ => Err("four numbers, the upper left corner before the lower right one".to_string()),
    }
}

/// The image as the model was trained on, with a longer side of 1024.
fn resized(picture: &RgbImage) -> RgbImage {
    let (w, h) = picture.dimensions();
    let side = IMAGE_SIZE as u32;
    let scaled = |len: u32| {
        let scaled = f64::from(len) * f64::from(side) / f64::from(w.max(h));
        (scaled.round() as u32).clamp(1, side)
    };
    imageops::resize(picture, scaled(w), scaled(h), FilterType::Triangle)
}

/// The image with what is inside in blue.
fn drawn(mut picture: RgbImage, inside: &GrayImage) -> RgbImage {
    const BLUE: [u8; 3] = [30, 100, 255];
    let (w, h) = picture.dimensions();
    let inside = imageops::resize(inside, w, h, FilterType::Triangle);
    for (pixel, inside) in picture.pixels_mut().zip(inside.pixels()) {
        if inside.0[0] >= 128 {
            let channels = pixel.0.iter_mut().zip(BLUE);
            channels.for_each(|(channel, blue)| *channel = *channel / 2 + blue / 2);
        }
    }
    picture
}

/// Tensors of a file, by how it starts.
fn read_weights(path: &Path, device: &Device) -> Result<VarBuilder<'static>> {
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(|err| common::of_file(path, err))?;
    let read = file.take(2).read_to_end(&mut start);
    read.map_err(|err| common::of_file(path, err))?;
    if start == b"PK" {
        return VarBuilder::from_pth(path, DType::F32, device);
    }
    // SAFETY: nothing changes the file meanwhile.
    unsafe { VarBuilder::from_mmaped_safetensors(&[path], DType::F32, device) }
}
