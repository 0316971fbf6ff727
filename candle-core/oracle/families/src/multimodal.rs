//! Multimodal language models, and their encoders.

use crate::common::config;
use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{gemma4, paddleocr_vl, qwen3_vl, voxtral};
use std::collections::HashMap;

pub const RUNS: &[Run] = &[
    ("qwen3_vl steps", qwen3_vl_steps),
    ("qwen3_vl pictures", qwen3_vl_pictures),
    ("qwen3_vl videos", qwen3_vl_videos),
    ("voxtral", voxtral),
    ("voxtral generate", voxtral_generate),
    ("voxtral long audio", voxtral_long),
    ("voxtral features", voxtral_features),
    ("gemma4 text", gemma4_text),
    ("gemma4 pictures", gemma4_pictures),
    ("gemma4 sounds", gemma4_sounds),
    ("paddleocr_vl", paddleocr),
    ("paddleocr_vl pictures", paddleocr_pictures),
    ("paddleocr_vl video", paddleocr_video),
    ("paddleocr_vl exports", paddleocr_exports),
    ("paddleocr_vl positions", paddleocr_positions),
];

/// Weights by name; those whose names contain a string are scaled.
struct Scaled(&'static [(&'static str, f64)]);

impl Scaled {
    fn weights(self, place: &Place, model: &str) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self), DType::F32, place.device.clone()).pp(model)
    }
}

