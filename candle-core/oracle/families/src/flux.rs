//! FLUX.1: the transformer over dense and quantised weights, the autoencoder, and their surroundings.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{Module, Result, Shape, Tensor};
use candle_transformers::models::flux::{
    autoencoder, model, quantized_model, sampling, WithForward,
};
use candle_transformers::quantized_var_builder;
use std::fs::File;

pub const RUNS: &[Run] = &[
    ("flux", flux),
    ("quantized flux", quantized),
    ("flux places", places),
    ("flux schedule", schedule),
    ("flux autoencoder", autoencoder),
];

fn config(guidance_embed: bool) -> model::Config {
    model::Config {
        in_channels: 16,
        vec_in_dim: 32,
        context_in_dim: 32,
        hidden_size: 64,
        mlp_ratio: 2.,
        num_heads: 2,
        depth: 2,
        depth_single_blocks: 2,
        axes_dim: vec![8, 12, 12],
        theta: 10_000,
        qkv_bias: guidance_embed,
        guidance_embed,
    }
}

/// Latents of 4 x 6 positions, and a text of 5 tokens.
fn state(place: &Place, batch: usize) -> Result<sampling::State> {
    sampling::State::new(
        &place.input("t5", (1, 5, 32))?,
        &place.input("clip", (1, 32))?,
        &place.input("latents", (batch, 4, 4, 6))?,
    )
}

/// One step at different times, and several.
fn outputs(place: &Place, batch: usize, model: &impl WithForward) -> Result<Vec<Tensor>> {
    let s = state(place, batch)?;
    let times = Tensor::new(&[0.9f32, 0.35][..batch], &place.device)?;
    let guidance = Tensor::new(&[3.5f32, 2.][..batch], &place.device)?;
    let (ids, txt_ids) = (&s.img_ids, &s.txt_ids);
    let step = model.forward(
        &s.img,
        ids,
        &s.txt,
        txt_ids,
        &times,
        &s.vec,
        Some(&guidance),
    )?;
    let times = sampling::get_schedule(2, Some((6, 0.5, 1.15)));
    let latents = sampling::denoise(model, &s.img, ids, &s.txt, txt_ids, &s.vec, &times, 3.5)?;
    Ok(vec![step, sampling::unpack(&latents, 29, 48)?])
}

fn flux(place: &Place) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    for guidance in [true, false] {
        let model = model::Flux::new(&config(guidance), place.weights("flux"))?;
        all.extend(outputs(place, 2, &model)?);
    }
    Ok(all)
}

fn quantized(place: &Place) -> Result<Vec<Tensor>> {
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    let mut layer = |name: &str, inputs: usize, outputs: usize| {
        tensors.push((format!("{name}.weight"), vec![outputs, inputs]));
        tensors.push((format!("{name}.bias"), vec![outputs]));
    };
    layer("img_in", 16, 64);
    layer("txt_in", 32, 64);
    for (name, inputs) in [("time_in", 256), ("vector_in", 32), ("guidance_in", 256)] {
        layer(&format!("{name}.in_layer"), inputs, 64);
        layer(&format!("{name}.out_layer"), 64, 64);
    }
    layer("final_layer.linear", 64, 16);
    layer("final_layer.adaLN_modulation.1", 64, 128);
    for block in ["double_blocks.0", "double_blocks.1"] {
        for stream in ["img", "txt"] {
            layer(&format!("{block}.{stream}_mod.lin"), 64, 384);
            layer(&format!("{block}.{stream}_attn.qkv"), 64, 192);
            layer(&format!("{block}.{stream}_attn.proj"), 64, 64);
            layer(&format!("{block}.{stream}_mlp.0"), 64, 128);
            layer(&format!("{block}.{stream}_mlp.2"), 128, 64);
        }
    }
    for block in ["single_blocks.0", "single_blocks.1"] {
        layer(&format!("{block}.linear1"), 64, 320);
        layer(&format!("{block}.linear2"), 192, 64);
        layer(&format!("{block}.modulation.lin"), 64, 192);
    }
    let norms = [
        "double_blocks.0.img_attn",
        "double_blocks.0.txt_attn",
        "double_blocks.1.img_attn",
        "double_blocks.1.txt_attn",
        "single_blocks.0",
        "single_blocks.1",
    ];
    for block in norms {
        for norm in ["query_norm", "key_norm"] {
            tensors.push((format!("{block}.norm.{norm}.scale"), vec![32]));
        }
    }
    // Numbers, not blocks: a different rounding of one activation to 8 bits changes everything after it.
    let made = tensors.iter().map(|(name, dims)| {
        let tensor = weight(name, &Shape::from(dims.as_slice()))?;
        Ok((name.as_str(), QTensor::quantize(&tensor, GgmlDType::F32)?))
    });
    let made = made.collect::<Result<Vec<_>>>()?;
    let tensors: Vec<_> = made.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let file = place.folder.join("flux.gguf");
    gguf_file::write(&mut File::create(&file)?, &[], &tensors)?;
    let vb = quantized_var_builder::VarBuilder::from_gguf(file, &place.device)?;
    let model = quantized_model::Flux::new(&config(true), vb)?;
    // One picture, since upstream supports only one with quantised weights.
    outputs(place, 1, &model)
}

fn places(place: &Place) -> Result<Vec<Tensor>> {
    let s = state(place, 2)?;
    let embed = model::EmbedNd::new(32, 10_000, vec![8, 12, 12]);
    // More rows and columns than the latents have.
    let far = (&s.img_ids * 50.)?;
    Ok(vec![
        embed.forward(&s.img_ids)?,
        embed.forward(&far)?,
        s.img,
        s.img_ids,
        (s.txt_ids + 1.)?,
        s.txt,
        s.vec,
    ])
}

fn schedule(place: &Place) -> Result<Vec<Tensor>> {
    let schedules = [
        sampling::get_schedule(4, None),
        sampling::get_schedule(7, Some((4096, 0.5, 1.15))),
        sampling::get_schedule(3, Some((300, 0.5, 1.15))),
    ];
    let all = schedules
        .into_iter()
        .map(|times| Tensor::from_iter(times.into_iter().map(|t| t as f32), &place.device));
    all.collect()
}

fn autoencoder(place: &Place) -> Result<Vec<Tensor>> {
    let config = autoencoder::Config {
        ch: 32,
        ch_mult: vec![1, 2, 1],
        num_res_blocks: 1,
        z_channels: 4,
        ..autoencoder::Config::dev()
    };
    let vb = place.weights("flux autoencoder");
    let encoder = autoencoder::Encoder::new(&config, vb.pp("encoder"))?;
    let model = autoencoder::AutoEncoder::new(&config, vb)?;
    let moments = encoder.forward(&place.input("picture", (2, 3, 20, 16))?)?;
    let mean = autoencoder::DiagonalGaussian::new(false, 1)?.forward(&moments)?;
    let pictures = model.decode(&place.input("latents", (2, 4, 5, 4))?)?;
    Ok(vec![moments, mean, pictures])
}
