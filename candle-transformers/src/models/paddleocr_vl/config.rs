//! The numbers of a `config.json`.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::vision::VitSpec;

/// The numbers of the encoder of images; `config.json` leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct VisionConfig {
    /// Size of a patch's vector.
    pub hidden_size: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Channels of an image.
    pub num_channels: usize,
    /// Height and width, in pixels, of the images for which positions are learned.
    pub image_size: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Layer norm epsilon.
    pub layer_norm_eps: f64,
    /// Not used: nothing is dropped.
    pub attention_dropout: f64,
    /// Rows and columns of patches that become a token.
    pub spatial_merge_size: usize,
}

/// That of [PaddlePaddle/PaddleOCR-VL](https://huggingface.co/PaddlePaddle/PaddleOCR-VL).
impl Default for VisionConfig {
    fn default() -> Self {
        Self {
            hidden_size: 1152,
            intermediate_size: 4304,
            num_hidden_layers: 27,
            num_attention_heads: 16,
            num_channels: 3,
            image_size: 384,
            patch_size: 14,
            hidden_act: Activation::GeluPytorchTanh,
            layer_norm_eps: 1e-6,
            attention_dropout: 0.,
            spatial_merge_size: 2,
        }
    }
}

impl VisionConfig {
    /// The size of a head; 0 without heads.
    pub fn head_dim(&self) -> usize {
        let heads = self.num_attention_heads;
        self.hidden_size.checked_div(heads).unwrap_or(0)
    }

    /// The sizes of the layers.
    pub(super) fn spec(&self) -> VitSpec {
        VitSpec {
            size: self.hidden_size,
            heads: self.num_attention_heads,
            inner: self.intermediate_size,
            eps: self.layer_norm_eps,
        }
    }

    /// Checks what the encoder takes for granted.
    pub(super) fn check(&self) -> Result<()> {
        let head_dim = self.spec().head_dim(FAMILY)?;
        if !head_dim.is_multiple_of(4) {
            bail!("{FAMILY} config: heads of {head_dim} elements are not a multiple of 4, which two-dimensional rotary embedding requires")
        }
        let (patch, merge) = (self.patch_size, self.spatial_merge_size);
        if patch == 0 || merge == 0 || self.image_size < patch || self.num_channels == 0 {
            bail!(
                "{FAMILY} config: patch_size {patch}, spatial_merge_size {merge} and num_channels {} must be at least 1, and \
                 image_size {} at least a patch",
                self.num_channels,
                self.image_size
            )
        }
        Ok(())
    }
}

/// The rotation of heads by positions on three axes.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct RopeScaling {
    /// Number of a head's pairs that rotate by time, by row and by column; half of `head_dim` in all.
    pub mrope_section: Vec<usize>,
    /// Not used: frequencies are not scaled.
    #[serde(default)]
    pub rope_type: Option<String>,
}

/// That of [PaddlePaddle/PaddleOCR-VL](https://huggingface.co/PaddlePaddle/PaddleOCR-VL).
impl Default for RopeScaling {
    fn default() -> Self {
        Self {
            mrope_section: vec![16, 24, 24],
            rope_type: Some("default".to_string()),
        }
    }
}

/// A checkpoint's `config.json`, in which the decoder's numbers are next to those of the encoder. Omitted numbers have the values of
/// [`Default`].
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Configuration of the vision encoder.
    pub vision_config: VisionConfig,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// RMS norm epsilon of the decoder.
    #[serde(alias = "rms_norm_eps")]
    pub layer_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Head dimension.
    pub head_dim: usize,
    /// Whether the linear layers of the decoder have biases.
    pub use_bias: bool,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// The placeholder token of a part of an image.
    pub image_token_id: u32,
    /// The placeholder token of a part of a video.
    pub video_token_id: u32,
    /// The token before an image or a video. The model does not use it.
    pub vision_start_token_id: u32,
    /// The token after an image or a video. The model does not use it.
    pub vision_end_token_id: u32,
    /// The rotation of heads by positions on three axes.
    #[serde(default)]
    pub rope_scaling: Option<RopeScaling>,
    /// Not used: a frame of a video is one position after the one before.
    pub tokens_per_second: usize,
}

/// That of [PaddlePaddle/PaddleOCR-VL](https://huggingface.co/PaddlePaddle/PaddleOCR-VL).
impl Default for Config {
    fn default() -> Self {
        Self {
            vision_config: VisionConfig::default(),
            vocab_size: 103_424,
            hidden_size: 1024,
            intermediate_size: 3072,
            num_hidden_layers: 18,
            num_attention_heads: 16,
            num_key_value_heads: 2,
            hidden_act: Activation::Silu,
            max_position_embeddings: 131_072,
            layer_norm_eps: 1e-5,
            rope_theta: 500_000.,
            head_dim: 128,
            use_bias: false,
            tie_word_embeddings: false,
            image_token_id: 100_295,
            video_token_id: 101_307,
            vision_start_token_id: 101_305,
            vision_end_token_id: 101_306,
            rope_scaling: Some(RopeScaling::default()),
            tokens_per_second: 25,
        }
    }
}

/// The numbers of the decoder.
#[derive(Debug, Clone)]
pub struct TextConfig {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Head dimension.
    pub head_dim: usize,
    /// Whether linear layers have biases.
    pub use_bias: bool,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Number of a head's pairs that rotate by time, by row and by column.
    pub mrope_section: Vec<usize>,
}

impl From<&Config> for TextConfig {
    fn from(cfg: &Config) -> Self {
        let scaling = cfg.rope_scaling.clone().unwrap_or_default();
        Self {
            vocab_size: cfg.vocab_size,
            hidden_size: cfg.hidden_size,
            intermediate_size: cfg.intermediate_size,
            num_hidden_layers: cfg.num_hidden_layers,
            num_attention_heads: cfg.num_attention_heads,
            num_key_value_heads: cfg.num_key_value_heads,
            hidden_act: cfg.hidden_act,
            max_position_embeddings: cfg.max_position_embeddings,
            rms_norm_eps: cfg.layer_norm_eps,
            rope_theta: cfg.rope_theta,
            head_dim: cfg.head_dim,
            use_bias: cfg.use_bias,
            tie_word_embeddings: cfg.tie_word_embeddings,
            mrope_section: scaling.mrope_section,
        }
    }
}

impl TextConfig {
    /// Checks what the decoder takes for granted.
    pub(super) fn check(&self) -> Result<()> {
        let (heads, kv_heads, head_dim) = (
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
        );
        if heads == 0
            || kv_heads == 0
            || heads % kv_heads != 0
            || head_dim == 0
            || head_dim % 2 != 0
        {
            bail!(
                "{FAMILY} config: {heads} query heads over {kv_heads} key heads of size {head_dim}; the first must be a multiple of the \
                 second, and the size even"
            )
        }
        if self.vocab_size == 0 || self.hidden_size == 0 || self.max_position_embeddings == 0 {
            bail!(
                "{FAMILY} config: vocab_size {}, hidden_size {} and max_position_embeddings {} must be at least 1",
                self.vocab_size,
                self.hidden_size,
                self.max_position_embeddings
            )
        }
        Ok(())
    }
}
