//! Transformers of images, and of images and texts: what every model of images has to do, and what is theirs alone.

use std::sync::Arc;

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_transformers::models::chinese_clip::text_model::{
    ChineseClipTextConfig, ChineseClipTextTransformer,
};
use candle_transformers::models::chinese_clip::vision_model::{
    ChineseClipVisionConfig, ChineseClipVisionTransformer,
};
use candle_transformers::models::chinese_clip::{self, ChineseClipConfig, ChineseClipModel};
use candle_transformers::models::clip::text_model::{ClipTextConfig, ClipTextTransformer};
use candle_transformers::models::clip::vision_model::{ClipVisionConfig, ClipVisionTransformer};
use candle_transformers::models::clip::{div_l2_norm, ClipConfig, ClipModel};
use candle_transformers::models::depth_anything_v2::{DepthAnythingV2, DepthAnythingV2Config};
use candle_transformers::models::openclip::text_model as openclip;
use candle_transformers::models::{beit, dinov2, eva2, hiera, segformer, siglip};

use super::support::{assert_close, token_ids};
use super::vision::{check, check_layers, module, pictures, weights, weights_without, Forward};

/// The largest element, which is NaN if one is.
fn largest(xs: &Tensor) -> Result<f32> {
    let values = xs.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    Ok(values.iter().fold(0f32, |max, x| {
        if x.is_nan() {
            f32::NAN
        } else {
            max.max(x.abs())
        }
    }))
}

