//! The numbers of a `config.json`.

use candle_nn::Activation;
use serde::Deserialize;

/// Defaults of numbers that a `config.json` omits.
mod default {
    use candle_nn::Activation;

    pub fn head_dim() -> usize {
        256
    }
    pub fn global_head_dim() -> usize {
        512
    }
    pub fn activation() -> Activation {
        Activation::GeluPytorchTanh
    }
    pub fn heads() -> usize {
        8
    }
    pub fn kv_heads() -> usize {
        4
    }
    pub fn norm_eps() -> f64 {
        1e-6
    }
    pub fn rope_theta() -> f64 {
        1e6
    }
    pub fn vocab() -> usize {
        262_144
    }
    pub fn query_pre_attn_scalar() -> usize {
        256
    }
    pub fn positions() -> usize {
        131_072
    }
    pub fn tied() -> bool {
        true
    }
    pub fn pattern() -> usize {
        6
    }
    pub fn image_token() -> usize {
        258_880
    }
    pub fn audio_token() -> usize {
        258_881
    }
    pub fn video_token() -> usize {
        258_884
    }
}

/// The rotation of one kind of layers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Gemma4RopeLayerParams {
    /// Base of the frequencies.
    pub rope_theta: Option<f64>,
    /// Not used: layers with a window are `default`, the others `proportional`.
    pub rope_type: Option<String>,
    /// Fraction of each head that is rotated.
    pub partial_rotary_factor: Option<f64>,
}

/// The rotation of layers, by kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Gemma4RopeParameters {
    /// Layers that see everything.
    pub full_attention: Option<Gemma4RopeLayerParams>,
    /// Layers with a window.
    pub sliding_attention: Option<Gemma4RopeLayerParams>,
    /// Base of the frequencies, in models of one kind of layers.
    pub rope_theta: Option<f64>,
    /// Not used.
    pub rope_type: Option<String>,
    /// Not used.
    pub partial_rotary_factor: Option<f64>,
}

/// The numbers of the decoder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(remote = "Self")]
pub struct Gemma4TextConfig {
    /// Whether the projections of attention have biases.
    #[serde(default)]
    pub attention_bias: bool,
    /// Head dimension of the layers with a window.
    #[serde(default = "default::head_dim")]
    pub head_dim: usize,
    /// Activation of the MLP's gate.
    #[serde(default = "default::activation")]
    pub hidden_activation: Activation,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    #[serde(default = "default::heads")]
    pub num_attention_heads: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Key and value heads, in layers that see everything only without `num_global_key_value_heads`.
    #[serde(default = "default::kv_heads")]
    pub num_key_value_heads: usize,
    /// RMS norm epsilon, added to the mean square.
    #[serde(default = "default::norm_eps")]
    pub rms_norm_eps: f64,
    /// Base of the frequencies in layers that see everything, unless `rope_parameters` has one.
    #[serde(default = "default::rope_theta")]
    pub rope_theta: f64,
    /// Tokens in the vocabulary.
    #[serde(default = "default::vocab")]
    pub vocab_size: usize,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: usize,
    /// The cap of the logits.
    pub final_logit_softcapping: Option<f64>,
    /// Not used: scores are not divided.
    #[serde(default = "default::query_pre_attn_scalar")]
    pub query_pre_attn_scalar: usize,
    /// Maximum sequence length, in tokens.
    #[serde(default = "default::positions")]
    pub max_position_embeddings: usize,
    /// Whether the output layer shares the token table's weight.
    #[serde(default = "default::tied")]
    pub tie_word_embeddings: bool,
    /// Not used: `layer_types` lists the layers with a window.
    #[serde(default = "default::pattern", alias = "_sliding_window_pattern")]
    pub sliding_window_pattern: usize,
    /// `sliding_attention` or `full_attention` for each layer.
    pub layer_types: Vec<String>,
    /// Head dimension of the layers without a window.
    #[serde(default = "default::global_head_dim")]
    pub global_head_dim: usize,
    /// Key and value heads of the layers without a window; default: `num_key_value_heads`.
    pub num_global_key_value_heads: Option<usize>,
    /// Rotary parameters of the layers.
    pub rope_parameters: Option<Gemma4RopeParameters>,
    /// With `vision`, tokens of an image also see its later ones in layers with a window. `all` is refused.
    pub use_bidirectional_attention: Option<String>,
    /// No effect: attention is fused on every device.
    #[serde(default)]
    pub use_flash_attn: bool,
}

crate::models::spelling::spelled!(Gemma4TextConfig, global_sizes);

