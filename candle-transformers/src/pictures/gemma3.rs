//! Gemma 3: one image of one size, the patches of SigLIP averaged in squares, a norm and a projection. Tokens of an image see each other.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{RmsNorm, VarBuilder};
use serde_json::{json, Value};

use super::processor::Processor;
use super::resize::Filter;
use super::{id, size, vision, Picture, Written};
use crate::auto::config::parse;
use crate::models::siglip;
use crate::models::spelling::vision_model;

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) token: u32,
    /// Before an image's tokens; templates write it for all of them.
    pub(super) begin: u32,
    end: u32,
    /// Tokens in a row of an image.
    side: usize,
    hidden: usize,
    vision: siglip::VisionConfig,
    processor: Processor,
    filter: Filter,
}

impl Spec {
    pub(super) fn read(config: &str, processor: Processor) -> Result<Self> {
        let config: Value = parse(config)?;
        let vision = vision(&config, json!({}))?;
        let tokens = size(&config, &["mm_tokens_per_image"], Some(256))?;
        let (side, patches) = (tokens.isqrt(), vision.image_size / vision.patch_size);
        if side * side != tokens || patches % side != 0 {
            bail!("mm_tokens_per_image: {tokens}; expected the square of a divisor of {patches}, the patches in a row of an image")
        }
        let text = &config["text_config"];
        let window = size(text, &["sliding_window"], Some(4096))?;
        if tokens > window {
            bail!("mm_tokens_per_image: {tokens} is more than sliding_window, {window}; an image that a window cuts is not supported")
        }
        if processor.flag("do_pan_and_scan", false) {
            bail!("do_pan_and_scan: true is not supported; set it to false")
        }
        for name in ["height", "width"] {
            let found = processor.side("size", name)?;
            if found.is_some_and(|found| found != vision.image_size) {
                bail!(
                    "size.{name} must be vision_config.image_size, {}",
                    vision.image_size
                )
            }
        }
        Ok(Self {
            token: id(&config, &["image_token_index", "image_token_id"], 262_144)?,
            begin: id(&config, &["boi_token_index", "boi_token_id"], 255_999)?,
            end: id(&config, &["eoi_token_index", "eoi_token_id"], 256_000)?,
            side,
            // What files of 4B leave out.
            hidden: size(text, &["hidden_size"], Some(2304))?,
            filter: processor.filter(Filter::Bilinear)?,
            vision,
            processor,
        })
    }

    pub(super) fn written(&self) -> Vec<Written> {
        let breaks = || Written::Text("\n\n".to_string());
        vec![
            breaks(),
            Written::Token(self.begin, 1),
            Written::Token(self.token, self.side * self.side),
            Written::Token(self.end, 1),
            breaks(),
        ]
    }

    pub(super) fn pixels(&self, picture: &Picture) -> Result<Tensor> {
        let side = self.vision.image_size;
        let picture = picture.resized(side, side, self.filter);
        self.processor.numbers(&[picture])
    }

    pub(super) fn load(&self, vb: VarBuilder) -> Result<(siglip::VisionModel, Projector)> {
        let tower = vision_model(vb.pp("vision_tower"));
        let tower = siglip::VisionModel::new(&self.vision, false, tower)?;
        let vb = vb.pp("multi_modal_projector");
        let (size, hidden) = (self.vision.hidden_size, self.hidden);
        let projector = Projector {
            side: self.side,
            // The norm's factor is 1 more than what the file has.
            norm: RmsNorm::new(
                (vb.pp("mm_soft_emb_norm").get(size, "weight")? + 1.)?,
                self.vision.layer_norm_eps,
            ),
            projection: vb.get((size, hidden), "mm_input_projection_weight")?,
        };
        Ok((tower, projector))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Projector {
    side: usize,
    norm: RmsNorm,
    /// `(size, hidden)`: it stands on the right.
    projection: Tensor,
}

/// From `(batch, patches, size)` to `(batch, tokens, hidden)`.
impl Module for Projector {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, patches, size) = xs.dims3()?;
        let (side, places) = (self.side, patches.isqrt());
        let square = places / side;
        let xs = xs.reshape((b, side, square, side, square * size))?;
        // The rows of a square, then its columns.
        let xs = xs
            .mean(2)?
            .reshape((b, side * side, square, size))?
            .mean(2)?;
        self.norm.forward(&xs)?.broadcast_matmul(&self.projection)
    }
}
