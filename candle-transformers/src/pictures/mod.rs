//! Images in the prompts of language models: from pixels to vectors that stand where tokens do. Not in upstream's interface.
//!
//! A [`PictureSpec`] comes from a checkpoint's `config.json` and `preprocessor_config.json`. It says what a prompt has in the place of an
//! image ([`PictureSpec::written`]), makes an image's pixels what the encoder takes ([`PictureSpec::pixels`]), and loads the encoder
//! ([`PictureSpec::load`]), whose vectors take the place of the embeddings of [`PictureSpec::token`].
//!
//! A prompt is fed in [`PictureSpec::runs`], each of which [`PictureSpec::input`] prepares. Images of the Qwen models have positions on three
//! axes ([`PictureSpec::positions`]); the decoder's state remembers where text goes on after them. `resize.rs` scales as Pillow does,
//! `processor.rs` reads the preprocessing; each family has a file.
//!
//! ```
//! use candle_transformers::pictures::{Picture, PictureSpec};
//! let config = r#"{"model_type": "gemma3", "mm_tokens_per_image": 4, "text_config": {"hidden_size": 16},
//!     "vision_config": {"image_size": 56, "patch_size": 14}}"#;
//! let processor = r#"{"size": {"height": 56, "width": 56}, "resample": 2}"#;
//! let spec = PictureSpec::read(config, processor)?;
//! let picture = Picture::new(100, 80, vec![7; 100 * 80 * 3])?;
//! assert_eq!(spec.pixels(&picture)?.dims(), &[1, 3, 56, 56]);
//! assert_eq!(spec.tokens(100, 80), 4);
//! # Ok::<(), candle_core::Error>(())
//! ```

mod gemma3;
mod idefics3;
mod mistral3;
mod processor;
mod qwen;
mod resize;
mod runs;

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use serde::Deserialize;
use serde_json::Value;

pub use runs::Run;

use self::processor::{CLIP, EVEN};
use crate::auto::config::parse;
pub use crate::blocks::{Position, Sees};
use crate::models::siglip;

/// The longest side of an image that an encoder gets, in pixels. Configurations that ask for more are refused.
const MAX_SIDE: usize = 1 << 13;

/// An image in memory: red, green and blue of each pixel, one byte each, row by row.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Picture {
    /// An image of `width` by `height` pixels.
    ///
    /// # Errors
    /// If a side is 0, or there are not 3 bytes for each pixel.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self> {
        let bytes = width.checked_mul(height).and_then(|it| it.checked_mul(3));
        if width == 0 || height == 0 || bytes != Some(rgb.len()) {
            bail!(
                "an image of {width} x {height} pixels has {} bytes; it must have 3 for each of at least one pixel",
                rgb.len()
            )
        }
        Ok(Self { width, height, rgb })
    }

    /// Pixels in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The bytes.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

/// Its size alone: pixels are not text.
impl std::fmt::Debug for Picture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Picture({} x {})", self.width, self.height)
    }
}

/// A part of what a prompt has in the place of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Text, which may be that of a special token.
    Text(String),
    /// A token by its id, and how often it stands there.
    Token(u32, usize),
}

/// How a checkpoint takes images.
#[derive(Clone, Debug)]
pub struct PictureSpec {
    family: Family,
}

#[derive(Clone, Debug)]
enum Family {
    Gemma3(gemma3::Spec),
    Idefics3(idefics3::Spec),
    Qwen(qwen::Spec),
    Mistral3(mistral3::Spec),
}

/// The values of `model_type` whose images are supported.
pub const MODEL_TYPES: &[&str] = &[
    "gemma3",
    "idefics3",
    "smolvlm",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "mistral3",
];

impl PictureSpec {
    /// From the texts of a checkpoint's `config.json` and of its `preprocessor_config.json`, or of a `processor_config.json`, which has the
    /// same in its field `image_processor`.
    ///
    /// # Errors
    /// A `model_type` whose images are not supported; a field that is missing, does not fit, or asks for what is not supported.
    pub fn read(config: &str, processor: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Type {
            model_type: Option<String>,
        }
        let found: Type = parse(config)?;
        let found = found.model_type.unwrap_or_default();
        let read = |defaults| processor::Processor::read(processor, defaults);
        let family = match found.as_str() {
            "gemma3" => Family::Gemma3(gemma3::Spec::read(config, read(EVEN)?)?),
            "idefics3" | "smolvlm" => Family::Idefics3(idefics3::Spec::read(config, read(EVEN)?)?),
            "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" => {
                Family::Qwen(qwen::Spec::read(&found, config, read(CLIP)?)?)
            }
            "mistral3" => Family::Mistral3(mistral3::Spec::read(config, read(CLIP)?)?),
            other => bail!(
                "model_type: images of {other:?} are not supported; supported: {}",
                MODEL_TYPES.join(", ")
            ),
        };
        Ok(Self { family })
    }