/// The sizes of layers with full attention, which Transformers 5 writes by layer.
fn global_sizes(fields: &mut crate::models::spelling::Fields) -> crate::models::spelling::Changed {
    let layers = match fields.get("per_layer_config") {
        Some(serde_json::Value::Object(layers)) => layers.clone(),
        _ => return Ok(()),
    };
    let full = |layer: &String| {
        let layer: usize = layer.parse().ok()?;
        let kind = fields.get("layer_types")?.get(layer)?.as_str()?;
        (kind == "full_attention").then_some(())
    };
    let mut found: Option<&serde_json::Value> = None;
    for (layer, sizes) in &layers {
        if full(layer).is_none() || found.is_some_and(|found| found != sizes) {
            return Err(format!(
                "per_layer_config: layer {layer} has {sizes}; only one form of all layers with full attention is supported"
            ));
        }
        found = Some(sizes);
    }
    if let Some(sizes) = found {
        // What a layer does not say is as in the others.
        let head_dim = sizes
            .get("head_dim")
            .or_else(|| fields.get("head_dim"))
            .cloned();
        if let Some(head_dim) = head_dim {
            fields.entry("global_head_dim").or_insert(head_dim);
        }
        if let Some(heads) = sizes.get("num_key_value_heads") {
            fields
                .entry("num_global_key_value_heads")
                .or_insert(heads.clone());
        }
    } else if let Some(head_dim) = fields.get("head_dim").cloned() {
        fields.entry("global_head_dim").or_insert(head_dim);
    }
    Ok(())
}

impl Gemma4TextConfig {
    /// The number of positions seen in layers with a window: `sliding_window`, or with attention to both sides half of it plus one.
    pub fn effective_sliding_window(&self) -> usize {
        match self.use_bidirectional_attention.as_deref() {
            Some("all") => self.sliding_window / 2 + 1,
            _ => self.sliding_window,
        }
    }

    fn rope(&self, full: bool) -> Option<&Gemma4RopeLayerParams> {
        let parameters = self.rope_parameters.as_ref()?;
        if full {
            parameters.full_attention.as_ref()
        } else {
            parameters.sliding_attention.as_ref()
        }
    }

    /// Fraction of a head that is rotated in layers without a window; default: a quarter.
    pub fn partial_rotary_factor(&self) -> f64 {
        let full = self.rope(true);
        full.and_then(|full| full.partial_rotary_factor)
            .unwrap_or(0.25)
    }

    /// Base of the frequencies in layers with a window; default: 10,000.
    pub fn rope_local_base_freq(&self) -> f64 {
        let sliding = self.rope(false);
        sliding
            .and_then(|sliding| sliding.rope_theta)
            .unwrap_or(10_000.)
    }

    /// Base of the frequencies in layers that see everything.
    pub(super) fn rope_global_base_freq(&self) -> f64 {
        let full = self.rope(true);
        full.and_then(|full| full.rope_theta)
            .unwrap_or(self.rope_theta)
    }

    /// Whether a layer has a window; one that is not in `layer_types` has none.
    pub fn is_sliding(&self, layer_idx: usize) -> bool {
        let kind = self.layer_types.get(layer_idx);
        kind.is_some_and(|kind| kind == "sliding_attention")
    }
}

/// The numbers of the encoder of images; `config.json` leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Gemma4VisionConfig {
    /// Size of a patch's vector.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Head dimension, a multiple of 4.
    pub head_dim: usize,
    /// Activation of the MLP's gate.
    pub hidden_activation: Activation,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// The most rows, and columns, of patches.
    pub position_embedding_size: usize,
    /// Rows and columns of patches that become a token.
    pub pooling_kernel_size: usize,
    /// Not used: the number of an image's tokens is that of its blocks of patches.
    pub default_output_length: usize,
    /// Whether files have a mean and a factor of the tokens.
    pub standardize: bool,
    /// Rotary parameters of the layers.
    pub rope_parameters: Option<Gemma4RopeParameters>,
}

/// The defaults of an empty `config.json`.
impl Default for Gemma4VisionConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 16,
            num_attention_heads: 12,
            num_key_value_heads: 12,
            head_dim: 64,
            hidden_activation: default::activation(),
            rms_norm_eps: 1e-6,
            patch_size: 16,
            position_embedding_size: 10_240,
            pooling_kernel_size: 3,
            default_output_length: 280,
            standardize: false,
            rope_parameters: None,
        }
    }
}

impl Gemma4VisionConfig {
    /// Base of the frequencies; default: 100.
    pub fn rope_theta(&self) -> f64 {
        let theta = |parameters: &Gemma4RopeParameters| {
            let full = parameters.full_attention.as_ref();
            full.and_then(|full| full.rope_theta)
                .or(parameters.rope_theta)
        };
        self.rope_parameters
            .as_ref()
            .and_then(theta)
            .unwrap_or(100.)
    }
}

