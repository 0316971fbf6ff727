//! LLaVA, which writes about images: [arXiv 2304.08485](https://arxiv.org/abs/2304.08485), with tiles for large images
//! ([LLaVA-NeXT](https://llava-vl.github.io/blog/2024-01-30-llava-next/)). [`super::clip`] sees, linear layers make tokens of patches, and
//! [`super::llama`] writes. Weight names are those of the authors' checkpoints, such as
//! [liuhaotian/llava-v1.6-vicuna-7b](https://huggingface.co/liuhaotian/llava-v1.6-vicuna-7b), or of Transformers', such as
//! [llava-hf/llava-v1.6-vicuna-7b-hf](https://huggingface.co/llava-hf/llava-v1.6-vicuna-7b-hf), as `hf` of the configuration says.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::llama::Cache;
//! use candle_transformers::models::llava::{config::LLaVAConfig, LLaVA};
//! # fn main() -> candle_core::Result<()> {
//! let config: LLaVAConfig = serde_json::from_str(&std::fs::read_to_string("config.json")?)
//!     .map_err(candle_core::Error::wrap)?;
//! let device = Device::Cpu;
//! let files = ["model.safetensors"];
//! let vb = unsafe { VarBuilder::from_mmaped_safetensors(&files, DType::F16, &device)? };
//! let model = LLaVA::load(vb, &config, None)?;
//! // The whole image, reduced, and its tiles, here two, each as CLIP takes images; and its original size.
//! let picture = Tensor::zeros((3, 3, 336, 336), DType::F16, &device)?;
//! let size = (640, 320);
//! // -200 is the placeholder of the image.
//! let prompt = Tensor::new(&[[1i64, 3148, -200, 13]], &device)?;
//! let embeds = model.prepare_inputs_labels_for_multimodal(&prompt, &[picture], &[size])?;
//! let mut cache = Cache::new(true, DType::F16, &config.to_llama_config(), &device)?;
//! let logits = model.forward(&embeds, 0, &mut cache)?;
//! let token = logits.flatten_all()?.argmax(0)?.to_scalar::<u32>()?;
//! let next = model.llama.embed(&Tensor::new(&[[token]], &device)?)?;
//! model.forward(&next, embeds.dim(1)?, &mut cache)?;
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{linear, seq, Activation, Sequential, VarBuilder};

use self::config::LLaVAConfig;
use self::tiles::{Merge, Tiles};
use crate::models::clip::vision_model::{ClipVisionConfig, ClipVisionTransformer};
use crate::models::llama::{Cache, Llama};
use crate::models::spelling::vision_model;

pub mod config;
mod tiles;
pub mod utils;

/// The identity function.
pub struct IdentityMap {}

impl Module for IdentityMap {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// From the vectors of patches to those of tokens.
pub struct MMProjector {
    /// Linear layers, with GELU between them.
    pub modules: Sequential,
}

/// Number of a projector's linear layers, by its name; 0 for the identity.
fn projector_layers(name: &str) -> Result<usize> {
    let layers = |name: &str| {
        name.strip_prefix("mlp")?
            .strip_suffix("x_gelu")?
            .parse()
            .ok()
    };
    match name {
        "identity" => Ok(0),
        "linear" => Ok(1),
        name => match layers(name) {
            Some(layers) => Ok(usize::max(layers, 1)),
            None => bail!(
                "llava config: mm_projector_type is {name:?}, expected linear, mlp1x_gelu, mlp2x_gelu (and so on) or identity"
            ),
        },
    }
}

impl MMProjector {
    /// Loads `model.mm_projector.{0,2,..}`, or with `hf` `multi_modal_projector.linear_{1,2,..}`.
    ///
    /// # Errors
    /// If the configuration names no projector, or a weight is missing or has another shape.
    pub fn load(vb: &VarBuilder, config: &LLaVAConfig) -> Result<Self> {
        let (patch, hidden) = (config.mm_hidden_size, config.hidden_size);
        let count = projector_layers(&config.mm_projector_type)?;
        let mut modules = match count {
            0 if patch != hidden => bail!(
                "llava config: mm_projector_type is identity, for which mm_hidden_size {patch} must be hidden_size {hidden}"
            ),
            0 => seq().add(IdentityMap {}),
            _ => seq(),
        };
        for i in 0..count {
            let vb = if config.hf {
                vb.pp(format!("multi_modal_projector.linear_{}", i + 1))
            } else {
                vb.pp(format!("model.mm_projector.{}", 2 * i))
            };
            modules = match i {
                0 => modules.add(linear(patch, hidden, vb)?),
                _ => modules
                    .add(Activation::Gelu)
                    .add(linear(hidden, hidden, vb)?),
            };
        }
        Ok(Self { modules })
    }

