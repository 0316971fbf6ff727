//! Mistral 3: images of any shape up to a size, the patches of Pixtral's encoder, squares of which become one token. A token ends each row
//! of an image.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear_b, linear_no_bias, rms_norm, Activation, Linear, RmsNorm, VarBuilder};
use serde_json::{json, Value};

use super::processor::Processor;
use super::resize::Filter;
use super::{id, size, with_defaults, Picture, Written, MAX_SIDE};
use crate::auto::config::{parse, value};
use crate::models::pixtral::vision_model;

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) token: u32,
    vision: vision_model::Config,
    hidden: usize,
    /// Of the norm before the projection.
    eps: f64,
    activation: Activation,
    bias: bool,
    /// Patches on a side of a token.
    merge: usize,
    /// Pixels of the longest side after resizing.
    longest: usize,
    processor: Processor,
    filter: Filter,
}

impl Spec {
    pub(super) fn read(config: &str, processor: Processor) -> Result<Self> {
        let config: Value = parse(config)?;
        let defaults = json!({"image_size": 1024, "patch_size": 16, "rope_theta": 10000.0, "hidden_act": "gelu"});
        let mut vision = with_defaults(&config, "vision_config", defaults);
        let theta = &config["vision_config"]["rope_parameters"]["rope_theta"];
        if !theta.is_null() {
            vision["rope_theta"] = theta.clone();
        }
        let vision: vision_model::Config = value("vision_config", &vision)?;
        let merge = size(&config, &["spatial_merge_size"], Some(2))?;
        let square = merge.saturating_mul(vision.patch_size);
        if square == 0 || square > vision.image_size || vision.image_size > MAX_SIDE {
            bail!(
                "vision_config: images of {} pixels and tokens of {square}; expected at least one token and at most {MAX_SIDE} pixels",
                vision.image_size
            )
        }
        if vision.num_channels != 3 {
            bail!(
                "vision_config.num_channels: {}; expected 3",
                vision.num_channels
            )
        }
        let layer = &config["vision_feature_layer"];
        if !(layer.is_null() || *layer == json!(-1) || *layer == json!([-1])) {
            bail!("vision_feature_layer: {layer} is not supported; supported: -1, the last layer")
        }
        let longest = match processor.side("size", "longest_edge")? {
            Some(longest) => longest,
            None if processor.count("size", Some("height"))?.is_some() => {
                bail!("size.height is not supported; expected size.longest_edge")
            }
            None => 1024,
        };
        // Sides are whole tokens.
        if longest.next_multiple_of(square)
            > vision.image_size / vision.patch_size * vision.patch_size
        {
            bail!(
                "size.longest_edge: {longest}; expected at most vision_config.image_size, {}",
                vision.image_size
            )
        }
        let text = &config["text_config"];
        let activation = &config["projector_hidden_act"];
        Ok(Self {
            token: id(&config, &["image_token_index", "image_token_id"], 10)?,
            hidden: size(text, &["hidden_size"], Some(5120))?,
            eps: match &text["rms_norm_eps"] {
                Value::Null => 1e-5,
                eps => value("text_config.rms_norm_eps", eps)?,
            },
            activation: match activation {
                Value::Null => Activation::Gelu,
                activation => value("projector_hidden_act", activation)?,
            },
            bias: config["multimodal_projector_bias"] == Value::Bool(true),
            merge,
            longest,
            filter: processor.filter(Filter::Bicubic)?,
            vision,
            processor,
        })
    }

    /// Columns and rows of an image's tokens.
    fn grid(&self, width: usize, height: usize) -> [usize; 2] {
        let square = self.merge * self.vision.patch_size;
        let ratio = width.max(height) as f64 / self.longest as f64;
        let side = |pixels: usize| match ratio > 1. {
            true => (pixels as f64 / ratio).floor() as usize,
            false => pixels,
        };
        [width, height].map(|pixels| side(pixels).max(1).div_ceil(square))
    }

    pub(super) fn written(&self, width: usize, height: usize) -> Vec<Written> {
        let [columns, rows] = self.grid(width, height);
        let row = |row: usize| {
            let end = if row + 1 == rows {
                "[IMG_END]"
            } else {
                "[IMG_BREAK]"
            };
            [
                Written::Token(self.token, columns),
                Written::Text(end.to_string()),
            ]
        };
        (0..rows).flat_map(row).collect()
    }

    pub(super) fn pixels(&self, picture: &Picture) -> Result<Tensor> {
        let square = self.merge * self.vision.patch_size;
        let [width, height] = self
            .grid(picture.width, picture.height)
            .map(|tokens| tokens * square);
        let picture = picture.resized(width, height, self.filter);
        self.processor.numbers(&[picture])
    }

    pub(super) fn load(&self, vb: VarBuilder) -> Result<Encoder> {
        let tower = vision_model::Model::new(&self.vision, vb.pp("vision_tower"))?;
        let vb = vb.pp("multi_modal_projector");
        let (size, hidden) = (self.vision.hidden_size, self.hidden);
        let square = size * self.merge * self.merge;
        let merging = vb.pp("patch_merger.merging_layer");
        Ok(Encoder {
            tower,
            norm: rms_norm(size, self.eps, vb.pp("norm"))?,
            merging: linear_no_bias(square, size, merging)?,
            up: linear_b(size, hidden, self.bias, vb.pp("linear_1"))?,
            down: linear_b(hidden, hidden, self.bias, vb.pp("linear_2"))?,
            activation: self.activation,
            merge: self.merge,
            patch: self.vision.patch_size,
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Encoder {
    tower: vision_model::Model,
    norm: RmsNorm,
    /// Of the patches of a token.
    merging: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
    merge: usize,
    patch: usize,
}

impl Encoder {
    /// From pixels `(1, 3, height, width)` to `(tokens, hidden_size)`.
    pub(super) fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = pixels.dims4()?;
        let square = self.merge * self.patch;
        let (rows, columns) = (height / square, width / square);
        let xs = self.norm.forward(&self.tower.forward(pixels)?)?;
        let size = xs.dim(2)?;
        let xs = xs.reshape(vec![rows, self.merge, columns, self.merge, size])?;
        // The elements of a vector, and of each those of the patches of a token, row by row.
        let xs = xs.permute([0, 2, 4, 1, 3])?.contiguous()?;
        let xs = xs.reshape((rows * columns, size * self.merge * self.merge))?;
        let inner = self.up.forward(&self.merging.forward(&xs)?)?;
        self.down.forward(&self.activation.forward(&inner)?)
    }
}