impl SimpleBackend for Scaled {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let factors = self.0.iter().filter(|(part, _)| name.contains(part));
        let factor: f64 = factors.map(|(_, factor)| factor).product();
        (weight(name, &s)? * factor)?
            .to_dtype(dtype)?
            .to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// The merger's GELU is Candle's tanh form and exact in ours: near 0 both agree.
const NEAR_ZERO: (&str, f64) = ("linear_fc1", 0.05);

fn qwen3_vl_config(layers: usize) -> Result<qwen3_vl::Config> {
    config(&format!(
        r#"{{"image_token_id": 120, "video_token_id": 121, "vision_start_token_id": 122, "vision_end_token_id": 123,
            "text_config": {{"head_dim": 16, "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": {layers}, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
                "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 5000000.0}},
            "vision_config": {{"depth": 3, "hidden_size": 32, "out_hidden_size": 64, "hidden_act": "gelu_pytorch_tanh",
                "intermediate_size": 48, "num_heads": 4, "patch_size": 4, "num_position_embeddings": 9,
                "deepstack_visual_indexes": [0, 2]}}}}"#
    ))
}

/// Elements of a patch.
const PATCH: usize = 3 * 2 * 4 * 4;

/// Token by token; two of them are complete pictures and one is a frame: Candle has no mask in a prompt, and one axis of positions.
fn qwen3_vl_steps(place: &Place) -> Result<Vec<Tensor>> {
    let name = "qwen3_vl_steps";
    let weights = Scaled(&[NEAR_ZERO]).weights(place, name);
    let model = qwen3_vl::Qwen3VLModel::new(&qwen3_vl_config(3)?, weights)?;
    let ids = place.tokens(name, 8, 120)?;
    let mut outputs = Vec::new();
    for position in 0..8 {
        let id = ids.narrow(1, position, 1)?;
        let patches = place.input(&format!("{name}.{position}"), (4, PATCH))?;
        let grid = Tensor::new(&[[1u32, 2, 2]], &place.device)?;
        let span = vec![vec![(0, 1)]];
        let (visual, none) = ((Some(patches), Some(grid), span), (None, None, vec![]));
        let (image, video) = match position {
            2 | 3 => (visual, none),
            6 => (none, visual),
            _ => (none.clone(), none),
        };
        outputs.push(model.forward(
            &id,
            image.0,
            video.0,
            image.1,
            video.1,
            vec![position + 1],
            image.2,
            video.2,
            &[position],
        )?);
    }
    Ok(outputs)
}

/// Queries of 0 weigh all keys equally, at any position; and the last token of a single layer sees all, with a mask and without.
const ALIKE: (&str, f64) = ("q_norm", 0.);

/// Pictures of several sizes in two rows, one of which ends with a picture.
fn qwen3_vl_pictures(place: &Place) -> Result<Vec<Tensor>> {
    let name = "qwen3_vl_pictures";
    let weights = Scaled(&[NEAR_ZERO, ALIKE]).weights(place, name);
    let model = qwen3_vl::Qwen3VLModel::new(&qwen3_vl_config(1)?, weights)?;
    let ids = place.tokens(name, 24, 120)?.reshape((2, 12))?;
    // 6, 4 and 8 tokens.
    let grids = Tensor::new(&[[1u32, 4, 6], [1, 2, 8], [1, 8, 4]], &place.device)?;
    let patches = place.input("qwen3_vl.patches", (24 + 16 + 32, PATCH))?;
    let spans = vec![vec![(1, 7), (8, 12)], vec![(2, 10)]];
    let logits = model.forward(
        &ids,
        Some(patches),
        None,
        Some(grids),
        None,
        vec![12, 12],
        spans,
        vec![],
        &[0, 0],
    )?;
    Ok(vec![logits])
}

/// A video with separate frames, and a batch dimension before the patches.
fn qwen3_vl_videos(place: &Place) -> Result<Vec<Tensor>> {
    let name = "qwen3_vl_videos";
    let weights = Scaled(&[NEAR_ZERO, ALIKE]).weights(place, name);
    let model = qwen3_vl::Qwen3VLModel::new(&qwen3_vl_config(1)?, weights)?;
    let ids = place.tokens(name, 16, 120)?;
    let grids = Tensor::new(&[[3u32, 4, 4]], &place.device)?;
    let patches = place.input("qwen3_vl.frames", (1, 48, PATCH))?;
    let spans = vec![vec![(1, 5), (6, 10), (12, 16)]];
    let logits = model.forward(
        &ids,
        None,
        Some(patches),
        None,
        Some(grids),
        vec![16],
        vec![],
        spans,
        &[0],
    )?;
    Ok(vec![logits])
}

fn voxtral_config() -> voxtral::VoxtralConfig {
    voxtral::VoxtralConfig {
        audio_config: voxtral::VoxtralEncoderConfig {
            hidden_size: 32,
            intermediate_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_mel_bins: 8,
            max_source_positions: 16,
            ..Default::default()
        },
        text_config: voxtral::VoxtralLlamaConfig {
            hidden_size: 64,
            intermediate_size: 96,
            vocab_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: Some(8),
            use_flash_attn: false,
            max_position_embeddings: 64,
            ..voxtral::VoxtralLlamaConfig::voxtral_3b()
        },
        ..Default::default()
    }
}

/// The GELUs between the convolutions are Candle's tanh form and exact in ours.
const QUIET: (&str, f64) = ("conv", 0.05);

fn voxtral_model(
    place: &Place,
    cfg: &voxtral::VoxtralConfig,
) -> Result<voxtral::VoxtralForConditionalGeneration> {
    let weights = Scaled(&[QUIET]).weights(place, "voxtral");
    voxtral::VoxtralForConditionalGeneration::new(cfg, weights)
}

/// Four tokens of a sound in a text, and two steps.
fn voxtral(place: &Place) -> Result<Vec<Tensor>> {
    let model = voxtral_model(place, &voxtral_config())?;
    let mel = place.input("voxtral", (1, 8, 32))?;
    let ids = Tensor::new(&[[1u32, 24, 24, 7, 24, 24, 9]], &place.device)?;
    let mut cache = cache(place, &model)?;
    let mut outputs = vec![model.get_audio_embeds(&mel)?];
    outputs.push(model.forward(&ids, Some(&mel), &mut cache, 0)?);
    for (i, id) in [11u32, 12].into_iter().enumerate() {
        let id = Tensor::new(&[[id]], &place.device)?;
        outputs.push(model.forward(&id, None, &mut cache, 7 + i)?);
    }
    Ok(outputs)
}

fn cache(
    place: &Place,
    model: &voxtral::VoxtralForConditionalGeneration,
) -> Result<voxtral::VoxtralCache> {
    voxtral::VoxtralCache::new(true, DType::F32, model.text_config(), &place.device)
}

/// The most probable tokens, as f32.
fn voxtral_generate(place: &Place) -> Result<Vec<Tensor>> {
    let model = voxtral_model(place, &voxtral_config())?;
    let mel = place.input("voxtral", (1, 8, 24))?;
    let ids = Tensor::new(&[[1u32, 24, 24, 24, 9]], &place.device)?;
    let config = voxtral::VoxtralGenerationConfig {
        max_new_tokens: 8,
        ..voxtral::VoxtralGenerationConfig::new(place.device.clone())
    };
    let tokens = model.generate(&ids, Some(&mel), config)?;
    Ok(vec![
        Tensor::new(tokens, &place.device)?.to_dtype(DType::F32)?
    ])
}

/// In overlapping chunks, of two sounds; Candle computes a vector of each only if a token is one vector of the encoder.
fn voxtral_long(place: &Place) -> Result<Vec<Tensor>> {
    let mut cfg = voxtral_config();
    cfg.audio_config.intermediate_size = 32;
    let model = voxtral_model(place, &cfg)?;
    let mel = place.input("voxtral.long", (2, 8, 60))?;
    let weights = Scaled(&[QUIET]).weights(place, "voxtral.audio_tower");
    let encoder = voxtral::VoxtralEncoder::new(&cfg.audio_config, weights)?;
    Ok(vec![
        encoder.process_long_audio(&mel, 20, 8)?,
        encoder.process_long_audio(&mel, 24, 0)?,
        model.get_audio_embeds_chunked(&mel, 20, 8)?,
    ])
}

fn voxtral_features(place: &Place) -> Result<Vec<Tensor>> {
    let samples: Vec<f32> = place.input("samples", 5000)?.to_vec1()?;
    let filters: Vec<f32> = place.input("filters", 128 * 201)?.abs()?.to_vec1()?;
    let features = voxtral::extract_features(&samples, &filters, &place.device)?;
    let shape: Vec<f32> = features.dims().iter().map(|dim| *dim as f32).collect();
    // All frames without a sample are equal.
    let heard = features.narrow(2, 0, 40)?.contiguous()?;
    Ok(vec![heard, Tensor::new(shape, &place.device)?])
}

/// Weights by name, in the form of Gemma 4's files: norms of the decoder and of the image encoder are factors. Candle adds 1 to them, and
/// divides the scores of the decoder by the root of `head_dim`.
struct OfGemma4;

impl OfGemma4 {
    fn weights(place: &Place, model: &str) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(Self), DType::F32, place.device.clone()).pp(model)
    }
}

