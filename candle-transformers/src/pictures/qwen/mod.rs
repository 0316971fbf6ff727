//! Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images of any size in patches, squares of which become one token. Positions have three axes.

mod tower;

use candle_core::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use serde_json::Value;

use self::tower::{Tower, TowerSpec};
use super::processor::Processor;
use super::resize::Filter;
use super::{id, size, Picture, Written, MAX_SIDE};
use crate::auto::config::{parse, value};
use crate::blocks::vision::patch_grids::PatchGrid;
use crate::blocks::vision::three_axes::{positions, Span};
use crate::blocks::Position;
use crate::models::qwen3_vl::{VisionConfig, VisionModel};

/// Sides of an image may differ by this factor at most.
const LONGEST: usize = 200;

/// Pixels that the processors' own defaults allow for.
const PIXELS: [usize; 2] = [56 * 56, 28 * 28 * 1280];

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) token: u32,
    video: u32,
    /// Templates write these around an image.
    around: [u32; 2],
    kind: Kind,
    /// Pixels on a side of a patch.
    patch: usize,
    /// Patches on a side of a token.
    merge: usize,
    /// Frames of a patch. Of an image they are equal.
    frames: usize,
    /// The minimum and maximum of an image's pixels after resizing.
    pixels: [usize; 2],
    processor: Processor,
    filter: Filter,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Qwen2-VL and Qwen2.5-VL.
    Second(TowerSpec),
    /// Qwen3-VL.
    Third(VisionConfig),
}

impl Spec {
    pub(super) fn read(model_type: &str, config: &str, processor: Processor) -> Result<Self> {
        let config: Value = parse(config)?;
        let vision = &config["vision_config"];
        let hidden = match config["text_config"].is_object() {
            true => size(&config["text_config"], &["hidden_size"], None)?,
            // Older files have the text's fields at the top.
            false => size(&config, &["hidden_size"], None)?,
        };
        let patch = size(vision, &["patch_size", "spatial_patch_size"], Some(14))?;
        let merge = size(vision, &["spatial_merge_size"], Some(2))?;
        let frames = size(vision, &["temporal_patch_size"], Some(2))?;
        if size(vision, &["in_channels", "in_chans"], Some(3))? != 3 {
            bail!("vision_config.in_channels: expected 3")
        }
        let square = patch.saturating_mul(merge);
        if square > MAX_SIDE || frames > MAX_SIDE {
            bail!(
                "vision_config: patches of {patch} pixels and {frames} frames, {merge} of them on a side of a token; expected at most \
                 {MAX_SIDE} pixels on a side of a token"
            )
        }
        for (name, expected) in [
            ("patch_size", patch),
            ("merge_size", merge),
            ("temporal_patch_size", frames),
        ] {
            let found = processor.count(name, None)?;
            if found.is_some_and(|found| found != expected) {
                bail!("{name} of the processor must be that of vision_config, {expected}")
            }
        }
        let limit = |names: [&str; 2], default| {
            let own = processor.count(names[0], None)?;
            let found = own.map_or_else(
                || processor.count("size", Some(names[1])),
                |it| Ok(Some(it)),
            );
            Ok::<_, candle_core::Error>(found?.unwrap_or(default))
        };
        let pixels = [
            limit(["min_pixels", "shortest_edge"], PIXELS[0])?,
            limit(["max_pixels", "longest_edge"], PIXELS[1])?,
        ];
        if pixels[1] > MAX_SIDE * MAX_SIDE || pixels[0] > pixels[1] {
            bail!(
                "size: images of {} to {} pixels; expected at most {}",
                pixels[0],
                pixels[1],
                MAX_SIDE * MAX_SIDE
            )
        }
        let kind = match model_type {
            "qwen3_vl" => {
                let config: VisionConfig = value("vision_config", vision)?;
                config.check()?;
                let theta = &vision["rope_parameters"]["rope_theta"];
                if !theta.is_null() && theta.as_f64() != Some(10_000.) {
                    bail!("vision_config.rope_parameters.rope_theta: {theta} is not supported; supported: 10000")
                }
                Kind::Third(config)
            }
            _ => Kind::Second(TowerSpec::read(model_type, vision, [patch, merge, frames])?),
        };
        let given = match &kind {
            Kind::Second(spec) => spec.out,
            Kind::Third(config) => config.out_hidden_size,
        };
        if given != hidden {
            bail!("vision_config: tokens of size {given}; they must be of the text's hidden_size, {hidden}")
        }
        Ok(Self {
            token: id(&config, &["image_token_id"], 151_655)?,
            video: id(&config, &["video_token_id"], 151_656)?,
            around: [
                id(&config, &["vision_start_token_id"], 151_652)?,
                id(&config, &["vision_end_token_id"], 151_653)?,
            ],
            kind,
            patch,
            merge,
            frames,
            pixels,
            filter: processor.filter(Filter::Bicubic)?,
            processor,
        })
    }

