//! Models of images.

use crate::weights::Place;
use candle_core::{Module, Result, Tensor};
use candle_transformers::models::stable_diffusion::{unet_2d, vae};
use candle_transformers::models::{clip, convnext, resnet, vit};

pub fn clip(place: &Place) -> Result<Vec<Tensor>> {
    let mut config = clip::ClipConfig::vit_base_patch32();
    config.image_size = 32;
    let text = &mut config.text_config;
    text.vocab_size = 128;
    text.embed_dim = 64;
    text.projection_dim = 48;
    text.intermediate_size = 96;
    text.max_position_embeddings = 16;
    text.num_hidden_layers = 2;
    text.num_attention_heads = 4;
    let vision = &mut config.vision_config;
    vision.embed_dim = 64;
    vision.projection_dim = 48;
    vision.intermediate_size = 96;
    vision.num_hidden_layers = 2;
    vision.num_attention_heads = 4;
    vision.image_size = 32;
    vision.patch_size = 8;
    let model = clip::ClipModel::new(place.weights("clip"), &config)?;
    let ids = place.tokens("clip", 10, 128)?;
    let (per_text, per_image) = model.forward(&place.input("clip", (2, 3, 32, 32))?, &ids)?;
    Ok(vec![per_text, per_image])
}

pub fn vit(place: &Place) -> Result<Vec<Tensor>> {
    let config = vit::Config {
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 96,
        image_size: 32,
        patch_size: 8,
        ..vit::Config::vit_base_patch16_224()
    };
    let model = vit::Model::new(&config, 10, place.weights("vit"))?;
    Ok(vec![model.forward(&place.input("vit", (2, 3, 32, 32))?)?])
}

pub fn resnet18(place: &Place) -> Result<Vec<Tensor>> {
    let model = resnet::resnet18(10, place.weights("resnet"))?;
    Ok(vec![model.forward(&place.input("resnet", (1, 3, 48, 48))?)?])
}

pub fn convnext(place: &Place) -> Result<Vec<Tensor>> {
    let config = convnext::Config::atto();
    let model = convnext::convnext(&config, 10, place.weights("convnext"))?;
    Ok(vec![
        model.forward(&place.input("convnext", (1, 3, 64, 64))?)?
    ])
}

/// Stable Diffusion's noise predictor with two resolutions, one of them with cross attention.
pub fn unet(place: &Place) -> Result<Vec<Tensor>> {
    let block = |out_channels, use_cross_attn| unet_2d::BlockConfig {
        out_channels,
        use_cross_attn,
        attention_head_dim: 4,
    };
    let config = unet_2d::UNet2DConditionModelConfig {
        blocks: vec![block(32, Some(1)), block(64, None)],
        center_input_sample: false,
        cross_attention_dim: 24,
        downsample_padding: 1,
        flip_sin_to_cos: true,
        freq_shift: 0.,
        layers_per_block: 1,
        mid_block_scale_factor: 1.,
        norm_eps: 1e-5,
        norm_num_groups: 8,
        sliced_attention_size: None,
        use_linear_projection: false,
    };
    let model = unet_2d::UNet2DConditionModel::new(place.weights("unet"), 4, 4, false, config)?;
    let text = place.input("unet text", (1, 7, 24))?;
    Ok(vec![model.forward(
        &place.input("unet", (1, 4, 16, 16))?,
        5.,
        &text,
    )?])
}

pub fn vae_decoder(place: &Place) -> Result<Vec<Tensor>> {
    let config = vae::AutoEncoderKLConfig {
        block_out_channels: vec![16, 32],
        layers_per_block: 1,
        latent_channels: 4,
        norm_num_groups: 8,
        use_quant_conv: true,
        use_post_quant_conv: true,
    };
    let model = vae::AutoEncoderKL::new(place.weights("vae"), 3, 3, config)?;
    Ok(vec![model.decode(&place.input("vae", (1, 4, 8, 8))?)?])
}
