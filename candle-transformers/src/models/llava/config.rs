//! The configurations of LLaVA's checkpoints: those of its authors, and those of Hugging Face's Transformers.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::models::clip::text_model::Activation;
use crate::models::clip::vision_model::ClipVisionConfig;
use crate::models::llama::{Config, LlamaEosToks};

/// The `config.json` of a checkpoint of the authors', such as
/// [liuhaotian/llava-v1.6-vicuna-7b](https://huggingface.co/liuhaotian/llava-v1.6-vicuna-7b).
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct LLaVAConfig {
    /// Names of classes. Not used.
    pub architectures: Vec<String>,
    /// The token that starts a text.
    pub bos_token_id: usize,
    /// The token that ends a text.
    pub eos_token_id: usize,
    /// Size of the text's residual stream.
    pub hidden_size: usize,
    /// `anyres` for images in tiles; default: `square`.
    #[serde(default = "default_image_aspect_ratio")]
    pub image_aspect_ratio: String,
    /// Not used.
    pub image_crop_resolution: usize,
    /// The permitted sizes of an image in tiles, in pixels: (width, height).
    pub image_grid_pinpoints: Vec<(u32, u32)>,
    /// Not used.
    pub image_split_resolution: usize,
    /// Inner size of the text's MLP.
    pub intermediate_size: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Size of a patch's vector, which is CLIP's.
    pub mm_hidden_size: usize,
    /// The conversion of tiles' patches to tokens: `flat`, `spatial` or `spatial_unpad`; default: `flat`.
    #[serde(default = "default_mm_patch_merge_type")]
    pub mm_patch_merge_type: String,
    /// Projection of a patch's vector to the text's: `linear`, `mlpNx_gelu` with N layers, or `identity`.
    pub mm_projector_type: String,
    /// Not used.
    pub mm_use_im_start_end: bool,
    /// The features of a layer that are used: `patch`, or `cls_patch` with the class token.
    pub mm_vision_select_feature: String,
    /// The layer of CLIP whose output is used: -1 for the last, -2 for the one before it.
    pub mm_vision_select_layer: isize,
    /// The checkpoint that CLIP is from. Not used.
    pub mm_vision_tower: Option<String>,
    /// Not used.
    pub model_type: String,
    /// The text's query heads.
    pub num_attention_heads: usize,
    /// The text's layers.
    pub num_hidden_layers: usize,
    /// The text's key and value heads.
    pub num_key_value_heads: usize,
    /// The padding token. Not used.
    pub pad_token_id: usize,
    /// RMS norm epsilon of the text's norms.
    pub rms_norm_eps: f32,
    /// Base of the text's rotary frequencies.
    pub rope_theta: f32,
    /// Maximum number of tokens, including those of images; longer prompts are truncated.
    pub tokenizer_model_max_length: Option<usize>,
    /// Not used.
    pub torch_dtype: String,
    /// Not used.
    pub use_cache: bool,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The placeholder id of an image in a prompt; -200 by default.
    #[serde(default = "default_image_token_index")]
    pub image_token_index: isize,
    /// Whether weights have the names of Transformers' checkpoints; default: `false`.
    #[serde(default)]
    pub hf: bool,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: Option<bool>,
}

fn default_image_aspect_ratio() -> String {
    "square".to_string()
}

fn default_mm_patch_merge_type() -> String {
    "flat".to_string()
}

fn default_image_token_index() -> isize {
    -200
}

impl LLaVAConfig {
    /// The configuration of the language model.
    pub fn to_llama_config(&self) -> Config {
        Config {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            use_flash_attn: false,
            rms_norm_eps: f64::from(self.rms_norm_eps),
            rope_theta: self.rope_theta,
            bos_token_id: Some(self.bos_token_id as u32),
            eos_token_id: Some(LlamaEosToks::Single(self.eos_token_id as u32)),
            rope_scaling: None,
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: self.tie_word_embeddings.unwrap_or(false),
        }
    }
}