/// An error, whose text has all of `parts`.
#[track_caller]
fn assert_refused<T>(result: Result<T>, parts: &[&str]) {
    let Err(err) = result else {
        panic!("it is accepted, but {parts:?}")
    };
    let text = err.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

fn clip_config() -> ClipConfig {
    ClipConfig {
        text_config: ClipTextConfig {
            vocab_size: 50,
            embed_dim: 32,
            intermediate_size: 48,
            max_position_embeddings: 9,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            projection_dim: 16,
            ..ClipTextConfig::vit_base_patch32()
        },
        vision_config: ClipVisionConfig {
            embed_dim: 48,
            intermediate_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 3,
            projection_dim: 16,
            image_size: 32,
            patch_size: 8,
            ..ClipVisionConfig::vit_base_patch32()
        },
        image_size: 32,
        ..ClipConfig::vit_base_patch32()
    }
}

fn clip_pictures(device: &Device) -> Result<()> {
    let config = clip_config().vision_config;
    let load = |vb| -> Result<Forward> { Ok(module(ClipVisionTransformer::new(vb, &config)?)) };
    check(
        device,
        load,
        [3, 32, 32],
        &[&[1, 3, 40, 32], &[1, 3, 64, 16]],
    )?;
    let model = ClipVisionTransformer::new(weights(DType::F32, device), &config)?;
    let picture = pictures([2, 3, 32, 32], device)?;
    let states = model.output_hidden_states(&picture)?;
    let dims: Vec<_> = states.iter().map(|state| state.dims().to_vec()).collect();
    assert_eq!(dims, [vec![2, 17, 48], vec![2, 17, 48], vec![2, 48]]);
    assert_close(&states[2], &model.forward(&picture)?, 1e-6);
    let refused = |config| ClipVisionTransformer::new(weights(DType::F32, device), &config);
    let heads = ClipVisionConfig {
        num_attention_heads: 5,
        ..config.clone()
    };
    assert_refused(refused(heads), &["5 heads", "48"]);
    for patch_size in [0, 33] {
        let config = ClipVisionConfig {
            patch_size,
            ..config.clone()
        };
        assert_refused(refused(config), &["patch_size", "image_size 32"]);
    }
    Ok(())
}
test_device!(clip_pictures);

/// A token sees none behind it, and none behind the position asked for; a text's vector is that of its largest id.
fn clip_texts(device: &Device) -> Result<()> {
    let config = clip_config().text_config;
    let model = ClipTextTransformer::new(weights(DType::F32, device), &config)?;
    let ids = token_ids(2, 6, 50, device)?;
    let all = model.forward_with_mask(&ids, usize::MAX)?;
    assert_eq!(all.dims(), &[2, 6, 32]);
    let first = model.forward_with_mask(&ids.narrow(1, 0, 4)?, usize::MAX)?;
    assert_close(&first, &all.narrow(1, 0, 4)?, 2e-5);
    // Nothing behind position 1 is seen, so the last token does not know the one before it.
    let of_other = Tensor::cat(
        &[
            &ids.narrow(1, 0, 4)?,
            &ids.narrow(1, 5, 1)?.zeros_like()?,
            &ids.narrow(1, 5, 1)?,
        ],
        1,
    )?;
    let last = |ids: &Tensor, after| model.forward_with_mask(ids, after)?.narrow(1, 5, 1);
    assert_close(&last(&of_other, 1)?, &last(&ids, 1)?, 1e-5);
    let differ = (last(&of_other, 4)? - last(&ids, 4)?)?;
    assert!(largest(&differ)? > 1e-3);

    let ids = Tensor::new(&[[3u32, 49, 7, 0], [1, 2, 3, 49]], device)?;
    let all = model.forward_with_mask(&ids, usize::MAX)?;
    let ends = Tensor::cat(
        &[all.get(0)?.narrow(0, 1, 1)?, all.get(1)?.narrow(0, 3, 1)?],
        0,
    )?;
    assert_close(&model.forward(&ids)?, &ends, 1e-6);

    let long = token_ids(1, 10, 50, device)?;
    assert_refused(model.forward(&long), &["10 tokens", "limit of 9"]);
    let none = Tensor::zeros((1, 0), DType::U32, device)?;
    assert_refused(model.forward(&none), &["no tokens"]);
    Ok(())
}
test_device!(clip_texts);

fn clip_scores(device: &Device) -> Result<()> {
    let (config, picture) = (clip_config(), pictures([3, 3, 32, 32], device)?);
    let ids = token_ids(2, 6, 50, device)?;
    let model = ClipModel::new(weights(DType::F32, device), &config)?;
    let (per_text, per_picture) = model.forward(&picture, &ids)?;
    assert_eq!(per_text.dims(), &[2, 3]);
    assert_close(&per_picture.t()?, &per_text, 0.);
    // The weight is about 1: cosines times e.
    let most = largest(&per_text)?;
    assert!(most > 0.01 && most < 1.2f32.exp(), "{most}");

    let half = ClipModel::new(weights(DType::F16, device), &config)?;
    let (per_text_in_half, _) = half.forward(&picture.to_dtype(DType::F16)?, &ids)?;
    assert_eq!(per_text_in_half.dtype(), DType::F16);
    assert_close(&per_text_in_half, &per_text, 0.05);

    // A checkpoint without the weight has the configuration's.
    let without = |dtype| ClipModel::new(weights_without("logit_scale", dtype, device), &config);
    let (scaled, _) = without(DType::F32)?.forward(&picture, &ids)?;
    let ratio = largest(&scaled)? / most;
    assert!(
        (ratio.ln() + 1. - config.logit_scale_init_value).abs() < 0.11,
        "{ratio}"
    );
    let (scaled, _) = without(DType::F16)?.forward(&picture.to_dtype(DType::F16)?, &ids)?;
    assert!(!largest(&scaled)?.is_nan());
    Ok(())
}
test_device!(clip_scores);

/// Squares of f16 end at 65504.
fn lengths_of_large_vectors(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16] {
        let large = Tensor::new(&[[300f32, -400.], [0.6, 0.8]], device)?.to_dtype(dtype)?;
        let expected = Tensor::new(&[[0.6f32, -0.8], [0.6, 0.8]], device)?;
        let unit = div_l2_norm(&large)?;
        assert_eq!(unit.dtype(), dtype);
        assert_close(&unit, &expected, 1e-3);
    }
    Ok(())
}
test_device!(lengths_of_large_vectors);