    /// Levels of vectors for the stream behind the first layers.
    pub(super) fn levels(&self) -> usize {
        match &self.kind {
            Kind::Second(_) => 0,
            Kind::Third(config) => config.levels(),
        }
    }

    /// Refuses images that are too narrow.
    pub(super) fn check(&self, width: usize, height: usize) -> Result<()> {
        if width.max(height) > LONGEST * width.min(height) {
            bail!(
                "an image of {width} x {height} pixels; one side may be at most {LONGEST} times as long as the other"
            )
        }
        Ok(())
    }

    /// The size of an image after resizing: whole tokens, and pixels within the limits where the sides allow it.
    fn resized(&self, width: usize, height: usize) -> [usize; 2] {
        let square = self.patch * self.merge;
        let [least, most] = self.pixels;
        let sides = [width, height];
        let area = width as f64 * height as f64;
        let times = |side: usize| (side as f64 / square as f64).round_ties_even() as usize;
        let near = sides.map(|side| times(side) * square);
        let pixels = near[0].saturating_mul(near[1]);
        let scaled = if pixels > most {
            let by = (area / most as f64).sqrt();
            sides.map(|side| (side as f64 / by / square as f64).floor() as usize * square)
        } else if pixels < least {
            let by = (least as f64 / area).sqrt();
            sides.map(|side| (side as f64 * by / square as f64).ceil() as usize * square)
        } else {
            near
        };
        scaled.map(|side| side.max(square))
    }

    /// The grid of an image's tokens.
    fn grid(&self, width: usize, height: usize) -> PatchGrid {
        let square = self.patch * self.merge;
        let [columns, rows] = self.resized(width, height).map(|side| side / square);
        PatchGrid {
            frames: 1,
            rows,
            columns,
        }
    }

    pub(super) fn written(&self, width: usize, height: usize) -> Vec<Written> {
        vec![Written::Token(
            self.token,
            self.grid(width, height).patches(),
        )]
    }

    pub(super) fn written_alone(&self, width: usize, height: usize) -> Vec<Written> {
        let [before, after] = self.around.map(|id| Written::Token(id, 1));
        let mut all = vec![before];
        all.extend(self.written(width, height));
        all.push(after);
        all
    }

    pub(super) fn pixels(&self, picture: &Picture) -> Result<Tensor> {
        self.check(picture.width, picture.height)?;
        let [width, height] = self.resized(picture.width, picture.height);
        let picture = picture.resized(width, height, self.filter);
        self.processor.numbers(&[picture])
    }

