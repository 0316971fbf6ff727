//! Z-Image: the transformer and its layers, the text encoder, the autoencoder, and their surroundings.
//!
//! Upstream's times of a schedule are compared only if they match its noise: without a shift.

use crate::common::VOCABULARY;
use crate::weights::Place;
use crate::Run;
use candle_core::{DType, Module, Result, Tensor};
use candle_transformers::models::z_image::transformer::{self, Config};
use candle_transformers::models::z_image::{preprocess, sampling, scheduler, text_encoder, vae};

pub const RUNS: &[Run] = &[
    ("z_image transformer", model),
    ("z_image layers", layers),
    ("z_image patches", patches),
    ("z_image text encoder", encoder),
    ("z_image vae", autoencoder),
    ("z_image sampling", guidance),
    ("z_image schedule", schedule),
];

fn config() -> Config {
    Config {
        in_channels: 4,
        dim: 48,
        n_layers: 2,
        n_refiner_layers: 1,
        n_heads: 2,
        n_kv_heads: 2,
        cap_feat_dim: 20,
        axes_dims: vec![8, 4, 12],
        axes_lens: vec![48, 16, 16],
        ..Config::z_image_turbo()
    }
}

/// Texts of 32 tokens and 32 patches: upstream hides the padding of others, or omits it.
fn model(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("z_image");
    let plain = Config {
        qk_norm: false,
        ..config()
    };
    let latents = place.input("z_image latents", (2, 4, 1, 16, 8))?;
    let times = Tensor::new(&[0.1f32, 0.75], &place.device)?;
    let texts = place.input("z_image texts", (64, 20))?;
    let texts = [texts.narrow(0, 0, 32)?, texts.narrow(0, 32, 32)?];
    let (text, mask, _) = preprocess::pad_text_embeddings(&texts, 0.5, &place.device)?;
    let mut outputs = Vec::new();
    for config in [config(), plain] {
        let model = transformer::ZImageTransformer2DModel::new(&config, vb.clone())?;
        outputs.push(model.forward(&latents, &times, &text, &mask)?);
    }
    Ok(outputs)
}

fn layers(place: &Place) -> Result<Vec<Tensor>> {
    let vb = place.weights("z_image layers");
    let (config, device) = (config(), &place.device);
    let xs = place.input("z_image tokens", (2, 6, 48))?;
    let heads = place.input("z_image heads", (2, 6, 2, 24))?;
    let times = Tensor::new(&[3f32, 700.], device)?;
    let mask = Tensor::new(&[[1u8, 1, 1, 1, 1, 0], [1, 1, 0, 1, 0, 0]], device)?;
    let rope = transformer::RopeEmbedder::new(
        256.,
        config.axes_dims.clone(),
        config.axes_lens.clone(),
        device,
        DType::F32,
    )?;
    let places = transformer::create_coordinate_grid((1, 2, 3), (9, 1, 0), device)?;
    let (cos, sin) = rope.forward(&places)?;
    let time = transformer::TimestepEmbedder::new(48, 32, vb.pp("t"))?.forward(&times)?;
    let plain = transformer::ZImageTransformerBlock::new(&config, false, vb.pp("plain"))?;
    let timed = transformer::ZImageTransformerBlock::new(&config, true, vb.pp("timed"))?;
    let attention = transformer::ZImageAttention::new(&config, vb.pp("attention"))?;
    let norm = transformer::QkNorm::new(24, 1e-3, vb.clone())?;
    let (q, k) = norm.forward(&heads, &xs.reshape((2, 6, 2, 24))?)?;
    Ok(vec![
        plain.forward(&xs, None, &cos, &sin, None)?,
        timed.forward(&xs, Some(&mask), &cos, &sin, Some(&time))?,
        attention.forward(&xs, Some(&mask), &cos, &sin)?,
        attention.forward(&xs, None, &cos, &sin)?,
        transformer::apply_rotary_emb(&heads, &cos, &sin)?,
        transformer::FeedForward::new(48, 40, vb.pp("feed_forward"))?.forward(&xs)?,
        transformer::FinalLayer::new(48, 16, vb.pp("final"))?.forward(&xs, &time)?,
        transformer::LayerNormNoParams::new(1e-3).forward(&xs)?,
        cos,
        sin,
        time,
        q,
        k,
    ])
}

/// For pictures: with several frames upstream mixes numbers of different positions.
fn patches(place: &Place) -> Result<Vec<Tensor>> {
    let latents = place.input("z_image latents", (2, 3, 1, 4, 6))?;
    let (patches, size) = transformer::patchify(&latents, 2, 1)?;
    let more = Tensor::cat(&[&patches, &patches], 1)?;
    let back = transformer::unpatchify(&more, size, 2, 1, 3)?;
    let grid = transformer::create_coordinate_grid((2, 3, 4), (5, 0, 1), &place.device)?;
    Ok(vec![patches, back, grid.to_dtype(DType::F32)?])
}