fn siglip_config() -> siglip::Config {
    let mut config = siglip::Config::base_patch16_224();
    config.text_config = siglip::TextConfig {
        vocab_size: 50,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        max_position_embeddings: 9,
        ..config.text_config
    };
    config.vision_config = siglip::VisionConfig {
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        image_size: 32,
        patch_size: 8,
        ..config.vision_config
    };
    config
}

fn siglip_pictures(device: &Device) -> Result<()> {
    let config = siglip_config().vision_config;
    let load = |vb| -> Result<Forward> { Ok(module(siglip::VisionModel::new(&config, true, vb)?)) };
    check(device, load, [3, 32, 32], &[])?;
    // The positions of images of another size are those of the nearest learned ones.
    let bare = siglip::VisionModel::new(&config, false, weights(DType::F32, device))?;
    let larger = bare.forward(&pictures([2, 3, 24, 51], device)?)?;
    assert_eq!(larger.dims(), &[2, 3 * 6, 32]);
    // Pixels after the last patch are ignored.
    let picture = pictures([1, 3, 32, 39], device)?;
    let cut = bare.forward(&picture.narrow(3, 0, 32)?)?;
    assert_close(&bare.forward(&picture)?, &cut, 1e-6);
    assert!(bare.forward(&pictures([1, 3, 32, 7], device)?).is_err());
    Ok(())
}
test_device!(siglip_pictures);

fn siglip_scores(device: &Device) -> Result<()> {
    let (config, picture) = (siglip_config(), pictures([3, 3, 32, 32], device)?);
    let model = siglip::Model::new(&config, weights(DType::F32, device))?;
    let ids = token_ids(2, 9, 50, device)?;
    let (per_text, per_picture) = model.forward(&picture, &ids)?;
    assert_eq!(per_text.dims(), &[2, 3]);
    assert_close(&per_picture.t()?, &per_text, 0.);
    // Every token is seen by the last one.
    let features = model.get_text_features(&ids)?;
    let other = Tensor::cat(
        &[&ids.narrow(1, 0, 1)?.zeros_like()?, &ids.narrow(1, 1, 8)?],
        1,
    )?;
    assert!(largest(&(features - model.get_text_features(&other)?)?)? > 1e-3);
    let half = siglip::Model::new(&config, weights(DType::F16, device))?;
    let (in_half, _) = half.forward(&picture.to_dtype(DType::F16)?, &ids)?;
    assert_close(&in_half, &per_text, 0.05);
    let long = token_ids(1, 10, 50, device)?;
    assert_refused(model.get_text_features(&long), &["10 tokens", "limit of 9"]);
    Ok(())
}
test_device!(siglip_scores);

/// The defaults of a `config.json` are those of the base model.
#[test]
fn siglip_defaults() -> std::result::Result<(), serde_json::Error> {
    let json = r#"{ "text_config": { "model_type": "siglip_text_model" },
        "vision_config": { "patch_size": 14, "hidden_act": "gelu" } }"#;
    let config: siglip::Config = serde_json::from_str(json)?;
    assert_eq!(config.text_config.max_position_embeddings, 64);
    assert_eq!(config.vision_config.hidden_act, candle_nn::Activation::Gelu);
    assert_eq!(config.vision_config.num_patches(), 256);
    assert_eq!(siglip::VisionConfig::paligemma_3b_896().num_patches(), 4096);
    Ok(())
}

fn beit_layers(device: &Device) -> Result<()> {
    let load = |vb| beit::BeitVisionTransformer::new(vb, 2, 32, 2);
    let wrong: &[&[usize]] = &[&[1, 3, 368, 384], &[1, 3, 224, 224]];
    check(device, |vb| Ok(module(load(vb)?)), [3, 384, 384], wrong)?;
    let model = load(weights(DType::F32, device))?;
    let picture = pictures([1, 3, 384, 384], device)?;
    check_layers(&picture, [24, 24], 32, |xs, blocks, [a, b, c]| {
        model.get_intermediate_layers(xs, blocks, a, b, c)
    })?;
    let vb = weights(DType::F32, device);
    assert_refused(beit::BeitVisionTransformer::new(vb, 1, 32, 3), &["3 heads"]);
    Ok(())
}
test_device!(beit_layers);