impl SimpleBackend for OfGemma4 {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let mut made = weight(name, &s)?;
        let (decoder, pictures) = (
            name.contains("language_model"),
            name.contains("vision_tower"),
        );
        if (decoder || pictures) && name.ends_with("norm.weight") && cfg!(feature = "webgpu") {
            made = (made + 1.)?;
            if decoder && name.ends_with("q_norm.weight") {
                made = (made / (s.elem_count() as f64).sqrt())?;
            }
        }
        made.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn gemma4_config() -> Result<gemma4::config::Gemma4Config> {
    config(
        r#"{"image_token_id": 120, "audio_token_id": 121,
            "text_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 2, "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32, "vocab_size": 128,
                "sliding_window": 20, "final_logit_softcapping": 30.0, "max_position_embeddings": 64,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 16, "pooling_kernel_size": 2,
                "standardize": true},
            "audio_config": {"input_feat_size": 16, "hidden_size": 32, "output_proj_dims": 24, "attention_chunk_size": 4,
                "attention_context_left": 4, "attention_context_right": 1, "num_attention_heads": 4, "num_hidden_layers": 2,
                "conf_reduction_factor": 2, "subsampling_conv_channels": [8, 4], "attention_logit_cap": 5.0}}"#,
    )
}

fn gemma4_model(place: &Place) -> Result<gemma4::Model> {
    gemma4::Model::new(&gemma4_config()?, OfGemma4::weights(place, "gemma4"))
}

fn gemma4_text(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = gemma4_model(place)?;
    let ids = place.tokens("gemma4", 9, 120)?;
    let mut outputs = vec![model.forward(&ids, 0)?];
    for position in 9..11 {
        outputs.push(model.forward(&ids.narrow(1, position - 6, 1)?, position)?);
    }
    Ok(outputs)
}

