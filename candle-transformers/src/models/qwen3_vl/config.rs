//! The numbers of a `config.json`.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::family::LlamaLike;
use crate::blocks::vision::VitSpec;
use crate::blocks::{Axes, DecoderSpec, Head, Names, NormSpec, QkNorm};

const NAMES: Names = Names {
    embedding: "model.language_model.embed_tokens",
    layers: "model.language_model.layers",
    final_norm: "model.language_model.norm",
    ..Names::HUGGING_FACE
};

/// The numbers of the encoder of images and videos; `config.json` leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct VisionConfig {
    /// Layers.
    pub depth: usize,
    /// Size of a patch's vector.
    pub hidden_size: usize,
    /// Size of the encoder's output, which is that of the decoder's residual stream.
    pub out_hidden_size: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Heads, which divide `hidden_size`.
    pub num_heads: usize,
    /// Channels of an image.
    pub in_chans: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Rows and columns of patches that become a token.
    pub spatial_merge_size: usize,
    /// Frames that become one.
    pub temporal_patch_size: usize,
    /// Positions of the square grid of learned positions.
    pub num_position_embeddings: usize,
    /// Layers after which features go to the first layers of the decoder.
    pub deepstack_visual_indexes: Vec<usize>,
}

/// The defaults of an empty `config.json`.
impl Default for VisionConfig {
    fn default() -> Self {
        Self {
            depth: 32,
            hidden_size: 3584,
            out_hidden_size: 3584,
            hidden_act: Activation::Gelu,
            intermediate_size: 3420,
            num_heads: 16,
            in_chans: 3,
            patch_size: 14,
            spatial_merge_size: 2,
            temporal_patch_size: 2,
            num_position_embeddings: 576,
            deepstack_visual_indexes: Vec::new(),
        }
    }
}

impl VisionConfig {
    /// The sizes of the encoder's layers.
    pub(super) fn spec(&self) -> VitSpec {
        VitSpec {
            size: self.hidden_size,
            heads: self.num_heads,
            inner: self.intermediate_size,
            eps: 1e-6,
        }
    }

    /// The numbers of a patch.
    pub(super) fn patch(&self) -> usize {
        self.in_chans * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Number of patches per token.
    pub(super) fn merged(&self) -> usize {
        self.spatial_merge_size * self.spatial_merge_size
    }

    /// The side of the grid that positions are learned for.
    pub(super) fn side(&self) -> usize {
        self.num_position_embeddings.isqrt()
    }

    /// How many of the decoder's first layers get features: a layer that is named twice counts once.
    pub(crate) fn levels(&self) -> usize {
        let mut named = self.deepstack_visual_indexes.clone();
        named.sort_unstable();
        named.dedup();
        named.len()
    }

    /// Checks what the encoder takes for granted.
    pub(crate) fn check(&self) -> Result<()> {
        let head_dim = self.spec().head_dim(FAMILY)?;
        if !head_dim.is_multiple_of(4) {
            bail!(
                "{FAMILY} config: heads of {head_dim} elements (hidden_size {}, num_heads {}) are not a multiple of 4, which \
                 two-dimensional rotary embedding requires",
                self.hidden_size,
                self.num_heads
            )
        }
        if self.patch() == 0 || self.spatial_merge_size == 0 {
            bail!(
                "{FAMILY} config: in_chans {}, temporal_patch_size {}, patch_size {} and spatial_merge_size {} must be at least 1",
                self.in_chans,
                self.temporal_patch_size,
                self.patch_size,
                self.spatial_merge_size
            )
        }
        let positions = self.num_position_embeddings;
        if positions == 0 || self.side() * self.side() != positions {
            bail!("{FAMILY} config: num_position_embeddings {positions} is not a square number")
        }
        let depth = self.depth;
        if let Some(layer) = self.deepstack_visual_indexes.iter().find(|i| **i >= depth) {
            bail!("{FAMILY} config: deepstack_visual_indexes has layer {layer}, but the encoder has {depth}")
        }
        Ok(())
    }
}

/// The numbers of the decoder.
#[derive(Debug, Clone, Deserialize)]
#[serde(remote = "Self")]
pub struct TextConfig {
    /// Head dimension.
    pub head_dim: usize,
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
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Not used by these models.
    pub sliding_window: Option<usize>,
}

crate::models::spelling::spelled!(TextConfig, |fields| crate::models::spelling::flat_rope(
    fields,
    "rope_theta"
));

impl TextConfig {
    /// The decoder that it describes, with a bias in the output layer if `head_bias` says so.
    pub(super) fn spec(&self, head_bias: bool) -> Result<DecoderSpec> {
        let sizes = LlamaLike {
            family: FAMILY,
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: Some(self.head_dim),
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta,
            norm_eps: self.rms_norm_eps,
            activation: self.hidden_act,
            head: if self.tie_word_embeddings {
                Head::Tied
            } else {
                Head::Linear { bias: head_bias }
            },
        };
        let norm = NormSpec::rms(self.rms_norm_eps);
        let mut spec =
            sizes.spec(|_, attention, _| attention.qk_norm = Some(QkNorm::Head(norm)))?;
        spec.names = NAMES;
        Ok(spec)
    }

    /// The axes of a head's pairs: 20 of 64 rotate with the row, 20 with the column.
    pub(super) fn axes(&self) -> Result<Axes> {
        let pairs = self.head_dim / 2;
        let side = pairs * 20 / 64;
        Axes::interleaved(FAMILY, &[pairs - 2 * side, side, side], pairs)
    }
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(remote = "Self")]
pub struct Config {
    /// Configuration of the decoder.
    pub text_config: TextConfig,
    /// Configuration of the encoder of images and videos.
    pub vision_config: VisionConfig,
    /// The token of a patch of an image. The caller passes their positions.
    pub image_token_id: u32,
    /// The token of a patch of a video. The caller passes their positions.
    pub video_token_id: u32,
    /// The token before an image or a video.
    pub vision_start_token_id: u32,
    /// The token after an image or a video.
    pub vision_end_token_id: u32,
}

crate::models::spelling::spelled!(Config, |fields| {
    // If the head is not tied, files have the field here and not in the text's configuration.
    let tied = fields.get("tie_word_embeddings").cloned();
    let tied = tied.unwrap_or(serde_json::Value::Bool(false));
    if let Some(text) = fields
        .get_mut("text_config")
        .and_then(serde_json::Value::as_object_mut)
    {
        text.entry("tie_word_embeddings").or_insert(tied);
    }
    Ok(())
});