/// The fields of Transformers' `config.json` below `text_config`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct HFLLaVATextConfig {
    /// Names of classes. Not used.
    pub architectures: Vec<String>,
    /// Size of the residual stream; default: 4096.
    #[serde(default = "default_hidden_size")]
    pub hidden_size: usize,
    /// Inner size of the MLP; default: 11008.
    #[serde(default = "default_intermediate_size")]
    pub intermediate_size: usize,
    /// Maximum length of an answer; default: 4096. Not used.
    #[serde(default = "default_max_length")]
    pub max_length: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Not used.
    pub model_type: String,
    /// Query heads; default: 32.
    #[serde(default = "default_heads")]
    pub num_attention_heads: usize,
    /// Layers; default: 32.
    #[serde(default = "default_num_hidden_layers")]
    pub num_hidden_layers: usize,
    /// Key and value heads; default: 32.
    #[serde(default = "default_heads")]
    pub num_key_value_heads: usize,
    /// The padding token.
    pub pad_token_id: usize,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies; default: 10 000.
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f32,
    /// Not used.
    pub torch_dtype: String,
    /// Default: `true`. Not used.
    #[serde(default = "default_use_cache")]
    pub use_cache: bool,
    /// Tokens; the model has those of [`HFLLaVAConfig`].
    pub vocab_size: usize,
}

fn default_hidden_size() -> usize {
    4096
}

fn default_intermediate_size() -> usize {
    11008
}

fn default_max_length() -> usize {
    4096
}

fn default_heads() -> usize {
    32
}

fn default_num_hidden_layers() -> usize {
    32
}

fn default_rope_theta() -> f32 {
    10_000.
}

fn default_use_cache() -> bool {
    true
}

/// The fields of Transformers' `config.json` below `vision_config`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct HFLLaVAVisionConfig {
    /// Size of a patch's vector.
    pub hidden_size: usize,
    /// Height and width of a tile in pixels.
    pub image_size: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Not used.
    pub model_type: String,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Size of CLIP's shared embedding space of images and texts. Not used.
    pub projection_dim: usize,
    /// Not used.
    pub vocab_size: usize,
}

/// Transformers' `config.json`, such as that of
/// [llava-hf/llava-v1.6-vicuna-7b-hf](https://huggingface.co/llava-hf/llava-v1.6-vicuna-7b-hf).
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct HFLLaVAConfig {
    /// Names of classes. Not used.
    pub architectures: Vec<String>,
    /// Used in training only.
    pub ignore_index: isize,
    /// The permitted sizes of an image in tiles, in pixels.
    pub image_grid_pinpoints: Vec<(u32, u32)>,
    /// The placeholder id of an image in a prompt.
    pub image_token_index: isize,
    /// Not used.
    pub model_type: String,
    /// `gelu` for two layers from a patch's vector to the text's; another name is taken for `mm_projector_type` of [`LLaVAConfig`].
    pub projector_hidden_act: String,
    /// Configuration of the language model.
    pub text_config: HFLLaVATextConfig,
    /// Not used.
    pub torch_dtype: String,
    /// Not used.
    pub use_image_newline_parameter: bool,
    /// Configuration of the vision encoder.
    pub vision_config: HFLLaVAVisionConfig,
    /// The layer of CLIP whose output is used: -1 for the last, -2 for the one before it.
    pub vision_feature_layer: isize,
    /// The features that are used: `default` for the patches alone.
    pub vision_feature_select_strategy: String,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
}

/// Transformers' `generation_config.json`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct HFGenerationConfig {
    /// The token that starts a text.
    pub bos_token_id: usize,
    /// The token that ends a text.
    pub eos_token_id: usize,
    /// Maximum length of an answer; default: 4096. Not used.
    #[serde(default = "default_max_length")]
    pub max_length: usize,
    /// The padding token. Not used.
    pub pad_token_id: usize,
}