/// Two sizes of pictures, and a text that begins with their tokens: Candle overwrites its first positions with them.
fn gemma4_pictures(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = gemma4_model(place)?;
    let pictures = [
        place.input("gemma4.first", (1, 3, 16, 8))?,
        place.input("gemma4.second", (1, 3, 8, 24))?,
    ];
    let encoded = model.vision_tower.forward(&pictures)?;
    let ids = Tensor::new(&[[120u32, 120, 120, 120, 120, 5, 6, 7]], &place.device)?;
    let logits = model.forward_multimodal(&ids, Some(&pictures), None, None, 0)?;
    Ok(vec![encoded, logits])
}

/// Two sounds of different lengths, and a text that begins with the tokens of one.
fn gemma4_sounds(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = gemma4_model(place)?;
    let mel = place.input("gemma4.mel", (2, 46, 16))?;
    let mask: Vec<f32> = (0..92).map(|i| f32::from(i >= 46 + 30)).collect();
    let mask = Tensor::from_vec(mask, (2, 46), &place.device)?;
    let tower = gemma4_config()?
        .audio_config
        .as_ref()
        .map(|cfg| gemma4::AudioModel::new(cfg, OfGemma4::weights(place, "gemma4.audio_tower")));
    let Some(tower) = tower else {
        bail!("no audio_config")
    };
    let (vectors, left) = tower?.forward(&mel, &mask)?;
    let (one, heard) = (mel.narrow(0, 1, 1)?, mask.narrow(0, 1, 1)?);
    let ids = Tensor::new(&[[121u32, 121, 121, 121, 5, 6, 7]], &place.device)?;
    let logits = model.forward_multimodal(&ids, None, Some(&one), Some(&heard), 0)?;
    Ok(vec![vectors, left, logits])
}

fn paddleocr_model(place: &Place) -> Result<paddleocr_vl::PaddleOCRVLModel> {
    let cfg = config(
        r#"{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "image_token_id": 120,
            "video_token_id": 121, "rope_scaling": {"mrope_section": [2, 3, 3]},
            "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 12, "patch_size": 4}}"#,
    )?;
    // The projector's GELU is Candle's tanh form and exact in ours.
    let weights = Scaled(&[("mlp_AR.linear_1", 0.05)]).weights(place, "paddleocr_vl");
    paddleocr_vl::PaddleOCRVLModel::new(&cfg, weights)
}

/// A prompt with a picture of 2 x 3 tokens, and two steps.
fn paddleocr(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = paddleocr_model(place)?;
    let picture = place.input("paddleocr.picture", (1, 3, 16, 24))?;
    let grid = Tensor::new(&[[1u32, 4, 6]], &place.device)?;
    let ids = Tensor::new(
        &[[1u32, 9, 120, 120, 120, 120, 120, 120, 5, 6]],
        &place.device,
    )?;
    let mut outputs = vec![model.encode_image(&picture, &grid)?];
    outputs.push(model.forward(&ids, Some(&picture), Some(&grid), 0)?);
    for (i, id) in [11u32, 12].into_iter().enumerate() {
        let id = Tensor::new(&[[id]], &place.device)?;
        outputs.push(model.forward(&id, None, None, 10 + i)?);
    }
    let tokens = model.generate(&ids, &picture, &grid, 4, 3)?;
    outputs.push(Tensor::new(tokens, &place.device)?.to_dtype(DType::F32)?);
    Ok(outputs)
}