    /// From (.., mm_hidden_size) to (.., hidden_size).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.modules.forward(x)
    }
}

/// The part that sees: what a layer of CLIP gives.
pub struct ClipVisionTower {
    /// CLIP up to the layer that is taken.
    model: ClipVisionTransformer,
    with_class: bool,
    /// All of CLIP.
    pub config: ClipVisionConfig,
}

impl ClipVisionTower {
    /// Loads CLIP at `vb` up to the layer `select_layer`: -1 for the last, -2 for the one before it. `select_feature_method` is `patch` or
    /// `cls_patch`. Without `config` it is [`ClipVisionConfig::clip_vit_large_patch14_336`].
    ///
    /// # Errors
    /// The layer or the method is another, CLIP's configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(
        vb: VarBuilder,
        select_layer: isize,
        select_feature_method: &str,
        config: &Option<ClipVisionConfig>,
    ) -> Result<Self> {
        let config = match config {
            Some(config) => config.clone(),
            None => ClipVisionConfig::clip_vit_large_patch14_336(),
        };
        let with_class = match select_feature_method {
            "patch" => false,
            "cls_patch" => true,
            other => bail!(
                "llava config: mm_vision_select_feature is {other:?}; it must be patch or cls_patch"
            ),
        };
        let unused = match select_layer {
            -1 => 0,
            -2 => 1,
            other => {
                bail!("llava config: mm_vision_select_layer is {other}; it must be -1 or -2")
            }
        };
        let layers = config.num_hidden_layers;
        if layers <= unused {
            bail!("llava config: mm_vision_select_layer is {select_layer}, but CLIP has only {layers} layers")
        }
        let until = ClipVisionConfig {
            num_hidden_layers: layers - unused,
            ..config.clone()
        };
        Ok(Self {
            model: ClipVisionTransformer::new(vb, &until)?,
            with_class,
            config,
        })
    }

    /// From images (batch, num_channels, image_size, image_size) to their patches, (batch, patches, embed_dim), or with `cls_patch`
    /// (batch, 1 + patches, embed_dim).
    ///
    /// # Errors
    /// The images have another shape, or another dtype or device than the weights.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // Behind the layers is what CLIP gives.
        let mut states = self.model.output_hidden_states(x)?;
        states.pop();
        match (states.pop(), self.with_class) {
            (Some(last), true) => Ok(last),
            (Some(last), false) => last.narrow(1, 1, last.dim(1)? - 1),
            (None, _) => bail!("llava: CLIP has no layers"),
        }
    }

    /// Patches on the side of an image.
    pub fn num_patches_per_side(&self) -> usize {
        self.config.image_size / self.config.patch_size
    }
}

/// The model. What it has read is in a [`Cache`].
pub struct LLaVA {
    /// The vision encoder.
    pub clip_vision_tower: ClipVisionTower,
    /// The token at the end of a row of patches, (hidden_size).
    pub image_newline: Tensor,
    /// Projection of patches to tokens.
    pub mm_projector: MMProjector,
    /// The language model.
    pub llama: Llama,
    config: LLaVAConfig,
    merge: Merge,
    device: Device,
}

impl LLaVA {
    /// Loads the projector, CLIP, `image_newline` and Llama: `model.vision_tower.vision_tower.vision_model`, `model.image_newline`,
    /// `model.*` and `lm_head`, or with `hf` `vision_tower.vision_model`, `image_newline` and `language_model`.
    ///
    /// # Errors
    /// If the configurations contradict themselves or each other, or a weight is missing or has another shape.
    pub fn load(
        vb: VarBuilder,
        config: &LLaVAConfig,
        clip_vision_config: Option<ClipVisionConfig>,
    ) -> Result<Self> {
        let merge = Merge::of(config)?;
        let names = if config.hf {
            ["vision_tower", "image_newline", "language_model"]
        } else {
            ["model.vision_tower.vision_tower", "model.image_newline", ""]
        };
        let [vb_clip, vb_llama] = [names[0], names[2]].map(|name| match name {
            "" => vb.clone(),
            name => vb.pp(name),
        });
        let (layer, feature) = (
            config.mm_vision_select_layer,
            &config.mm_vision_select_feature,
        );
        let tower =
            ClipVisionTower::new(vision_model(vb_clip), layer, feature, &clip_vision_config)?;
        let (size, seen) = (config.mm_hidden_size, tower.config.embed_dim);
        if size != seen {
            bail!("llava config: mm_hidden_size {size} must be the size of CLIP's vectors, {seen}")
        }
        Ok(Self {
            clip_vision_tower: tower,
            image_newline: vb.get(config.hidden_size, names[1])?,
            mm_projector: MMProjector::load(&vb, config)?,
            llama: Llama::load(vb_llama, &config.to_llama_config())?,
            config: config.clone(),
            merge,
            device: vb.device().clone(),
        })
    }

