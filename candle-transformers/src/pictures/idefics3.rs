//! Idefics3 and SmolVLM: an image in parts of one size, and the whole of it once more; squares of patches side by side in one vector, and
//! a projection.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear_no_bias, Linear, VarBuilder};
use serde_json::{json, Value};

use super::processor::Processor;
use super::resize::Filter;
use super::{id, size, vision, Picture, Written, MAX_SIDE};
use crate::auto::config::parse;
use crate::models::siglip;

/// The longest side that Transformers makes of an image before it is cut.
const LONGEST: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) token: u32,
    hidden: usize,
    /// Patches in a row of what becomes one token.
    square: usize,
    vision: siglip::VisionConfig,
    processor: Processor,
    filter: Filter,
    /// The longest side after resizing, in pixels.
    longest: usize,
    /// Whether images are cut.
    splits: bool,
}

impl Spec {
    pub(super) fn read(config: &str, processor: Processor) -> Result<Self> {
        let config: Value = parse(config)?;
        // Not SigLIP's own defaults.
        let defaults = json!({"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 16, "image_size": 224, "patch_size": 32});
        let vision = vision(&config, defaults)?;
        let square = size(&config, &["scale_factor"], Some(2))?;
        let patches = vision.image_size / vision.patch_size;
        if patches % square != 0 {
            bail!("scale_factor: {square}; expected a divisor of {patches}, the patches in a row of an image")
        }
        let part = processor.side("max_image_size", "longest_edge")?;
        if part.is_some_and(|part| part != vision.image_size) {
            bail!(
                "max_image_size.longest_edge must be vision_config.image_size, {}",
                vision.image_size
            )
        }
        let longest = processor.side("size", "longest_edge")?;
        Ok(Self {
            token: id(&config, &["image_token_id"], 128_257)?,
            hidden: size(&config["text_config"], &["hidden_size"], Some(4096))?,
            square,
            filter: processor.filter(Filter::Lanczos)?,
            longest: match longest {
                Some(longest @ ..=LONGEST) => longest,
                Some(longest) => bail!("size.longest_edge: {longest}; expected at most {LONGEST}"),
                None => bail!("missing field `size.longest_edge`"),
            },
            splits: processor.flag("do_image_splitting", true),
            vision,
            processor,
        })
    }

    /// The size of an image whose longest side is what the files say.
    fn scaled(&self, width: usize, height: usize) -> [usize; 2] {
        let longest = self.longest;
        let ratio = width as f64 / height as f64;
        let even = |side: f64| (side as usize).next_multiple_of(2).max(1);
        match width >= height {
            true => [longest, even(longest as f64 / ratio).min(MAX_SIDE)],
            false => [even(longest as f64 * ratio).min(MAX_SIDE), longest],
        }
    }

    /// The size of an image that is cut in whole parts.
    fn whole_parts(&self, [width, height]: [usize; 2]) -> [usize; 2] {
        let side = self.vision.image_size;
        let ratio = width as f64 / height as f64;
        let up = |pixels: usize| pixels.next_multiple_of(side).max(side);
        match width >= height {
            true => {
                let width = up(width);
                [width, up((width as f64 / ratio) as usize)]
            }
            false => {
                let height = up(height);
                [up((height as f64 * ratio) as usize), height]
            }
        }
    }

    /// The sizes that an image goes through, and its columns and rows of parts: 0 if it is not cut.
    fn sizes(&self, width: usize, height: usize) -> ([[usize; 2]; 2], [usize; 2]) {
        let side = self.vision.image_size;
        let first = self.scaled(width, height);
        if !self.splits {
            return ([first, [side, side]], [0, 0]);
        }
        let whole = self.whole_parts(first);
        let parts = whole.map(|pixels| pixels / side);
        match parts {
            [1, 1] => ([first, whole], [0, 0]),
            parts => ([first, whole], parts),
        }
    }

    pub(super) fn written(&self, width: usize, height: usize) -> Vec<Written> {
        const AROUND: &str = "<fake_token_around_image>";
        let side = self.vision.image_size / self.vision.patch_size / self.square;
        let image = Written::Token(self.token, side * side);
        let text = |text: String| Written::Text(text);
        let (_, [columns, rows]) = self.sizes(width, height);
        let mut all = Vec::new();
        for row in 1..=rows {
            for column in 1..=columns {
                all.push(text(format!("{AROUND}<row_{row}_col_{column}>")));
                all.push(image.clone());
            }
            all.push(text("\n".to_string()));
        }
        let before = if rows > 0 { "\n" } else { "" };
        all.push(text(format!("{before}{AROUND}<global-img>")));
        all.push(image);
        all.push(text(AROUND.to_string()));
        all
    }

    pub(super) fn pixels(&self, picture: &Picture) -> Result<Tensor> {
        let side = self.vision.image_size;
        let (sizes, [columns, rows]) = self.sizes(picture.width, picture.height);
        let mut picture = picture.clone();
        for [width, height] in sizes {
            picture = picture.resized(width, height, self.filter);
        }
        let mut parts = Vec::with_capacity(columns * rows + 1);
        for row in 0..rows {
            for column in 0..columns {
                parts.push(picture.cropped([column * side, row * side], side, side));
            }
        }
        parts.push(picture.resized(side, side, self.filter));
        self.processor.numbers(&parts)
    }

    pub(super) fn load(&self, vb: VarBuilder) -> Result<(siglip::VisionModel, Projector)> {
        let tower = siglip::VisionModel::new(&self.vision, false, vb.pp("vision_model"))?;
        let inputs = self.vision.hidden_size * self.square * self.square;
        let vb = vb.pp("connector.modality_projection.proj");
        let projector = Projector {
            square: self.square,
            projection: linear_no_bias(inputs, self.hidden, vb)?,
        };
        Ok((tower, projector))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Projector {
    square: usize,
    projection: Linear,
}

/// From `(batch, patches, size)` to `(batch, tokens, hidden)`.
impl Module for Projector {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, patches, size) = xs.dims3()?;
        let (square, places) = (self.square, patches.isqrt());
        let side = places / square;
        let line = square * size;
        let xs = xs.reshape((b, side, square, side, line))?.transpose(2, 3)?;
        let xs = xs.reshape((b, side * side, square * line))?;
        self.projection.forward(&xs)
    }
}