/// Transformers' `preprocessor_config.json`: how an image's file becomes a tensor, which is the caller's work.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct HFPreProcessorConfig {
    /// `anyres` for images in tiles.
    pub aspect_ratio_setting: String,
    /// `height` and `width` of the crop, in pixels.
    pub crop_size: HashMap<String, usize>,
    /// Whether the centre is cropped.
    pub do_center_crop: bool,
    /// Whether images are converted to RGB.
    pub do_convert_rgb: bool,
    /// Whether `image_mean` is subtracted and the rest divided by `image_std`.
    pub do_normalize: bool,
    /// Whether numbers are multiplied with `rescale_factor`.
    pub do_rescale: bool,
    /// Whether images are resized.
    pub do_resize: bool,
    /// Mean of each channel.
    pub image_mean: Vec<f32>,
    /// Standard deviation of each channel.
    pub image_std: Vec<f32>,
    /// Pillow's number of a filter.
    pub resample: u32,
    /// Factor of the numbers in an image file.
    pub rescale_factor: f32,
    /// `shortest_edge` in pixels.
    pub size: HashMap<String, f32>,
}

impl HFLLaVAConfig {
    /// The configuration of the vision encoder.
    pub fn to_clip_vision_config(&self) -> ClipVisionConfig {
        let vision = &self.vision_config;
        ClipVisionConfig {
            embed_dim: vision.hidden_size,
            activation: Activation::QuickGelu,
            intermediate_size: vision.intermediate_size,
            num_hidden_layers: vision.num_hidden_layers,
            num_attention_heads: vision.num_attention_heads,
            projection_dim: vision.projection_dim,
            num_channels: 3,
            image_size: vision.image_size,
            patch_size: vision.patch_size,
        }
    }

    /// The same in the terms of the authors' checkpoints, with the names of Transformers' weights.
    pub fn to_llava_config(
        &self,
        generation_config: &HFGenerationConfig,
        preprocessor_config: &HFPreProcessorConfig,
    ) -> LLaVAConfig {
        let text = &self.text_config;
        let projector = match self.projector_hidden_act.as_str() {
            "gelu" => "mlp2x_gelu",
            other => other,
        };
        let feature = match self.vision_feature_select_strategy.as_str() {
            "default" => "patch",
            _ => "cls_patch",
        };
        LLaVAConfig {
            architectures: self.architectures.clone(),
            bos_token_id: generation_config.bos_token_id,
            eos_token_id: generation_config.eos_token_id,
            hidden_size: text.hidden_size,
            image_aspect_ratio: preprocessor_config.aspect_ratio_setting.clone(),
            image_crop_resolution: 224,
            image_grid_pinpoints: self.image_grid_pinpoints.clone(),
            image_split_resolution: 224,
            intermediate_size: text.intermediate_size,
            max_position_embeddings: text.max_position_embeddings,
            mm_hidden_size: self.vision_config.hidden_size,
            mm_patch_merge_type: "spatial_unpad".to_string(),
            mm_projector_type: projector.to_string(),
            mm_use_im_start_end: false,
            mm_vision_select_feature: feature.to_string(),
            mm_vision_select_layer: self.vision_feature_layer,
            mm_vision_tower: None,
            model_type: self.model_type.clone(),
            num_attention_heads: text.num_attention_heads,
            num_hidden_layers: text.num_hidden_layers,
            num_key_value_heads: text.num_key_value_heads,
            pad_token_id: text.pad_token_id,
            rms_norm_eps: text.rms_norm_eps,
            rope_theta: text.rope_theta,
            tokenizer_model_max_length: Some(4096),
            torch_dtype: self.torch_dtype.clone(),
            use_cache: text.use_cache,
            vocab_size: self.vocab_size,
            image_token_index: self.image_token_index,
            hf: true,
            tie_word_embeddings: None,
        }
    }
}