    /// From images (batch, num_channels, image_size, image_size) to vectors as the text has them, (batch, patches, hidden_size).
    ///
    /// # Errors
    /// Those of [`ClipVisionTower::forward`].
    pub fn encode_images(&self, x: &Tensor) -> Result<Tensor> {
        self.mm_projector
            .forward(&self.clip_vision_tower.forward(x)?)
    }

    /// A prompt with images in it, as [`forward`](Self::forward) takes it: (1, tokens, hidden_size).
    ///
    /// - `input_ids`: one text, (1, seq) of any integer dtype, which is read on the host. Each id that is `image_token_index` represents an
    ///   image, in their order. Without such ids the images are ignored.
    /// - `images`: the tiles of each image, (tiles, num_channels, image_size, image_size), the first of them the whole image in small.
    /// - `image_sizes`: the (width, height) of each image before it was cut into tiles; used where there are several.
    ///
    /// Prompts longer than `tokenizer_model_max_length` are truncated.
    ///
    /// # Errors
    /// The numbers of images and of placeholder ids differ, tiles are not those of an image of this size, or a shape does not fit.
    pub fn prepare_inputs_labels_for_multimodal(
        &self,
        input_ids: &Tensor,
        images: &[Tensor],
        image_sizes: &[(u32, u32)],
    ) -> Result<Tensor> {
        let ids = ids_of_one_text(input_ids)?;
        let place = self.config.image_token_index as i64;
        let pieces: Vec<&[i64]> = ids.split(|id| *id == place).collect();
        if pieces.len() == 1 {
            return self.words(&ids)?.unsqueeze(0);
        }
        if pieces.len() != images.len() + 1 {
            bail!(
                "llava: {} placeholder tokens (id {place}) in the ids, but {} pictures; the numbers must match",
                pieces.len() - 1,
                images.len()
            )
        }
        let pictures = self.pictures(images, image_sizes)?;
        let mut parts = Vec::with_capacity(2 * pieces.len());
        let mut pictures = pictures.into_iter();
        for piece in pieces {
            if !piece.is_empty() {
                parts.push(self.words(piece)?);
            }
            parts.extend(pictures.next());
        }
        let all = Tensor::cat(&parts, 0)?;
        let len = all.dim(0)?;
        let limit = self.config.tokenizer_model_max_length.unwrap_or(len);
        all.narrow(0, 0, len.min(limit))?.unsqueeze(0)
    }

    /// The vectors of tokens, (tokens, hidden_size).
    fn words(&self, ids: &[i64]) -> Result<Tensor> {
        let id = |id: &i64| match u32::try_from(*id) {
            Ok(id) => Ok(id),
            Err(_) => bail!("llava: {id} is neither a token id nor the picture placeholder"),
        };
        let ids = ids.iter().map(id).collect::<Result<Vec<u32>>>()?;
        let count = ids.len();
        self.llama
            .embed(&Tensor::from_vec(ids, count, &self.device)?)
    }

    /// The tokens of each image, (tokens, hidden_size); all tiles are seen at once.
    fn pictures(&self, images: &[Tensor], sizes: &[(u32, u32)]) -> Result<Vec<Tensor>> {
        let vectors = self.encode_images(&Tensor::cat(images, 0)?)?;
        let tiles = Tiles {
            config: &self.config,
            merge: self.merge,
            image_size: self.clip_vision_tower.config.image_size,
            side: self.clip_vision_tower.num_patches_per_side(),
            newline: &self.image_newline,
        };
        let mut at = 0;
        let tokens = |(i, image): (usize, &Tensor)| {
            let count = image.dim(0)?;
            let of_picture = vectors.narrow(0, at, count)?;
            at += count;
            tiles.tokens(&of_picture, sizes.get(i))
        };
        images.iter().enumerate().map(tokens).collect()
    }

    /// The logits, (1, vocab) in f32, of what follows the last of the vectors (1, t, hidden_size), which are at the positions from
    /// `position_id` on and continue what `cache` holds.
    ///
    /// # Errors
    /// As [`Llama::forward_input_embed`].
    pub fn forward(
        &self,
        input_embeds: &Tensor,
        position_id: usize,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        self.llama
            .forward_input_embed(input_embeds, position_id, cache)
    }
}

/// The ids of a batch of one.
fn ids_of_one_text(input_ids: &Tensor) -> Result<Vec<i64>> {
    match *input_ids.dims() {
        [1, seq] if seq > 0 => {}
        _ => bail!(
            "llava: input_ids are {:?}; they must be (1, seq), one text with at least one id",
            input_ids.dims()
        ),
    }
    let ids = input_ids.flatten_all()?.to_device(&Device::Cpu)?;
    ids.to_dtype(DType::I64)?.to_vec1()
}
