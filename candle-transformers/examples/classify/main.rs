//! What is in an image: the five most likely classes.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example classify -- \
//!     [cpu|webgpu] MODEL WEIGHTS PICTURE [LABELS]
//! ```
//!
//! MODEL is a name such as `efficientnet-b0`, `resnet18` or `mobilenetv4-small`; without arguments all of them are listed. WEIGHTS is a
//! safetensors file or a `.pth` with the names that the model's module says, PICTURE a PNG or JPEG. LABELS has a line for each class; without
//! it there are 1000, those of ImageNet, and they are numbers.

#[path = "../common/mod.rs"]
mod common;

use candle_core::{bail, DType, Device, Error, Module, ModuleT, Result, Tensor, D};
use candle_nn::{ops::softmax, VarBuilder};
use candle_transformers::models::efficientnet::{EfficientNet, EfficientNetLite, MBConvConfig};
use candle_transformers::models::{
    convmixer, convnext, mobilenetv4, mobileone, repvgg, resnet, vgg,
};
use image::{imageops::FilterType, ImageReader};
use std::path::Path;

const CLASSES: usize = 1000;
/// Shown of them.
const BEST: usize = 5;
/// Fraction of the shorter side that is used, as in the models' evaluation.
const CROP: f64 = 0.875;

fn main() {
    if let Err(err) = run() {
        eprintln!("classify: {err}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let device = match args.peek().map(String::as_str) {
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        _ => Device::best_available()?,
    };
    args.next_if(|arg| ["cpu", "webgpu"].contains(&arg.as_str()));
    let args: Vec<String> = args.collect();
    let (name, weights, picture, labels) = match args.as_slice() {
        [name, weights, picture] => (name, weights, picture, None),
        [name, weights, picture, labels] => (name, weights, picture, Some(labels)),
        _ => bail!(
            "usage: classify [cpu|webgpu] MODEL WEIGHTS PICTURE [LABELS]; the models are {}",
            names()
        ),
    };
    let Some(entry) = MODELS.iter().find(|entry| entry.name == name) else {
        bail!("there is no model {name}; the models are {}", names())
    };
    let labels = labels.map(|path| read_labels(path)).transpose()?;
    let classes = labels.as_ref().map_or(CLASSES, Vec::len);
    let pixels = read_picture(picture, entry, &device)?;
    let vb = read_weights(&common::file(weights)?, &device)?;
    let model = (entry.load)(vb, classes)?;

    let logits = model(&pixels)?.flatten_all()?;
    let probabilities = softmax(&logits, D::Minus1)?.to_vec1::<f32>()?;
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    for class in order.into_iter().take(BEST) {
        let label = labels.as_ref().and_then(|labels| labels.get(class));
        let label = label.map_or(String::new(), |label| format!("  {label}"));
        println!("{:5.1} %  {class:4}{label}", 100. * probabilities[class]);
    }
    Ok(())
}

type Model = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// The constructor of a model, and its input format.
struct Entry {
    name: &'static str,
    /// The side of its square images.
    size: u32,
    load: fn(VarBuilder<'static>, usize) -> Result<Model>,
    scale: Scale,
}

/// The normalisation of a pixel's 0 to 255, for red, green and blue: subtract the mean, divide by the deviation.
struct Scale {
    mean: [f32; 3],
    deviation: [f32; 3],
}

/// The statistics of ImageNet's images.
const IMAGENET: Scale = Scale {
    mean: [123.675, 116.28, 103.53],
    deviation: [58.395, 57.12, 57.375],
};

fn module<M: Module + 'static>(model: M) -> Result<Model> {
    Ok(Box::new(move |xs| model.forward(xs)))
}

/// An entry with the means of ImageNet.
macro_rules! entry {
    ($name:literal, $size:literal, |$vb:ident, $n:ident| $model:expr) => {
        Entry {
            name: $name,
            size: $size,
            load: |$vb, $n| module($model?),
            scale: IMAGENET,
        }
    };
}

const MODELS: &[Entry] = &[
    Entry {
        name: "efficientnet-lite0",
        size: 224,
        load: |vb, n| module(EfficientNetLite::lite0(vb, n)?),
        scale: Scale {
            mean: [127.; 3],
            deviation: [128.; 3],
        },
    },
    entry!("efficientnet-b0", 224, |vb, n| EfficientNet::new(
        vb,
        MBConvConfig::b0(),
        n
    )),
    entry!("efficientnet-b1", 240, |vb, n| EfficientNet::new(
        vb,
        MBConvConfig::b1(),
        n
    )),
    entry!("efficientnet-b4", 380, |vb, n| EfficientNet::new(
        vb,
        MBConvConfig::b4(),
        n
    )),
    entry!("mobilenetv4-small", 224, |vb, n| {
        mobilenetv4::mobilenetv4(&mobilenetv4::Config::small(), n, vb)
    }),
    entry!("mobilenetv4-medium", 224, |vb, n| {
        mobilenetv4::mobilenetv4(&mobilenetv4::Config::medium(), n, vb)
    }),
    entry!("mobilenetv4-hybrid-medium", 224, |vb, n| {
        mobilenetv4::mobilenetv4(&mobilenetv4::Config::hybrid_medium(), n, vb)
    }),
    entry!("mobileone-s0", 224, |vb, n| {
        mobileone::mobileone(&mobileone::Config::s0(), n, vb)
    }),
    entry!("resnet18", 224, |vb, n| resnet::resnet18(n, vb)),
    entry!("resnet50", 224, |vb, n| resnet::resnet50(n, vb)),
    entry!("repvgg-a0", 224, |vb, n| {
        repvgg::repvgg(&repvgg::Config::a0(), n, vb)
    }),
    entry!("convnext-atto", 224, |vb, n| {
        convnext::convnext(&convnext::Config::atto(), n, vb)
    }),
    entry!("convnext-tiny", 224, |vb, n| {
        convnext::convnext(&convnext::Config::tiny(), n, vb)
    }),
    entry!("convmixer-1024-20", 224, |vb, n| convmixer::c1024_20(n, vb)),
    Entry {
        name: "vgg16",
        size: 224,
        load: |vb, n| {
            if n != CLASSES {
                bail!("vgg16 has {CLASSES} classes, the file with the labels has {n}")
            }
            let model = vgg::Vgg::new(vb, vgg::Models::Vgg16)?;
            Ok(Box::new(move |xs| model.forward_t(xs, false)))
        },
        scale: IMAGENET,
    },
];

fn names() -> String {
    let names: Vec<_> = MODELS.iter().map(|entry| entry.name).collect();
    names.join(", ")
}

fn of_file(path: &str, err: impl std::fmt::Display) -> Error {
    Error::Msg(format!("{path}: {err}"))
}

fn read_labels(path: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|err| of_file(path, err))?;
    let labels: Vec<String> = text.lines().map(str::to_string).collect();
    if labels.is_empty() {
        Err(of_file(path, "there are no labels, one a line"))
    } else {
        Ok(labels)
    }
}