/// Several pictures of one size, and of two.
fn paddleocr_pictures(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = paddleocr_model(place)?;
    let two = place.input("paddleocr.two", (2, 3, 8, 16))?;
    let grids = Tensor::new(&[[1u32, 2, 4], [1, 2, 4]], &place.device)?;
    let ids = Tensor::new(&[[1u32, 120, 120, 9, 120, 120, 5]], &place.device)?;
    let mut outputs = model.encode_images_multi(&two, &grids)?;
    outputs.push(model.forward_multi_image(&ids, &two, &grids, 0)?);
    model.clear_kv_cache();
    let apart = [
        two.narrow(0, 0, 1)?,
        place.input("paddleocr.tall", (1, 3, 24, 8))?,
    ];
    let grid = |sides: [u32; 3]| Tensor::new(&[sides], &place.device);
    let grids = [grid([1, 2, 4])?, grid([1, 6, 2])?];
    let ids = Tensor::new(&[[120u32, 120, 9, 120, 120, 120, 5]], &place.device)?;
    outputs.push(model.forward_multi_image_separate(&ids, &apart, &grids, 0)?);
    let tokens = model.generate_multi_image_separate(&ids, &apart, &grids, 3, 3)?;
    outputs.push(Tensor::new(tokens, &place.device)?.to_dtype(DType::F32)?);
    Ok(outputs)
}

/// Three frames of 1 x 2 tokens, and the text that follows them.
fn paddleocr_video(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = paddleocr_model(place)?;
    let frames = place.input("paddleocr.frames", (3, 3, 8, 16))?;
    let grid = Tensor::new(&[[3u32, 2, 4]], &place.device)?;
    let ids = Tensor::new(&[[1u32, 121, 121, 121, 121, 121, 121, 5]], &place.device)?;
    let logits = model.forward_video(&ids, &frames, &grid, 2., 0)?;
    let tokens = model.generate_video(&ids, &frames, &grid, 2., 6, 3)?;
    let tokens = Tensor::new(tokens, &place.device)?.to_dtype(DType::F32)?;
    Ok(vec![logits, tokens])
}

/// Intermediate results, in the order of their names; the mask's infinities as -1.
fn in_order(exports: HashMap<String, Tensor>) -> Result<Vec<Tensor>> {
    let mut exports: Vec<_> = exports.into_iter().collect();
    exports.sort_by(|one, other| one.0.cmp(&other.0));
    let value = |(name, value): (String, Tensor)| {
        let value = value.to_dtype(DType::F32)?;
        match name.as_str() {
            "causal_mask" => value.maximum(-1f64),
            _ => Ok(value),
        }
    };
    exports.into_iter().map(value).collect()
}

fn paddleocr_exports(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = paddleocr_model(place)?;
    let picture = place.input("paddleocr.picture", (1, 3, 16, 24))?;
    let grid = Tensor::new(&[[1u32, 4, 6]], &place.device)?;
    let ids = Tensor::new(
        &[[1u32, 9, 120, 120, 120, 120, 120, 120, 5, 6]],
        &place.device,
    )?;
    let (tokens, encoder) = model.encode_image_with_export(&picture, &grid)?;
    let (logits, decoder) = model.forward_with_decoder_export(&ids, &picture, &grid)?;
    let mut outputs = vec![tokens, logits];
    outputs.extend(in_order(encoder)?);
    outputs.extend(in_order(decoder)?);
    Ok(outputs)
}

fn paddleocr_positions(place: &Place) -> Result<Vec<Tensor>> {
    let device = &place.device;
    let ids = Tensor::new(
        &[[1u32, 7, 7, 7, 7, 7, 7, 2, 7], [7, 7, 7, 3, 7, 7, 7, 2, 4]],
        device,
    )?;
    let one = paddleocr_vl::compute_mrope_position_ids(&ids, 7, 2, 3, device)?;
    let ids = Tensor::new(&[[1u32, 7, 7, 2, 7, 7, 7, 7, 3]], device)?;
    let grids = [(2, 1), (1, 4)].map(|(grid_h, grid_w)| paddleocr_vl::ImageGrid { grid_h, grid_w });
    let several = paddleocr_vl::compute_mrope_position_ids_multi(&ids, 7, &grids, device)?;
    let ids = Tensor::new(&[[1u32, 7, 7, 7, 7, 7, 7, 2, 3]], device)?;
    let grid = paddleocr_vl::VideoGrid {
        grid_t: 3,
        grid_h: 1,
        grid_w: 2,
    };
    let video = paddleocr_vl::compute_mrope_position_ids_video(&ids, 7, &grid, 0.75, 2, device)?;
    let all = [one, several, video].into_iter();
    all.map(|positions| positions.to_dtype(DType::F32))
        .collect()
}
