//! MobileCLIP, a small CLIP: [arXiv 2311.17049](https://arxiv.org/abs/2311.17049). [FastViT](super::fastvit) sees images,
//! [OpenCLIP's encoder](super::openclip::text_model) reads texts. Weight names are those of OpenCLIP's checkpoints.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::mobileclip::{MobileClipConfig, MobileClipModel};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let config = MobileClipConfig::s1();
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = MobileClipModel::new(VarBuilder::zeros(DType::F32, &device), &config)?;
//! let pictures = Tensor::zeros((1, 3, config.image_size, config.image_size), DType::F32, &device)?;
//! let texts = Tensor::new(&[[49406u32, 320, 49407], [49406, 1125, 49407]], &device)?;
//! let (per_text, per_picture) = model.forward(&pictures, &texts)?;
//! assert_eq!((per_text.dims(), per_picture.dims()), (&[2, 1][..], &[1, 2][..]));
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{Func, VarBuilder};

use super::fastvit;
use super::openclip::text_model;
use crate::blocks::vision::{scores, unit_length};

/// Size of the space where images and texts are compared, of all models.
const PROJECTION: usize = 512;

/// The configurations of both encoders.
#[derive(Clone, Debug)]
pub struct MobileClipConfig {
    /// Configuration of the text encoder.
    pub text_config: text_model::Config,
    /// Configuration of the vision encoder.
    pub vision_config: fastvit::Config,
    /// Width and height of the training images.
    pub image_size: usize,
}

impl MobileClipConfig {
    fn of(vision_config: fastvit::Config) -> Self {
        Self {
            text_config: text_model::Config::vit_base_patch32(),
            vision_config,
            image_size: 256,
        }
    }

    /// That of MobileCLIP-S1.
    pub fn s1() -> Self {
        Self::of(fastvit::Config::mci1())
    }

    /// That of MobileCLIP-S2.
    pub fn s2() -> Self {
        Self::of(fastvit::Config::mci2())
    }
}

/// Both encoders, and the projection of texts into the space where they are compared with images.
#[derive(Clone, Debug)]
pub struct MobileClipModel {
    text_model: text_model::OpenClipTextTransformer,
    vision_model: Func<'static>,
    /// (embed_dim, projection_dim)
    text_projection: Tensor,
    logit_scale: Tensor,
}

impl MobileClipModel {
    /// Loads `visual.trunk`, `text`, `text.text_projection` and `logit_scale`.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &MobileClipConfig) -> Result<Self> {
        let text = &c.text_config;
        let projection = (text.embed_dim, text.projection_dim);
        Ok(Self {
            vision_model: fastvit::fastvit(&c.vision_config, PROJECTION, vs.pp("visual.trunk"))?,
            text_model: text_model::OpenClipTextTransformer::new(vs.pp("text"), text)?,
            text_projection: vs.get(projection, "text.text_projection")?,
            logit_scale: vs.get((), "logit_scale")?,
        })
    }

    /// From ids (texts, seq), whose largest id is that of the end, to vectors (texts, projection_dim).
    ///
    /// # Errors
    /// There are no tokens or more than the model has positions.
    pub fn get_text_features(&self, input_ids: &Tensor) -> Result<Tensor> {
        let features = Module::forward(&self.text_model, input_ids)?;
        features.matmul(&self.text_projection)
    }

    /// From images (images, 3, height, width) to vectors (images, 512).
    ///
    /// # Errors
    /// The images have another shape, or another dtype or device than the weights.
    pub fn get_image_features(&self, pixel_values: &Tensor) -> Result<Tensor> {
        self.vision_model.forward(pixel_values)
    }

    /// The similarities of images and texts: logits for each text, (texts, images), and for each image, (images, texts).
    ///
    /// # Errors
    /// Those of [`get_image_features`](Self::get_image_features) and [`get_text_features`](Self::get_text_features).
    pub fn forward(&self, pixel_values: &Tensor, input_ids: &Tensor) -> Result<(Tensor, Tensor)> {
        let pictures = self.get_image_features(pixel_values)?;
        let texts = self.get_text_features(input_ids)?;
        scores(&pictures, &texts, &self.logit_scale, None)
    }
}

/// `v`, (.., size), divided by its length; NaN where that is 0. Of 16-bit floats it is computed in f32.
///
/// # Errors
/// `v` is of integers.
pub fn div_l2_norm(v: &Tensor) -> Result<Tensor> {
    unit_length(v)
}