/// The square in the middle of the image, in the model's size: (1, 3, size, size).
fn read_picture(path: &str, model: &Entry, device: &Device) -> Result<Tensor> {
    let reader = ImageReader::open(path).map_err(|err| of_file(path, err))?;
    let reader = reader.with_guessed_format();
    let picture = reader.map_err(|err| of_file(path, err))?.decode();
    let picture = picture
        .map_err(|err| {
            of_file(
                path,
                format!("it is not a PNG or JPEG that can be read: {err}"),
            )
        })?
        .to_rgb8();
    let (w, h) = picture.dimensions();
    // Cut first, as a long and thin image has a large other side once the short one is scaled.
    let side = ((f64::from(w.min(h)) * CROP).round() as u32).max(1);
    let square = image::imageops::crop_imm(&picture, (w - side) / 2, (h - side) / 2, side, side);
    let size = model.size;
    let square = image::imageops::resize(&square.to_image(), size, size, FilterType::CatmullRom);
    let size = size as usize;
    let pixels = Tensor::from_vec(square.into_raw(), (1, size, size, 3), device)?;
    let pixels = pixels.permute((0, 3, 1, 2))?.to_dtype(DType::F32)?;
    let per_channel = |numbers: &[f32; 3]| Tensor::new(numbers, device)?.reshape((1, 3, 1, 1));
    pixels
        .broadcast_sub(&per_channel(&model.scale.mean)?)?
        .broadcast_div(&per_channel(&model.scale.deviation)?)
}

/// Tensors of a file, by how it starts.
fn read_weights(path: &Path, device: &Device) -> Result<VarBuilder<'static>> {
    use std::io::Read;
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(|err| common::of_file(path, err))?;
    let read = file.take(2).read_to_end(&mut start);
    read.map_err(|err| common::of_file(path, err))?;
    // A zip archive, or the first pickle of a file from before PyTorch 1.6.
    if start == b"PK" || start == b"\x80\x02" {
        return VarBuilder::from_pth(path, DType::F32, device);
    }
    // SAFETY: nothing changes the file meanwhile.
    unsafe { VarBuilder::from_mmaped_safetensors(&[path], DType::F32, device) }
}
