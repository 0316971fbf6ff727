//! The configuration of a checkpoint in diffusers' layout, which has a folder for each network.

use std::sync::Arc;

use candle_core::{bail, Error, Result};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{json, Value};

use super::ddim::DDIMSchedulerConfig;
use super::euler_ancestral_discrete::EulerAncestralDiscreteSchedulerConfig;
use super::schedulers::{BetaSchedule, PredictionType, SchedulerConfig, TimestepSpacing};
use super::unet_2d::{BlockConfig, UNet2DConditionModelConfig};
use super::vae::AutoEncoderKLConfig;
use super::StableDiffusionConfig;
use crate::models::clip::text_model::{Activation, ClipTextConfig};

/// The texts of a checkpoint's configuration files. Not in Candle's interface.
#[derive(Debug, Clone, Copy)]
pub struct DiffusersFiles<'a> {
    /// `text_encoder/config.json`.
    pub text_encoder: &'a str,
    /// `unet/config.json`.
    pub unet: &'a str,
    /// `vae/config.json`.
    pub vae: &'a str,
    /// `scheduler/scheduler_config.json`.
    pub scheduler: &'a str,
}

impl StableDiffusionConfig {
    /// The configuration of a checkpoint with one encoder of texts, such as 1.5, 2.1, Turbo and models fine-tuned from them, for images of
    /// this height and width in pixels, or of the size that the UNet was trained for. Not in Candle's interface.
    ///
    /// Of the schedulers, DDIM and PNDM become [DDIM](super::ddim), Euler and Euler ancestral become
    /// [Euler ancestral](super::euler_ancestral_discrete), with the file's betas, spacing and prediction. In a single step both Euler
    /// methods are the same.
    ///
    /// # Errors
    /// A file is not the configuration that it should be, or asks for what these networks do not have, such as SDXL's second text encoder
    /// and the sizes that its UNet reads.
    pub fn from_diffusers(
        files: &DiffusersFiles,
        height: Option<usize>,
        width: Option<usize>,
    ) -> Result<Self> {
        let (unet, side) = unet(files.unet)?;
        let (autoencoder, latent_scale) = autoencoder(files.vae)?;
        let config = Self {
            width: width.unwrap_or(side),
            height: height.unwrap_or(side),
            clip: text(files.text_encoder)?.into(),
            clip2: None,
            autoencoder,
            unet,
            scheduler: scheduler(files.scheduler)?,
            latent_scale,
        };
        config.check_size()?;
        Ok(config)
    }
}

fn parsed<T: DeserializeOwned>(file: &str, json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|err| Error::msg(format!("{file}: {err}")))
}

/// Checks fields that may be absent or null, and otherwise have one supported value.
fn only(file: &str, json: &str, fields: &[(&str, Value)]) -> Result<()> {
    let json: Value = parsed(file, json)?;
    for (name, supported) in fields {
        let found = &json[name];
        if !found.is_null() && found != supported {
            bail!("{file}: {name} is {found}; only {supported} is supported")
        }
    }
    Ok(())
}

fn text(json: &str) -> Result<ClipTextConfig> {
    #[derive(Deserialize)]
    struct File {
        vocab_size: usize,
        hidden_size: usize,
        hidden_act: Activation,
        intermediate_size: usize,
        max_position_embeddings: usize,
        num_hidden_layers: usize,
        num_attention_heads: usize,
    }
    let file: File = parsed("text_encoder/config.json", json)?;
    Ok(ClipTextConfig {
        vocab_size: file.vocab_size,
        embed_dim: file.hidden_size,
        activation: file.hidden_act,
        intermediate_size: file.intermediate_size,
        max_position_embeddings: file.max_position_embeddings,
        pad_with: None,
        num_hidden_layers: file.num_hidden_layers,
        num_attention_heads: file.num_attention_heads,
        projection_dim: file.hidden_size,
    })
}

/// A number for all blocks, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
enum PerBlock {
    All(usize),
    Each(Vec<usize>),
}

impl PerBlock {
    fn of(&self, name: &str, block: usize) -> Result<usize> {
        match self {
            Self::All(number) => Ok(*number),
            Self::Each(numbers) => match numbers.get(block) {
                Some(number) => Ok(*number),
                None => bail!(
                    "unet/config.json: {name} has {} numbers; expected one for each block",
                    numbers.len()
                ),
            },
        }
    }
}

