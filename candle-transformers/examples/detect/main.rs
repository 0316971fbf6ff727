//! Detects objects in an image with YOLOv8 or YOLOv3, and human poses with YOLOv8.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example detect -- \
//!     [cpu|webgpu|cuda] --weights lmz/candle-yolo-v8:yolov8n.safetensors --model v8n --image street.jpg --out found.png
//! ```
//!
//! The weights are those of lmz/candle-yolo-v8 and lmz/candle-yolo-v3 on the Hugging Face hub; with `--task pose` they are
//! `yolov8n-pose.safetensors` and its larger siblings. Objects are printed, likeliest first, and drawn into a copy of the image. The
//! confidence of YOLOv3 is how likely there is an object times how likely an object is of the class, as in Darknet.

#[path = "../common/mod.rs"]
mod common;
mod draw;
#[path = "../pictures/mod.rs"]
mod pictures;

use std::path::PathBuf;
use std::process::ExitCode;

use candle_core::{bail, DType, Error, Module, Result};
use candle_nn::VarBuilder;
use candle_transformers::models::yolo::coco;
use candle_transformers::models::yolo::found::{self, Limits, Object};
use candle_transformers::models::yolo::v3::{Config, YoloV3};
use candle_transformers::models::yolo::v8::{self, Size, YoloV8};
use candle_transformers::object_detection::Bbox;
use clap::{Parser, ValueEnum};
use draw::Canvas;
use image::{imageops, imageops::FilterType, Rgb, RgbImage};
use serde_json::json;

/// Both sides of what YOLOv3 sees, in pixels.
const V3_SIDE: u32 = 416;
/// A point is drawn if it can be seen more likely than that.
const SEEN: f32 = 0.6;

/// Finds objects in an image.
#[derive(Parser)]
struct Args {
    /// Device; by default the best one of the build
    #[arg(value_enum)]
    device: Option<common::On>,
    /// A safetensors file, or owner/name:file of the Hugging Face Hub
    #[arg(long)]
    weights: String,
    #[arg(long, value_enum)]
    model: Model,
    #[arg(long, value_enum, default_value = "detect")]
    task: Task,
    /// A PNG or JPEG
    #[arg(long)]
    image: PathBuf,
    /// Path of the PNG that shows the detections
    #[arg(long)]
    out: PathBuf,
    /// Shows what is more likely than that
    #[arg(long, default_value = "0.25", value_parser = share)]
    confidence: f32,
    /// Maximum overlap (IoU): of boxes that overlap more, the most probable is shown
    #[arg(long, default_value = "0.45", value_parser = share)]
    iou: f32,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Model {
    V8n,
    V8s,
    V8m,
    V8l,
    V8x,
    V3,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Task {
    Detect,
    Pose,
}

fn share(text: &str) -> std::result::Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if (0. ..=1.).contains(&share) => Ok(share),
        _ => Err("it must be a number from 0 to 1".to_string()),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("detect: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if args.model == Model::V3 && args.task == Task::Pose {
        bail!("YOLOv3 sees no poses, the models v8n to v8x do")
    }
    let device = common::device(args.device)?;
    let mut picture = pictures::read(&args.image)?;
    let weights = common::weights(&[common::file(&args.weights)?], DType::F32, &device)?;
    let network = network(args.model, args.task, weights).map_err(|err| {
        let (model, task) = (common::name(args.model), common::name(args.task));
        Error::Msg(format!(
            "these are not weights of `--model {model} --task {task}`: {err}"
        ))
    })?;

    let size = picture.dimensions();
    let (seen, filter) = match args.model {
        Model::V3 => ((V3_SIDE, V3_SIDE), FilterType::Triangle),
        _ => (v8::input_size(size), FilterType::CatmullRom),
    };
    let resized = imageops::resize(&picture, seen.0, seen.1, filter);
    let candidates = network.forward(&pictures::pixels(resized, &device)?)?;
    let limits = Limits {
        confidence: args.confidence,
        iou: args.iou,
    };
    let classes = match args.task {
        Task::Detect => v8::CLASSES,
        Task::Pose => 1,
    };
    let objects = found::objects(&candidates.squeeze(0)?, classes, limits)?;
    let objects = objects
        .into_iter()
        .map(|object| found::scaled(object, seen, size));
    let objects: Vec<_> = objects.collect();

    for object in objects.iter().rev() {
        draw_object(object, &mut picture);
    }
    pictures::write(&picture, &args.out)?;
    match args.json {
        true => {
            let list: Vec<_> = objects.iter().map(as_json).collect();
            let text = serde_json::to_string_pretty(&list).map_err(Error::wrap)?;
            println!("{text}");
        }
        false if objects.is_empty() => {
            println!("nothing is more likely than {} %", 100. * args.confidence);
        }
        false => objects.iter().for_each(print_object),
    }
    Ok(())
}

fn network(model: Model, task: Task, vb: VarBuilder) -> Result<Box<dyn Module>> {
    let size = match model {
        Model::V8n => Size::N,
        Model::V8s => Size::S,
        Model::V8m => Size::M,
        Model::V8l => Size::L,
        Model::V8x => Size::X,
        Model::V3 => return Ok(Box::new(YoloV3::load(&Config::COCO, vb)?)),
    };
    Ok(match task {
        Task::Detect => Box::new(YoloV8::detect(size, vb)?),
        Task::Pose => Box::new(YoloV8::pose(size, vb)?),
    })
}

fn name(object: &Bbox<Object>) -> &'static str {
    coco::CLASSES[object.data.class]
}

fn draw_object(object: &Bbox<Object>, picture: &mut RgbImage) {
    let mut canvas = Canvas::new(picture);
    let color = draw::color(object.data.class);
    let first = [object.xmin, object.ymin];
    canvas.frame(first, [object.xmax, object.ymax], color);
    let points = &object.data.points;
    let at = |i: usize| points.get(i).filter(|point| point.mask > SEEN);
    for (from, to) in coco::LIMBS {
        if let (Some(from), Some(to)) = (at(from), at(to)) {
            canvas.line([from.x, from.y], [to.x, to.y], Rgb([255, 255, 0]));
        }
    }
    for point in (0..points.len()).filter_map(at) {
        canvas.point([point.x, point.y], Rgb([0, 255, 0]));
    }
    let text = format!("{} {:.0}%", name(object), 100. * object.confidence);
    canvas.label(&text, first, color);
}

fn print_object(object: &Bbox<Object>) {
    println!(
        "{:5.1} %  {}  from ({:.0}, {:.0}) to ({:.0}, {:.0})",
        100. * object.confidence,
        name(object),
        object.xmin,
        object.ymin,
        object.xmax,
        object.ymax
    );
    for (point, name) in object.data.points.iter().zip(coco::POINTS) {
        let seen = 100. * point.mask;
        println!("  {seen:5.1} %  {name} at ({:.0}, {:.0})", point.x, point.y);
    }
}

/// A box is `[left, top, right, bottom]` in pixels.
fn as_json(object: &Bbox<Object>) -> serde_json::Value {
    let points = object.data.points.iter().zip(coco::POINTS);
    let points: Vec<_> = points
        .map(|(point, name)| json!({"name": name, "x": point.x, "y": point.y, "seen": point.mask}))
        .collect();
    json!({
        "class": name(object),
        "confidence": object.confidence,
        "box": [object.xmin, object.ymin, object.xmax, object.ymax],
        "points": points,
    })
}