fn eva2_layers(device: &Device) -> Result<()> {
    let load = |vb| eva2::EVA2VisionTransformer::new(vb, 2, 64, 1);
    let wrong: &[&[usize]] = &[&[1, 3, 434, 448], &[1, 3, 224, 224]];
    check(device, |vb| Ok(module(load(vb)?)), [3, 448, 448], wrong)?;
    let model = load(weights(DType::F32, device))?;
    let picture = pictures([1, 3, 448, 448], device)?;
    check_layers(&picture, [32, 32], 64, |xs, blocks, [a, b, c]| {
        model.get_intermediate_layers(xs, blocks, a, b, c)
    })?;
    let vb = weights(DType::F32, device);
    assert_refused(
        eva2::EVA2VisionTransformer::new(vb, 1, 64, 2),
        &["size 32", "must be 64"],
    );
    Ok(())
}
test_device!(eva2_layers);

fn segformer_config() -> segformer::Config {
    segformer::Config {
        id2label: Default::default(),
        num_channels: 3,
        num_encoder_blocks: 3,
        depths: vec![1, 2, 1],
        sr_ratios: vec![4, 2, 1],
        hidden_sizes: vec![8, 16, 32],
        patch_sizes: vec![7, 3, 3],
        strides: vec![4, 2, 2],
        num_attention_heads: vec![1, 2, 4],
        mlp_ratios: vec![2, 2, 2],
        hidden_act: candle_nn::Activation::Gelu,
        layer_norm_eps: 1e-6,
        decoder_hidden_size: 32,
    }
}

fn segformer_classes(device: &Device) -> Result<()> {
    let config = segformer_config();
    let load = |vb| -> Result<Forward> {
        Ok(module(segformer::ImageClassificationModel::new(
            &config, 10, vb,
        )?))
    };
    check(device, load, [3, 64, 80], &[])?;
    let load = |vb| -> Result<Forward> {
        Ok(module(segformer::SemanticSegmentationModel::new(
            &config, 10, vb,
        )?))
    };
    check(device, load, [3, 64, 80], &[])?;
    let model = load(weights(DType::F32, device))?;
    // Sides that no stride divides.
    let places = model(&pictures([1, 3, 67, 90], device)?)?;
    assert_eq!(places.dims(), &[1, 10, 17, 23]);
    // Too small for the first stage's keys and values.
    assert!(model(&pictures([1, 3, 8, 64], device)?).is_err());

    let refused = |config: &segformer::Config| {
        segformer::SemanticSegmentationModel::new(config, 10, weights(DType::F32, device))
    };
    let short = segformer::Config {
        strides: vec![4, 2],
        ..config.clone()
    };
    assert_refused(refused(&short), &["strides", "2 numbers", "3 stages"]);
    let heads = segformer::Config {
        num_attention_heads: vec![1, 3, 4],
        ..config.clone()
    };
    assert_refused(refused(&heads), &["3 heads", "16"]);
    let none = segformer::Config {
        num_encoder_blocks: 0,
        ..config
    };
    assert_refused(refused(&none), &["num_encoder_blocks"]);
    Ok(())
}
test_device!(segformer_classes);

fn depth_config(norms: bool, class_token: bool, layers: Vec<usize>) -> DepthAnythingV2Config {
    DepthAnythingV2Config::new([8, 12, 16, 20], 32, 16, norms, class_token, layers, 42, 3)
}