/// The UNet, and the side of the images that it was trained for.
fn unet(json: &str) -> Result<(UNet2DConditionModelConfig, usize)> {
    #[derive(Deserialize)]
    struct File {
        sample_size: usize,
        block_out_channels: Vec<usize>,
        down_block_types: Vec<String>,
        up_block_types: Vec<String>,
        attention_head_dim: PerBlock,
        num_attention_heads: Option<PerBlock>,
        transformer_layers_per_block: Option<PerBlock>,
        cross_attention_dim: usize,
        layers_per_block: usize,
        norm_num_groups: usize,
        norm_eps: f64,
        flip_sin_to_cos: bool,
        freq_shift: f64,
        downsample_padding: usize,
        mid_block_scale_factor: f64,
        #[serde(default)]
        center_input_sample: bool,
        #[serde(default)]
        use_linear_projection: bool,
    }
    let name = "unet/config.json";
    let fields = [
        ("act_fn", json!("silu")),
        ("addition_embed_type", Value::Null),
        ("class_embed_type", Value::Null),
        ("conv_in_kernel", json!(3)),
        ("conv_out_kernel", json!(3)),
        ("dual_cross_attention", json!(false)),
        ("encoder_hid_dim", Value::Null),
        ("in_channels", json!(4)),
        ("mid_block_type", json!("UNetMidBlock2DCrossAttn")),
        ("only_cross_attention", json!(false)),
        ("out_channels", json!(4)),
        ("resnet_time_scale_shift", json!("default")),
        ("time_cond_proj_dim", Value::Null),
        ("time_embedding_type", json!("positional")),
    ];
    only(name, json, &fields)?;
    let file: File = parsed(name, json)?;
    let count = file.block_out_channels.len();
    if [&file.down_block_types, &file.up_block_types].map(Vec::len) != [count, count] {
        bail!("{name}: down_block_types and up_block_types must have {count} names, as block_out_channels has numbers")
    }
    let heads = file
        .num_attention_heads
        .as_ref()
        .unwrap_or(&file.attention_head_dim);
    let depth = file.transformer_layers_per_block;
    let depth = depth.unwrap_or(PerBlock::All(1));
    let block = |i: usize| {
        let up = &file.up_block_types[count - 1 - i];
        let use_cross_attn = match (file.down_block_types[i].as_str(), up.as_str()) {
            ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D") => {
                Some(depth.of("transformer_layers_per_block", i)?)
            }
            ("DownBlock2D", "UpBlock2D") => None,
            (down, up) => bail!(
                "{name}: a block of the types {down} and {up} is not supported; supported are CrossAttnDownBlock2D with \
                 CrossAttnUpBlock2D, and DownBlock2D with UpBlock2D"
            ),
        };
        Ok(BlockConfig {
            out_channels: file.block_out_channels[i],
            use_cross_attn,
            attention_head_dim: heads.of("attention_head_dim", i)?,
        })
    };
    let unet = UNet2DConditionModelConfig {
        center_input_sample: file.center_input_sample,
        flip_sin_to_cos: file.flip_sin_to_cos,
        freq_shift: file.freq_shift,
        blocks: (0..count).map(block).collect::<Result<_>>()?,
        layers_per_block: file.layers_per_block,
        downsample_padding: file.downsample_padding,
        mid_block_scale_factor: file.mid_block_scale_factor,
        norm_num_groups: file.norm_num_groups,
        norm_eps: file.norm_eps,
        cross_attention_dim: file.cross_attention_dim,
        sliced_attention_size: None,
        use_linear_projection: file.use_linear_projection,
    };
    Ok((unet, 8 * file.sample_size))
}

