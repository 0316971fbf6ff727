//! YOLOv8 and YOLOv3: detection of COCO's classes in an image. Weight names are those of lmz/candle-yolo-v8 and lmz/candle-yolo-v3.
//!
//! A network returns candidates, a box and probabilities for each position of the image; [`found::objects`] picks the objects among them.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::yolo::found::{objects, Limits};
//! use candle_transformers::models::yolo::v8::{Size, YoloV8, CLASSES};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let network = YoloV8::detect(Size::N, VarBuilder::zeros(DType::F32, &device))?;
//! // Red, green and blue from 0 to 1.
//! let picture = Tensor::zeros((1, 3, 480, 640), DType::F32, &device)?;
//! let candidates = network.forward(&picture)?.squeeze(0)?;
//! let limits = Limits { confidence: 0.25, iou: 0.45 };
//! for object in objects(&candidates, CLASSES, limits)? {
//!     println!("class {} at {}, {}", object.data.class, object.xmin, object.ymin);
//! }
//! # Ok(())
//! # }
//! ```

pub mod coco;
mod conv;
pub mod found;
pub mod v3;
pub mod v8;

use candle_core::{bail, Result, Tensor};

/// Number of which the sides of an image must be multiples: the factor by which the last layers shrink it.
pub const MULTIPLE: usize = 32;

/// Fails unless `xs` is (batch, 3, height, width) with sides that fit.
fn check(xs: &Tensor) -> Result<()> {
    let fits = |side: usize| side > 0 && side.is_multiple_of(MULTIPLE);
    match *xs.dims() {
        [_, 3, h, w] if fits(h) && fits(w) => Ok(()),
        _ => bail!(
            "the pictures are {:?}; they must be (batch, 3, height, width) with sides that are multiples of {MULTIPLE}",
            xs.dims()
        ),
    }
}