fn depth(device: &Device) -> Result<()> {
    for (norms, class_token) in [(false, false), (true, true)] {
        let load = |vb: candle_nn::VarBuilder<'static>| -> Result<Forward> {
            let features = dinov2::DinoVisionTransformer::new(vb.pp("pretrained"), 5, 32, 2)?;
            let config = depth_config(norms, class_token, vec![0, 1, 3, 4]);
            Ok(module(DepthAnythingV2::new(
                Arc::new(features),
                config,
                vb,
            )?))
        };
        check(device, load, [3, 42, 42], &[])?;
        let model = load(weights(DType::F32, device))?;
        let near = model(&pictures([2, 3, 42, 42], device)?)?;
        assert_eq!(near.dims(), &[2, 1, 44, 44]);
        assert!(near.flatten_all()?.min(0)?.to_scalar::<f32>()? >= 0.);
        let other = model(&pictures([1, 3, 28, 42], device)?);
        assert_refused(other, &["must be (4, batch, 3 * 3", "42 x 42"]);
    }
    for layers in [vec![0, 1, 3], vec![3, 1, 2, 4]] {
        let vb = weights(DType::F32, device);
        let features = dinov2::DinoVisionTransformer::new(vb.clone(), 5, 32, 2)?;
        let config = depth_config(false, false, layers);
        let model = DepthAnythingV2::new(Arc::new(features), config, vb);
        assert_refused(model, &["layer_ids_vits", "4 blocks"]);
    }
    Ok(())
}
test_device!(depth);

fn chinese_clip_config() -> ChineseClipConfig {
    ChineseClipConfig {
        text_config: ChineseClipTextConfig {
            vocab_size: 50,
            hidden_size: 32,
            intermediate_size: 48,
            max_position_embeddings: 9,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            ..ChineseClipTextConfig::clip_vit_base_patch16()
        },
        vision_config: ChineseClipVisionConfig {
            hidden_size: 48,
            intermediate_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 3,
            image_size: 32,
            patch_size: 8,
            ..ChineseClipVisionConfig::clip_vit_base_patch16()
        },
        projection_dim: 16,
        ..ChineseClipConfig::clip_vit_base_patch16()
    }
}

/// The padding of a text does not count if the mask hides it, and the segment of a token counts.
fn chinese_clip_texts(device: &Device) -> Result<()> {
    let config = chinese_clip_config().text_config;
    let model = ChineseClipTextTransformer::new(weights(DType::F32, device), &config)?;
    let ids = token_ids(2, 6, 50, device)?;
    let features = model.forward(&ids, None, None)?;
    assert_eq!(features.dims(), &[2, 32]);
    let ones = Tensor::ones((2, 6), DType::U32, device)?;
    assert_close(&model.forward(&ids, None, Some(&ones))?, &features, 1e-6);

    let filled = Tensor::cat(&[&ids, &Tensor::full(7u32, (2, 2), device)?], 1)?;
    let mask = Tensor::cat(&[&ones, &Tensor::zeros((2, 2), DType::U32, device)?], 1)?;
    assert_close(&model.forward(&filled, None, Some(&mask))?, &features, 2e-5);
    assert!(largest(&(model.forward(&filled, None, None)? - &features)?)? > 1e-3);

    let zeros = Tensor::zeros((1, 6), DType::U32, device)?;
    assert_close(&model.forward(&ids, Some(&zeros), None)?, &features, 1e-6);
    let second = model.forward(&ids, Some(&ones), None)?;
    assert!(largest(&(second - &features)?)? > 1e-3);

    let long = token_ids(1, 10, 50, device)?;
    assert_refused(
        model.forward(&long, None, None),
        &["10 tokens", "limit of 9"],
    );
    assert!(model.forward(&ids, None, Some(&ones.get(0)?)).is_err());
    Ok(())
}
test_device!(chinese_clip_texts);