fn encoder(place: &Place) -> Result<Vec<Tensor>> {
    let config = text_encoder::TextEncoderConfig {
        vocab_size: VOCABULARY,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 12,
        max_position_embeddings: 16,
        ..text_encoder::TextEncoderConfig::z_image()
    };
    let biased = text_encoder::TextEncoderConfig {
        attention_bias: true,
        ..config.clone()
    };
    let ids = place
        .tokens("z_image", 18, VOCABULARY as u64)?
        .reshape((2, 9))?;
    let mut outputs = Vec::new();
    for config in [config, biased] {
        let vb = place.weights("z_image text");
        let model = text_encoder::ZImageTextEncoder::new(&config, vb)?;
        outputs.push(model.forward(&ids)?);
        outputs.push(model.forward(&ids.narrow(1, 0, 1)?)?);
    }
    Ok(outputs)
}

fn autoencoder(place: &Place) -> Result<Vec<Tensor>> {
    let config = vae::VaeConfig {
        block_out_channels: vec![16, 24, 16],
        layers_per_block: 1,
        latent_channels: 4,
        norm_num_groups: 8,
        ..vae::VaeConfig::z_image()
    };
    let vb = place.weights("z_image vae");
    let encoder = vae::Encoder::new(&config, vb.pp("encoder"))?;
    let model = vae::AutoEncoderKL::new(&config, vb)?;
    let moments = encoder.forward(&place.input("picture", (2, 3, 20, 16))?)?;
    let mean = vae::DiagonalGaussian::new(false).forward(&moments)?;
    let pictures = model.decode(&place.input("latents", (2, 4, 5, 4))?)?;
    Ok(vec![moments, mean, pictures])
}

fn guidance(place: &Place) -> Result<Vec<Tensor>> {
    let with = place.input("z_image with", (2, 4, 3, 5))?;
    let without = place.input("z_image without", (2, 4, 3, 5))?;
    let config = |normalized| sampling::CfgConfig {
        guidance_scale: 3.,
        cfg_truncation: 0.5,
        cfg_normalization: normalized,
    };
    let guided = |normalized, time| sampling::apply_cfg(&with, &without, &config(normalized), time);
    let texts = [
        place.input("z_image short", (3, 6))?,
        place.input("z_image long", (40, 6))?,
    ];
    let inputs = preprocess::prepare_inputs(&with, &texts, &place.device)?;
    let lengths = inputs.text_lengths.iter().map(|len| *len as f32);
    Ok(vec![
        guided(false, 0.4)?,
        guided(true, 0.4)?,
        guided(true, 0.6)?,
        sampling::scale_noise(&with, 0.7)?,
        sampling::postprocess_image(&(&with * 1.2)?)?,
        Tensor::from_iter(lengths, &place.device)?,
        inputs.latents,
        inputs.cap_feats,
        inputs.cap_mask,
        preprocess::create_attention_mask(3, 5, &place.device)?,
        preprocess::batch_text_embedding(&texts[0], 2)?,
        preprocess::batch_mask(&preprocess::create_attention_mask(2, 2, &place.device)?, 3)?,
    ])
}

fn schedule(place: &Place) -> Result<Vec<Tensor>> {
    let tensor =
        |numbers: &[f64]| Tensor::from_iter(numbers.iter().map(|x| *x as f32), &place.device);
    let config = |shift, use_dynamic_shifting| scheduler::SchedulerConfig {
        num_train_timesteps: 50,
        shift,
        use_dynamic_shifting,
    };
    let mu = scheduler::calculate_shift(1024, 256, 4096, 0.5, 1.15);
    let mut outputs = vec![tensor(&sampling::get_schedule(5, mu))?, tensor(&[mu])?];
    for (config, mu) in [
        (config(3., false), None),
        (config(1., false), None),
        (config(3., true), Some(mu)),
        (config(3., true), None),
    ] {
        let plain = config.shift == 1. || config.use_dynamic_shifting && mu.is_none();
        let mut scheduler = scheduler::FlowMatchEulerDiscreteScheduler::new(config);
        outputs.push(tensor(&scheduler.timesteps)?);
        outputs.push(tensor(&scheduler.sigmas)?);
        outputs.push(tensor(&[scheduler.sigma_min, scheduler.sigma_max])?);
        scheduler.set_timesteps(4, mu);
        outputs.push(tensor(&scheduler.sigmas)?);
        if plain {
            outputs.push(tensor(&scheduler.timesteps)?);
            let mut sample = place.input("z_image sample", (2, 3))?;
            while !scheduler.is_complete() {
                let towards = (&sample * scheduler.current_timestep_normalized())?;
                sample = scheduler.step(&towards, &sample)?;
            }
            outputs.push(sample);
        }
    }
    Ok(outputs)
}