    /// The token that takes the vectors of images, one each.
    pub fn token(&self) -> u32 {
        match &self.family {
            Family::Gemma3(spec) => spec.token,
            Family::Idefics3(spec) => spec.token,
            Family::Qwen(spec) => spec.token,
            Family::Mistral3(spec) => spec.token,
        }
    }

    /// The token that chat templates write for an image, once.
    pub fn placeholder(&self) -> u32 {
        match &self.family {
            Family::Gemma3(spec) => spec.begin,
            Family::Idefics3(spec) => spec.token,
            Family::Qwen(spec) => spec.token,
            Family::Mistral3(spec) => spec.token,
        }
    }

    /// The text that replaces the placeholder in the prompt, for an image of `width` by `height` pixels.
    pub fn written(&self, width: usize, height: usize) -> Vec<Written> {
        match &self.family {
            Family::Gemma3(spec) => spec.written(),
            Family::Idefics3(spec) => spec.written(width, height),
            Family::Qwen(spec) => spec.written(width, height),
            Family::Mistral3(spec) => spec.written(width, height),
        }
    }

    /// As [`written`](Self::written), for a prompt without a placeholder: with the tokens that templates have around it.
    pub fn written_alone(&self, width: usize, height: usize) -> Vec<Written> {
        match &self.family {
            Family::Qwen(spec) => spec.written_alone(width, height),
            _ => self.written(width, height),
        }
    }

    /// Checks that the encoder takes images of `width` by `height` pixels.
    ///
    /// # Errors
    /// An image that is too narrow for the family.
    pub fn check(&self, width: usize, height: usize) -> Result<()> {
        match &self.family {
            Family::Qwen(spec) => spec.check(width, height),
            _ => Ok(()),
        }
    }

    /// The size of a vector that stands for a token in a model whose stream is of size `hidden`: where features go to the first layers too
    /// (DeepStack), they follow it in the vector.
    pub fn vector_size(&self, hidden: usize) -> usize {
        match &self.family {
            Family::Qwen(spec) => hidden * (1 + spec.levels()),
            _ => hidden,
        }
    }

    /// The position of each of a prompt's `tokens` on three axes, time, row and column, where images have such: `sizes` are the width and
    /// height in pixels of the images in the prompt. `None` where all families' positions are the tokens' indices.
    ///
    /// # Errors
    /// Sizes that do not fit the tokens.
    pub fn positions(&self, tokens: &[u32], sizes: &[[usize; 2]]) -> Result<Option<Vec<Position>>> {
        match &self.family {
            Family::Qwen(spec) => spec.positions(tokens, sizes).map(Some),
            _ => Ok(None),
        }
    }

    /// How many vectors an image of `width` by `height` pixels becomes: as often does [`token`](Self::token) stand in what is
    /// [`written`](Self::written).
    pub fn tokens(&self, width: usize, height: usize) -> usize {
        let count = |written: Written| match written {
            Written::Token(id, count) if id == self.token() => count,
            _ => 0,
        };
        self.written(width, height).into_iter().map(count).sum()
    }

    /// How tokens of an image see each other.
    pub fn sees(&self) -> Sees {
        match &self.family {
            Family::Gemma3(_) => Sees::All,
            Family::Idefics3(_) | Family::Qwen(_) | Family::Mistral3(_) => Sees::Before,
        }
    }

    /// The image as the encoder takes it, on the CPU in f32: `(parts, 3, height, width)`.
    ///
    /// # Errors
    /// As [`check`](Self::check); not enough memory.
    pub fn pixels(&self, picture: &Picture) -> Result<Tensor> {
        match &self.family {
            Family::Gemma3(spec) => spec.pixels(picture),
            Family::Idefics3(spec) => spec.pixels(picture),
            Family::Qwen(spec) => spec.pixels(picture),
            Family::Mistral3(spec) => spec.pixels(picture),
        }
    }

    /// The name of a weight that a checkpoint with the encoder has, in each spelling.
    pub fn first_weights(&self) -> Vec<String> {
        let names: &[&str] = match &self.family {
            Family::Gemma3(_) => &[
                "vision_tower.vision_model.embeddings.patch_embedding.weight",
                "vision_tower.embeddings.patch_embedding.weight",
            ],
            Family::Idefics3(_) => &["vision_model.embeddings.patch_embedding.weight"],
            Family::Qwen(_) => &["visual.patch_embed.proj.weight"],
            Family::Mistral3(_) => &["vision_tower.patch_conv.weight"],
        };
        let spelled = |name: &&str| [format!("model.{name}"), (*name).to_string()];
        names.iter().flat_map(spelled).collect()
    }