fn chinese_clip_scores(device: &Device) -> Result<()> {
    let config = chinese_clip_config();
    let vision = &config.vision_config;
    let load =
        |vb| -> Result<Forward> { Ok(module(ChineseClipVisionTransformer::new(vb, vision)?)) };
    check(device, load, [3, 32, 32], &[&[1, 3, 40, 32]])?;
    let (picture, ids) = (
        pictures([3, 3, 32, 32], device)?,
        token_ids(2, 6, 50, device)?,
    );
    let model = ChineseClipModel::new(weights(DType::F32, device), &config)?;
    let (per_text, per_picture) = model.forward(&picture, &ids, None, None)?;
    assert_eq!(per_text.dims(), &[2, 3]);
    assert_close(&per_picture.t()?, &per_text, 0.);
    let half = ChineseClipModel::new(weights(DType::F16, device), &config)?;
    let mask = Tensor::ones((2, 6), DType::U32, device)?;
    let picture = picture.to_dtype(DType::F16)?;
    let (in_half, _) = half.forward(&picture, &ids, None, Some(&mask))?;
    assert_close(&in_half, &per_text, 0.05);
    Ok(())
}
test_device!(chinese_clip_scores);

fn chinese_clip_activations(device: &Device) -> Result<()> {
    let xs = Tensor::new(&[-1f32, 0., 2.], device)?;
    for (name, expected) in [
        ("quick_gelu", [-0.154_2, 0., 1.935_7]),
        ("gelu", [-0.158_66, 0., 1.954_5]),
        ("gelu_new", [-0.158_81, 0., 1.954_6]),
        ("relu", [0f32, 0., 2.]),
    ] {
        let activation = chinese_clip::Activation::from(name.to_string());
        assert_close(
            &activation.forward(&xs)?,
            &Tensor::new(&expected, device)?,
            1e-4,
        );
    }
    Ok(())
}
test_device!(chinese_clip_activations);

fn openclip_texts(device: &Device) -> Result<()> {
    let config = openclip::Config {
        vocab_size: 50,
        embed_dim: 32,
        intermediate_size: 48,
        max_position_embeddings: 9,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        ..openclip::Config::vit_base_patch32()
    };
    let model = openclip::OpenClipTextTransformer::new(weights(DType::F32, device), &config)?;
    let ids = Tensor::new(&[[3u32, 49, 7, 0], [1, 2, 3, 49]], device)?;
    let all = model.forward(&ids)?;
    assert_eq!(all.dims(), &[2, 4, 32]);
    let ends = Tensor::cat(
        &[all.get(0)?.narrow(0, 1, 1)?, all.get(1)?.narrow(0, 3, 1)?],
        0,
    )?;
    let pooled = Module::forward(&model, &ids)?;
    assert_close(&pooled, &ends, 1e-6);
    let half = openclip::OpenClipTextTransformer::new(weights(DType::F16, device), &config)?;
    assert_close(&Module::forward(&half, &ids)?, &pooled, 0.05);
    let long = token_ids(1, 10, 50, device)?;
    assert_refused(model.forward(&long), &["10 tokens", "limit of 9"]);
    Ok(())
}
test_device!(openclip_texts);

fn hiera_stages(device: &Device) -> Result<()> {
    let parse =
        |json| serde_json::from_str::<hiera::Config>(json).map_err(candle_core::Error::wrap);
    let config = parse(r#"{ "channels": 8, "heads": 1, "stages": [2, 1, 2, 1] }"#)?;
    let load = |vb| -> Result<Forward> { Ok(module(hiera::hiera(&config, 10, vb)?)) };
    let wrong: &[&[usize]] = &[&[1, 3, 224, 192], &[1, 3, 256, 256]];
    check(device, load, [3, 224, 224], wrong)?;
    let features = hiera::hiera_no_final_layer(&config, weights(DType::F32, device))?;
    let picture = pictures([1, 3, 224, 224], device)?;
    assert_eq!(features.forward(&picture)?.dims(), &[1, 64]);
    let config = parse(r#"{ "channels": 8, "heads": 3, "stages": [1, 1, 1, 1] }"#)?;
    assert_refused(
        hiera::hiera(&config, 10, weights(DType::F32, device)),
        &["3 heads"],
    );
    Ok(())
}
test_device!(hiera_stages);
