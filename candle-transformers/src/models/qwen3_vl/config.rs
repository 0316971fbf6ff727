//! The numbers of a `config.json`.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::family::LlamaLike;
use crate::blocks::vision::VitSpec;
use crate::blocks::{DecoderSpec, Head, Names, NormSpec, QkNorm};

const NAMES: Names = Names {
    embedding: "model.language_model.embed_tokens",
    layers: "model.language_model.layers",
    final_norm: "model.language_model.norm",
    ..Names::HUGGING_FACE
};

/// The numbers of the encoder of pictures and videos; `config.json` leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct VisionConfig {
    /// Layers.
    pub depth: usize,
    /// Size of a patch's vector.
    pub hidden_size: usize,
    /// Size of what the encoder gives: the stream of the decoder.
    pub out_hidden_size: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Heads, which divide `hidden_size`.
    pub num_heads: usize,
    /// Channels of a picture.
    pub in_chans: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Rows and columns of patches that become a token.
    pub spatial_merge_size: usize,
    /// Frames that become one.
    pub temporal_patch_size: usize,
    /// Places of the square grid that positions are learned for.
    pub num_position_embeddings: usize,
    /// Layers after which features go to the first layers of the decoder.
    pub deepstack_visual_indexes: Vec<usize>,
}

/// What a `config.json` means that leaves all out.
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

    /// How many patches become a token.
    pub(super) fn merged(&self) -> usize {
        self.spatial_merge_size * self.spatial_merge_size
    }

    /// The side of the grid that positions are learned for.
    pub(super) fn side(&self) -> usize {
        self.num_position_embeddings.isqrt()
    }

    /// Checks what the encoder takes for granted.
    pub(super) fn check(&self) -> Result<()> {
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
    /// Size of a head.
    pub head_dim: usize,
    /// Tokens.
    pub vocab_size: usize,
    /// Size of the stream.
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
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// Added to the mean square in the norms.
    pub rms_norm_eps: f64,
    /// Whether the output layer is the table of tokens.
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
            head: match self.tie_word_embeddings {
                true => Head::Tied,
                false => Head::Linear { bias: head_bias },
            },
        };
        let norm = NormSpec::rms(self.rms_norm_eps);
        let mut spec =
            sizes.spec(|_, attention, _| attention.qk_norm = Some(QkNorm::Head(norm)))?;
        spec.names = NAMES;
        Ok(spec)
    }

    /// How many pairs of a head turn with the row, and as many with the column: 20 of 64 in all models.
    pub(super) fn pairs_of_a_side(&self) -> usize {
        self.head_dim / 2 * 20 / 64
    }
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(remote = "Self")]
pub struct Config {
    /// Of the decoder.
    pub text_config: TextConfig,
    /// Of the encoder of pictures and videos.
    pub vision_config: VisionConfig,
    /// The token that stands for a piece of a picture. The model is told where they are.
    pub image_token_id: u32,
    /// The token that stands for a piece of a video. The model is told where they are.
    pub video_token_id: u32,
    /// The token before a picture or a video.
    pub vision_start_token_id: u32,
    /// The token behind a picture or a video.
    pub vision_end_token_id: u32,
}

crate::models::spelling::spelled!(Config, |fields| {
    // Where the head is not tied, files say so here and not in the text.
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