/// The numbers of the encoder of sound; `config.json` leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Gemma4AudioConfig {
    /// Bands of the spectrogram.
    pub input_feat_size: usize,
    /// Size of a frame's vector.
    pub hidden_size: usize,
    /// Size of what the encoder gives; `hidden_size` where it is none.
    pub output_proj_dims: Option<usize>,
    /// Frames of a block of attention.
    #[serde(alias = "attention_chunk_size")]
    pub conf_attention_chunk_size: usize,
    /// Number of frames that a frame sees up to itself.
    #[serde(alias = "attention_context_left")]
    pub conf_attention_context_left: usize,
    /// Number of later frames that a frame sees.
    #[serde(alias = "attention_context_right")]
    pub conf_attention_context_right: usize,
    /// Replaces the scores of masked frames.
    #[serde(alias = "attention_invalid_logits_value")]
    pub conf_attention_invalid_logits_value: f64,
    /// The cap of scores.
    #[serde(alias = "attention_logit_cap")]
    pub conf_attention_logit_cap: f64,
    /// Heads, which divide `hidden_size`.
    #[serde(alias = "num_attention_heads")]
    pub conf_num_attention_heads: usize,
    /// Layers.
    #[serde(alias = "num_hidden_layers")]
    pub conf_num_hidden_layers: usize,
    /// Kernel size of the causal convolutions, in frames.
    #[serde(alias = "conv_kernel_size")]
    pub conf_conv_kernel_size: usize,
    /// Factor by which the last step reduces the number of frames.
    pub conf_reduction_factor: usize,
    /// Factor of the outputs of feed-forward blocks.
    #[serde(alias = "residual_weight")]
    pub conf_residual_weight: f64,
    /// Channels of the two convolutions of the spectrogram.
    #[serde(alias = "subsampling_conv_channels")]
    pub sscp_conv_channel_size: Vec<usize>,
    /// Their kernels, frames and bands; both are the frames'.
    pub sscp_conv_kernel_size: Vec<Vec<usize>>,
    /// Their strides, frames and bands; both are the frames'.
    pub sscp_conv_stride_size: Vec<Vec<usize>>,
    /// Not used by the encoder.
    pub vocab_size: usize,
    /// Not used: the norms of the convolutions have `rms_norm_eps`.
    pub sscp_conv_group_norm_eps: f64,
    /// Not used: the norms of the convolutions have `rms_norm_eps`.
    pub sscp_conv_eps: f64,
    /// Norm epsilon, added to the mean square or the variance.
    pub rms_norm_eps: f64,
    /// The bound to which activations are clamped.
    pub gradient_clipping: f64,
}

/// The defaults of an empty `config.json`.
impl Default for Gemma4AudioConfig {
    fn default() -> Self {
        Self {
            input_feat_size: 128,
            hidden_size: 1024,
            output_proj_dims: Some(1536),
            conf_attention_chunk_size: 12,
            conf_attention_context_left: 13,
            conf_attention_context_right: 0,
            conf_attention_invalid_logits_value: -1e9,
            conf_attention_logit_cap: 50.,
            conf_num_attention_heads: 8,
            conf_num_hidden_layers: 12,
            conf_conv_kernel_size: 5,
            conf_reduction_factor: 1,
            conf_residual_weight: 0.5,
            sscp_conv_channel_size: vec![128, 32],
            sscp_conv_kernel_size: vec![vec![3, 3]; 2],
            sscp_conv_stride_size: vec![vec![2, 2]; 2],
            vocab_size: 128,
            sscp_conv_group_norm_eps: 1e-6,
            sscp_conv_eps: 1e-3,
            rms_norm_eps: 1e-6,
            gradient_clipping: 1e10,
        }
    }
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Gemma4Config {
    /// Configuration of the decoder.
    pub text_config: Gemma4TextConfig,
    /// Configuration of the vision encoder.
    pub vision_config: Gemma4VisionConfig,
    /// Configuration of the audio encoder, if the model has one.
    pub audio_config: Option<Gemma4AudioConfig>,
    /// The placeholder token of a part of an image.
    #[serde(default = "default::image_token")]
    pub image_token_id: usize,
    /// The placeholder token of a part of a sound.
    #[serde(default = "default::audio_token")]
    pub audio_token_id: usize,
    /// The placeholder token of a part of a video. The model does not use it.
    #[serde(default = "default::video_token")]
    pub video_token_id: usize,
}
