//! Estimates the depth of an image's pixels with Depth Anything V2.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example depth -- \
//!     [cpu|webgpu|cuda] --weights jeroenvlek/depth-anything-v2-safetensors:depth_anything_v2_vits.safetensors --size s \
//!     --image room.jpg --out depth.png
//! ```
//!
//! The weights are a safetensors file with the authors' names, such as those of jeroenvlek/depth-anything-v2-safetensors on the Hugging Face
//! hub: `pretrained` is DINOv2 and `depth_head` what is over it. DINOv2 may come in another file: `--weights` takes several. The image that
//! is written is bright where something is near.

#[path = "../common/mod.rs"]
mod common;
#[path = "../pictures/mod.rs"]
mod pictures;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use candle_core::{bail, DType, Device, Error, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::depth_anything_v2::{DepthAnythingV2, DepthAnythingV2Config};
use candle_transformers::models::dinov2::DinoVisionTransformer;
use clap::{Parser, ValueEnum};
use image::{imageops, imageops::FilterType, ImageBuffer, Luma, Rgb, RgbImage};

/// The side of what the model sees, in pixels.
const SIDE: u32 = 518;
/// The statistics of ImageNet's images.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];
/// From far to near.
const COLORS: [[f32; 3]; 5] = [
    [0., 0., 4.],
    [87., 16., 110.],
    [188., 55., 84.],
    [249., 142., 9.],
    [252., 255., 164.],
];

/// Measures how near things in an image are.
#[derive(Parser)]
struct Args {
    /// Device; by default the best one of the build
    #[arg(value_enum)]
    device: Option<common::On>,
    /// Safetensors files, or owner/name:file of the Hugging Face Hub
    #[arg(long, required = true, num_args = 1..)]
    weights: Vec<String>,
    /// Size of the model
    #[arg(long, value_enum)]
    size: Size,
    /// A PNG or JPEG
    #[arg(long)]
    image: PathBuf,
    /// Path of the PNG with the depth of each pixel
    #[arg(long)]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Size {
    S,
    B,
    L,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("depth: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let device = common::device(args.device)?;
    let picture = pictures::read(&args.image)?;
    let files = args.weights.iter().map(|source| common::file(source));
    let files = files.collect::<Result<Vec<_>>>()?;
    let model = load(args.size, common::weights(&files, DType::F32, &device)?);
    let model = model.map_err(|err| {
        let size = common::name(args.size);
        Error::Msg(format!("these are not weights of `--size {size}`: {err}"))
    })?;

    let (w, h) = picture.dimensions();
    let resized = imageops::resize(&picture, SIDE, SIDE, FilterType::CatmullRom);
    let near = model.forward(&normed(&pictures::pixels(resized, &device)?)?)?;
    // Without the border, which shows nothing.
    let side = SIDE as usize;
    let near = near.narrow(2, 1, side)?.narrow(3, 1, side)?;
    let near = near.flatten_all()?.to_vec1::<f32>()?;
    if near.iter().any(|number| !number.is_finite()) {
        bail!("the model gives numbers that are not finite: are these weights those of the model?")
    }
    let least = near.iter().copied().fold(f32::INFINITY, f32::min);
    let most = near.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    pictures::write(&colored(&near, [least, most], [w, h])?, &args.out)?;
    if least < most {
        println!("from {least:.3}, far, to {most:.3}, near, in no unit")
    } else {
        println!("{least:.3} everywhere: the model sees no depth")
    }
    Ok(())
}

fn load(size: Size, vb: VarBuilder<'static>) -> Result<DepthAnythingV2> {
    let (depth, width, heads, config) = match size {
        Size::S => (12, 384, 6, DepthAnythingV2Config::vit_small()),
        Size::B => (12, 768, 12, DepthAnythingV2Config::vit_base()),
        Size::L => (24, 1024, 16, DepthAnythingV2Config::vit_large()),
    };
    let features = if vb.contains_tensor("pretrained.cls_token") {
        vb.pp("pretrained")
    } else {
        vb.clone()
    };
    let (device, dtype) = (vb.device().clone(), vb.dtype());
    let features = VarBuilder::from_backend(Box::new(Headless(features)), dtype, device);
    let features = DinoVisionTransformer::new(features, depth, width, heads)?;
    DepthAnythingV2::new(Arc::new(features), config, vb)
}

/// DINOv2 without its classifier, which depth needs not and the authors' files lack.
struct Headless(VarBuilder<'static>);

impl SimpleBackend for Headless {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if name.starts_with("head.") {
            Tensor::zeros(s, dtype, dev)
        } else {
            self.0.get_with_hints_dtype(s, name, h, dtype)
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> Result<Tensor> {
        self.0.get_unchecked_dtype(name, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        name.starts_with("head.") || self.0.contains_tensor(name)
    }
}

/// Numbers from 0 to 1 as the model was trained on.
fn normed(pixels: &Tensor) -> Result<Tensor> {
    let per_channel = |numbers| Tensor::new(numbers, pixels.device())?.reshape((1, 3, 1, 1));
    pixels
        .broadcast_sub(&per_channel(&MEAN)?)?
        .broadcast_div(&per_channel(&DEVIATION)?)
}

/// `near`, 518 rows and columns with numbers from `least` to `most`, as an image of `w` columns and `h` rows.
fn colored(near: &[f32], [least, most]: [f32; 2], [w, h]: [u32; 2]) -> Result<RgbImage> {
    let range = if least < most { most - least } else { 1. };
    let shares = near.iter().map(|near| (near - least) / range).collect();
    let Some(shares) = ImageBuffer::<Luma<f32>, Vec<f32>>::from_raw(SIDE, SIDE, shares) else {
        bail!(
            "{} numbers are not a picture of {SIDE} x {SIDE}",
            near.len()
        )
    };
    let shares = imageops::resize(&shares, w, h, FilterType::Triangle);
    Ok(RgbImage::from_fn(w, h, |x, y| {
        color(shares.get_pixel(x, y)[0])
    }))
}

/// The colour of a number from 0 to 1.
fn color(share: f32) -> Rgb<u8> {
    let at = share.clamp(0., 1.) * (COLORS.len() - 1) as f32;
    let below = (at as usize).min(COLORS.len() - 2);
    let part = at - below as f32;
    let mix = |i: usize| COLORS[below][i] + part * (COLORS[below + 1][i] - COLORS[below][i]);
    Rgb([0, 1, 2].map(|i| mix(i).round() as u8))
}
