//! The files of a checkpoint in diffusers' layout, and a tiny one with random weights.

use std::path::PathBuf;

use candle_core::{DType, Device, Result};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::stable_diffusion::DiffusersFiles;
use serde_json::json;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::common::{self, Checkpoint};
use crate::tokenizer::TokenizerFiles;

/// The files of a model.
pub struct Files {
    /// Those of the text encoder, the UNet, the autoencoder and the scheduler.
    configs: [String; 4],
    pub tokenizer: TokenizerFiles,
    /// Safetensors files of the text encoder, the UNet and the autoencoder; random weights without them.
    weights: Option<[PathBuf; 3]>,
}

/// The files of a folder, or of a model on the Hub.
pub fn open(model: &str, half: bool) -> Result<Files> {
    let files = Checkpoint::open(model)?;
    let variant = if half { ".fp16" } else { "" };
    Ok(Files {
        configs: [
            files.text("text_encoder/config.json")?,
            files.text("unet/config.json")?,
            files.text("vae/config.json")?,
            files.text("scheduler/scheduler_config.json")?,
        ],
        tokenizer: TokenizerFiles {
            vocab: files.text("tokenizer/vocab.json")?,
            merges: files.text("tokenizer/merges.txt")?,
            special: files.text("tokenizer/special_tokens_map.json")?,
        },
        weights: Some([
            files.file(&format!("text_encoder/model{variant}.safetensors"))?,
            files.file(&format!(
                "unet/diffusion_pytorch_model{variant}.safetensors"
            ))?,
            files.file(&format!("vae/diffusion_pytorch_model{variant}.safetensors"))?,
        ]),
    })
}

/// The layout of Stable Diffusion 1.5 with few channels. Its tokens are bytes.
pub fn tiny() -> Files {
    let text = json!({"vocab_size": 514, "hidden_size": 32, "hidden_act": "quick_gelu", "intermediate_size": 64,
        "max_position_embeddings": 77, "num_hidden_layers": 2, "num_attention_heads": 4});
    let unet = json!({"sample_size": 16, "block_out_channels": [32, 64], "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "attention_head_dim": 4, "cross_attention_dim": 32,
        "layers_per_block": 1, "norm_num_groups": 8, "norm_eps": 1e-5, "flip_sin_to_cos": true, "freq_shift": 0,
        "downsample_padding": 1, "mid_block_scale_factor": 1});
    let vae =
        json!({"block_out_channels": [8, 8, 16, 16], "layers_per_block": 1, "norm_num_groups": 4});
    let scheduler = json!({"_class_name": "PNDMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
        "num_train_timesteps": 1000, "steps_offset": 1});
    let bytes = ByteLevel::alphabet();
    let ends = bytes.iter().map(|byte| format!("{byte}</w>"));
    let tokens = bytes.iter().map(char::to_string).chain(ends);
    let special = ["<|startoftext|>", "<|endoftext|>"].map(str::to_string);
    let vocab: serde_json::Map<_, _> = tokens
        .chain(special)
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect();
    Files {
        configs: [text, unet, vae, scheduler].map(|config| config.to_string()),
        tokenizer: TokenizerFiles {
            vocab: json!(vocab).to_string(),
            merges: String::new(),
            special: json!({"pad_token": "<|endoftext|>"}).to_string(),
        },
        weights: None,
    }
}

impl Files {
    pub fn configs(&self) -> DiffusersFiles<'_> {
        let [text_encoder, unet, vae, scheduler] = &self.configs;
        DiffusersFiles {
            text_encoder,
            unet,
            vae,
            scheduler,
        }
    }

    /// The weights of the text encoder, the UNet and the autoencoder.
    pub fn weights(&self, dtype: DType, device: &Device) -> Result<[VarBuilder<'static>; 3]> {
        let Some([text, unet, vae]) = &self.weights else {
            let random = || VarBuilder::from_varmap(&VarMap::new(), dtype, device);
            return Ok([random(), random(), random()]);
        };
        let open = |path| common::weights(&[path], dtype, device);
        Ok([open(text)?, open(unet)?, open(vae)?])
    }
}