    /// The encoder with the weights at the root of a checkpoint, in the spelling of Transformers 4 or 5.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn load(&self, vb: VarBuilder) -> Result<PictureEncoder> {
        let first = self.first_weights();
        let newer = |name: &&String| name.starts_with("model.") && vb.contains_tensor(name);
        let vb = match first.iter().find(newer) {
            Some(_) => vb.pp("model"),
            None => vb,
        };
        Ok(PictureEncoder(match &self.family {
            Family::Gemma3(spec) => {
                let (tower, projector) = spec.load(vb)?;
                Encoder::Gemma3(tower, projector)
            }
            Family::Idefics3(spec) => {
                let (tower, projector) = spec.load(vb)?;
                Encoder::Idefics3(tower, projector)
            }
            Family::Qwen(spec) => Encoder::Qwen(spec.load(vb)?),
            Family::Mistral3(spec) => Encoder::Mistral3(spec.load(vb)?),
        }))
    }
}

/// The encoder of images, and what brings its vectors to the size of the language model's.
#[derive(Clone, Debug)]
pub struct PictureEncoder(Encoder);

#[derive(Clone, Debug)]
enum Encoder {
    Gemma3(siglip::VisionModel, gemma3::Projector),
    Idefics3(siglip::VisionModel, idefics3::Projector),
    Qwen(qwen::Encoder),
    Mistral3(mistral3::Encoder),
}

impl PictureEncoder {
    /// The vectors of an image, `(tokens, vector_size)` ([`PictureSpec::vector_size`]), from what [`PictureSpec::pixels`] made of it. `place`
    /// is the device and the dtype of the weights. The parts of an image run separately, which bounds the memory.
    ///
    /// # Errors
    /// Pixels of another shape; failures of the device.
    pub fn forward(&self, pixels: &Tensor, place: (&Device, DType)) -> Result<Tensor> {
        let (device, dtype) = place;
        let part = |i: usize| {
            let pixels = pixels.narrow(0, i, 1)?;
            let moved = || pixels.to_device(device)?.to_dtype(dtype);
            match &self.0 {
                Encoder::Gemma3(tower, projector) => {
                    projector.forward(&tower.forward(&moved()?)?)?.squeeze(0)
                }
                Encoder::Idefics3(tower, projector) => {
                    projector.forward(&tower.forward(&moved()?)?)?.squeeze(0)
                }
                Encoder::Qwen(encoder) => encoder.forward(&pixels, place),
                Encoder::Mistral3(encoder) => encoder.forward(&moved()?),
            }
        };
        let all = (0..pixels.dim(0)?).map(part).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&all, 0)
    }
}

/// The fields of a part of a `config.json`, over those that files leave out.
fn with_defaults(config: &Value, part: &str, defaults: Value) -> Value {
    let mut fields = defaults;
    if let (Some(all), Some(given)) = (fields.as_object_mut(), config[part].as_object()) {
        let given = given.iter().filter(|(_, value)| !value.is_null());
        all.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    }
    fields
}

/// A whole number of a `config.json` under one of several names, from 1 on.
fn size(config: &Value, names: &[&str], default: Option<usize>) -> Result<usize> {
    let found = names.iter().find_map(|name| {
        let value = &config[*name];
        (!value.is_null()).then_some((*name, value))
    });
    let Some((name, value)) = found else {
        return match default {
            Some(default) => Ok(default),
            None => bail!("missing field `{}`", names.join("` or `")),
        };
    };
    match value.as_u64().and_then(|it| usize::try_from(it).ok()) {
        Some(size @ 1..) => Ok(size),
        _ => bail!("{name}: {value}; expected a whole number of at least 1"),
    }
}

/// The id of a token under one of several names.
fn id(config: &Value, names: &[&str], default: u32) -> Result<u32> {
    let id = size(config, names, Some(default as usize))?;
    match u32::try_from(id) {
        Ok(id) => Ok(id),
        Err(_) => bail!("{}: {id} is not a token id", names[0]),
    }
}

/// The part of a `config.json` that describes the tower.
fn vision(config: &Value, defaults: Value) -> Result<siglip::VisionConfig> {
    let fields = with_defaults(config, "vision_config", defaults);
    let config: siglip::VisionConfig = crate::auto::config::value("vision_config", &fields)?;
    let (side, patch) = (config.image_size, config.patch_size);
    if patch == 0 || side > MAX_SIDE || side % patch != 0 || side == 0 || config.num_channels != 3 {
        bail!(
            "vision_config: images of {side} pixels, patches of {patch} and {} channels; expected patches that divide an image of at most \
             {MAX_SIDE} pixels, and 3 channels",
            config.num_channels
        )
    }
    Ok(config)
}