/// The autoencoder, and the factor from its latents to those of the UNet.
fn autoencoder(json: &str) -> Result<(AutoEncoderKLConfig, f64)> {
    #[derive(Deserialize)]
    struct File {
        block_out_channels: Vec<usize>,
        layers_per_block: usize,
        norm_num_groups: usize,
        // Files of 1.5 lack it: it is the default of diffusers.
        #[serde(default = "stable_diffusion_1")]
        scaling_factor: f64,
    }
    fn stable_diffusion_1() -> f64 {
        0.18215
    }
    let name = "vae/config.json";
    let fields = [
        ("act_fn", json!("silu")),
        ("in_channels", json!(3)),
        ("latent_channels", json!(4)),
        ("mid_block_add_attention", json!(true)),
        ("out_channels", json!(3)),
        ("shift_factor", Value::Null),
        ("use_post_quant_conv", json!(true)),
        ("use_quant_conv", json!(true)),
    ];
    only(name, json, &fields)?;
    let file: File = parsed(name, json)?;
    if file.block_out_channels.len() != 4 {
        bail!(
            "{name}: block_out_channels has {} numbers; only 4 are supported, which make latents of an eighth of an image's side",
            file.block_out_channels.len()
        )
    }
    let autoencoder = AutoEncoderKLConfig {
        block_out_channels: file.block_out_channels,
        layers_per_block: file.layers_per_block,
        norm_num_groups: file.norm_num_groups,
        ..Default::default()
    };
    Ok((autoencoder, file.scaling_factor))
}

fn scheduler(json: &str) -> Result<Arc<dyn SchedulerConfig>> {
    #[derive(Deserialize)]
    struct File {
        #[serde(rename = "_class_name")]
        class: String,
        beta_start: f64,
        beta_end: f64,
        beta_schedule: String,
        num_train_timesteps: usize,
        #[serde(default)]
        steps_offset: usize,
        prediction_type: Option<String>,
        timestep_spacing: Option<String>,
    }
    let name = "scheduler/scheduler_config.json";
    let fields = [
        ("clip_sample", json!(false)),
        ("rescale_betas_zero_snr", json!(false)),
        ("set_alpha_to_one", json!(false)),
        ("thresholding", json!(false)),
        ("trained_betas", Value::Null),
        ("use_karras_sigmas", json!(false)),
    ];
    only(name, json, &fields)?;
    let file: File = parsed(name, json)?;
    let beta_schedule = match file.beta_schedule.as_str() {
        "linear" => BetaSchedule::Linear,
        "scaled_linear" => BetaSchedule::ScaledLinear,
        "squaredcos_cap_v2" => BetaSchedule::SquaredcosCapV2,
        other => bail!("{name}: beta_schedule {other} is not supported; supported are linear, scaled_linear and squaredcos_cap_v2"),
    };
    let prediction_type = match file.prediction_type.as_deref() {
        None | Some("epsilon") => PredictionType::Epsilon,
        Some("v_prediction") => PredictionType::VPrediction,
        Some("sample") => PredictionType::Sample,
        Some(other) => bail!("{name}: prediction_type {other} is not supported; supported are epsilon, v_prediction and sample"),
    };
    let spacing = match file.timestep_spacing.as_deref() {
        None => None,
        Some("leading") => Some(TimestepSpacing::Leading),
        Some("linspace") => Some(TimestepSpacing::Linspace),
        Some("trailing") => Some(TimestepSpacing::Trailing),
        Some(other) => bail!("{name}: timestep_spacing {other} is not supported; supported are leading, linspace and trailing"),
    };
    let (beta_start, beta_end) = (file.beta_start, file.beta_end);
    let (steps_offset, train_timesteps) = (file.steps_offset, file.num_train_timesteps);
    match file.class.as_str() {
        "DDIMScheduler" | "PNDMScheduler" => Ok(Arc::new(DDIMSchedulerConfig {
            beta_start,
            beta_end,
            beta_schedule,
            eta: 0.,
            steps_offset,
            prediction_type,
            train_timesteps,
            // Diffusers' default, as that below.
            timestep_spacing: spacing.unwrap_or(TimestepSpacing::Leading),
        })),
        "EulerDiscreteScheduler" | "EulerAncestralDiscreteScheduler" => {
            Ok(Arc::new(EulerAncestralDiscreteSchedulerConfig {
                beta_start,
                beta_end,
                beta_schedule,
                steps_offset,
                prediction_type,
                train_timesteps,
                timestep_spacing: spacing.unwrap_or(TimestepSpacing::Linspace),
            }))
        }
        other => bail!(
            "{name}: {other} is not supported; supported are DDIMScheduler, PNDMScheduler, EulerDiscreteScheduler and \
             EulerAncestralDiscreteScheduler"
        ),
    }
}