    /// The positions of `tokens`, which have images of these sizes, and of none more.
    pub(super) fn positions(&self, tokens: &[u32], sizes: &[[usize; 2]]) -> Result<Vec<Position>> {
        if let Some(at) = tokens.iter().position(|id| *id == self.video) {
            bail!("token {at} of the prompt stands for a video; videos are not supported")
        }
        let mut sizes = sizes.iter();
        let (mut spans, mut at) = (Vec::new(), 0);
        while at < tokens.len() {
            if tokens[at] != self.token {
                at += 1;
                continue;
            }
            let Some([width, height]) = sizes.next() else {
                bail!("token {at} of the prompt is of an image that is not there")
            };
            let grid = self.grid(*width, *height);
            let end = at + grid.patches();
            let is_image = |part: &[u32]| part.iter().all(|id| *id == self.token);
            if !tokens.get(at..end).is_some_and(is_image) {
                bail!(
                    "an image of {width} x {height} pixels is {} tokens, but the prompt has fewer from token {at} on",
                    grid.patches()
                )
            }
            spans.push(Span {
                start: at,
                end,
                grids: vec![grid],
            });
            at = end;
        }
        match sizes.next() {
            None => Ok(positions(0, tokens.len(), &spans).0),
            Some([width, height]) => {
                bail!("an image of {width} x {height} pixels has no tokens in the prompt")
            }
        }
    }

    pub(super) fn load(&self, vb: VarBuilder) -> Result<Encoder> {
        let vb = vb.pp("visual");
        Ok(Encoder {
            tower: match &self.kind {
                Kind::Second(spec) => Network::Second(Tower::load(spec, vb)?),
                Kind::Third(config) => Network::Third(VisionModel::new(config, vb)?),
            },
            sizes: [self.patch, self.merge, self.frames],
        })
    }
}

#[derive(Clone, Debug)]
enum Network {
    Second(Tower),
    Third(VisionModel),
}

#[derive(Clone, Debug)]
pub(super) struct Encoder {
    tower: Network,
    /// Of patches in pixels, of tokens in patches, of patches in frames.
    sizes: [usize; 3],
}

impl Encoder {
    /// From pixels `(1, 3, height, width)` on the CPU to `(tokens, hidden_size)`, and behind these the vectors of each level:
    /// `(tokens, hidden_size * (1 + levels))`.
    pub(super) fn forward(
        &self,
        pixels: &Tensor,
        (device, dtype): (&Device, DType),
    ) -> Result<Tensor> {
        let (_, _, height, width) = pixels.dims4()?;
        let [patch, merge, frames] = self.sizes;
        let patches = patches(pixels, patch, merge, frames)?;
        let patches = patches.to_device(device)?.to_dtype(dtype)?;
        let grid = PatchGrid {
            frames: 1,
            rows: height / patch,
            columns: width / patch,
        };
        match &self.tower {
            Network::Second(tower) => tower.forward(&patches, &grid),
            Network::Third(tower) => {
                let features = tower.forward(&patches, &[grid])?;
                let mut all = vec![features.tokens];
                all.extend(features.deep);
                Tensor::cat(&all, 1)
            }
        }
    }
}

/// The patches of an image `(1, 3, height, width)`, in squares of `merge` by `merge`, each as often as there are frames:
/// `(patches, 3 * frames * patch * patch)`.
fn patches(pixels: &Tensor, patch: usize, merge: usize, frames: usize) -> Result<Tensor> {
    let (_, channels, height, width) = pixels.dims4()?;
    let square = patch * merge;
    if height % square != 0 || width % square != 0 {
        bail!("an image of {width} x {height} pixels; expected multiples of {square}")
    }
    let (down, across) = (height / square, width / square);
    let xs = pixels.reshape(vec![channels, down, merge, patch, across, merge, patch])?;
    let xs = xs.permute([1, 4, 2, 5, 0, 3, 6])?.contiguous()?;
    let (count, area) = (down * across * merge * merge, patch * patch);
    let xs = xs.reshape((count, channels, 1, area))?;
    let xs = xs.broadcast_as((count, channels, frames, area))?;
    xs.contiguous()?.reshape((count, channels * frames * area))
}
