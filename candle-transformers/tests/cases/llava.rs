//! LLaVA.

use candle_core::{test_device, DType, Device, Module, Result, Tensor, D};
use candle_nn::{linear, Activation};
use candle_transformers::models::clip::text_model;
use candle_transformers::models::clip::vision_model::{ClipVisionConfig, ClipVisionTransformer};
use candle_transformers::models::llama::Cache;
use candle_transformers::models::llava::config::{HFLLaVAConfig, LLaVAConfig};
use candle_transformers::models::llava::utils::{
    get_anyres_image_grid_shape, select_best_resolution,
};
use candle_transformers::models::llava::{ClipVisionTower, LLaVA};
use serde_json::json;

use super::encoders::assert_error;
use super::support::assert_close;
use super::vision::{check, pictures, weights};

const VOCAB: usize = 61;
const HIDDEN: usize = 16;
/// Patches on the side of a tile.
const SIDE: usize = 4;
const TILE: usize = 16;
/// f32 sums in another order.
const TOLERANCE: f32 = 2e-5;

fn config() -> LLaVAConfig {
    let json = json!({
        "architectures": [], "bos_token_id": 1, "eos_token_id": 2, "hidden_size": HIDDEN, "image_aspect_ratio": "anyres",
        "image_crop_resolution": 224, "image_grid_pinpoints": [[TILE, 2 * TILE], [2 * TILE, TILE]], "image_split_resolution": 224,
        "intermediate_size": 32, "max_position_embeddings": 200, "mm_hidden_size": 24, "mm_patch_merge_type": "spatial_unpad",
        "mm_projector_type": "mlp2x_gelu", "mm_use_im_start_end": false, "mm_vision_select_feature": "patch",
        "mm_vision_select_layer": -2, "mm_vision_tower": null, "model_type": "llava", "num_attention_heads": 2,
        "num_hidden_layers": 1, "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tokenizer_model_max_length": null, "torch_dtype": "float16", "use_cache": true, "vocab_size": VOCAB
    });
    serde_json::from_value(json).expect("a configuration")
}

fn clip() -> ClipVisionConfig {
    ClipVisionConfig {
        embed_dim: 24,
        activation: text_model::Activation::QuickGelu,
        intermediate_size: 32,
        num_hidden_layers: 3,
        num_attention_heads: 2,
        projection_dim: 16,
        num_channels: 3,
        image_size: TILE,
        patch_size: TILE / SIDE,
    }
}

fn load(change: impl Fn(&mut LLaVAConfig), dtype: DType, device: &Device) -> Result<LLaVA> {
    let mut config = config();
    change(&mut config);
    LLaVA::load(weights(dtype, device), &config, Some(clip()))
}

/// The last layer but one of CLIP's, and the last, without the token for the whole or with it.
fn layers_of_clip(device: &Device) -> Result<()> {
    let tower = |layer, feature: &'static str| {
        move |vb| ClipVisionTower::new(vb, layer, feature, &Some(clip()))
    };
    check(
        device,
        |vb| {
            let tower = tower(-2, "patch")(vb)?;
            Ok(Box::new(move |xs| tower.forward(xs)))
        },
        [3, TILE, TILE],
        &[&[1, 3, TILE, 2 * TILE]],
    )?;
    let vb = || weights(DType::F32, device);
    let picture = pictures([2, 3, TILE, TILE], device)?;
    let states = ClipVisionTransformer::new(vb(), &clip())?.output_hidden_states(&picture)?;
    for (layer, index) in [(-1, 2), (-2, 1)] {
        let with_class = tower(layer, "cls_patch")(vb())?.forward(&picture)?;
        assert_close(&with_class, &states[index], 0.);
        let found = tower(layer, "patch")(vb())?.forward(&picture)?;
        assert_close(&found, &states[index].narrow(1, 1, SIDE * SIDE)?, 0.);
    }
    assert_error(tower(-3, "patch")(vb()), &["mm_vision_select_layer is -3"]);
    assert_error(tower(-2, "cls")(vb()), &["\"cls\"", "cls_patch"]);
    let one = ClipVisionConfig {
        num_hidden_layers: 1,
        ..clip()
    };
    let tower = ClipVisionTower::new(vb(), -2, "patch", &Some(one));
    assert_error(tower, &["-2", "1 layers"]);
    Ok(())
}
test_device!(layers_of_clip);

/// The content at row `y` and column `x` of the image that `tiles` show, with `across` tiles per row.
fn patch(tiles: &Tensor, across: usize, y: usize, x: usize) -> Result<Tensor> {
    let tile = 1 + (y / SIDE) * across + x / SIDE;
    tiles.get(tile)?.get((y % SIDE) * SIDE + x % SIDE)
}

/// Prompts composed patch by patch: images next to and above each other, cropped borders, and words between images.
fn prompts_hold_pictures_where_ids_say(device: &Device) -> Result<()> {
    let model = load(|_| {}, DType::F32, device)?;
    let tiles = pictures([7, 3, TILE, TILE], device)?;
    let wide = tiles.narrow(0, 0, 3)?;
    let tall = tiles.narrow(0, 3, 3)?;
    let one = tiles.narrow(0, 6, 1)?;
    let images = [wide.clone(), tall.clone(), one.clone()];
    // Of 4 rows and 8 columns the first fills half the rows; of 8 rows and 4 columns the second fills 3 of 4 columns, and one more, as
    // borders on both sides are alike.
    let sizes = [(80, 20), (30, 80), (5, 5)];
    let ids = Tensor::new(&[[3i64, -200, 4, 5, -200, -200, 6]], device)?;
    let found = model.prepare_inputs_labels_for_multimodal(&ids, &images, &sizes)?;

    let words = model.llama.embed(&Tensor::new(&[3u32, 4, 5, 6], device)?)?;
    let word = |i: usize| words.get(i);
    let newline = || model.image_newline.clone();
    let mut wanted = vec![word(0)?];
    for (image, across, rows, columns, size) in [
        (&wide, 2, 1..3, 0..8, sizes[0]),
        (&tall, 1, 0..8, 0..4, sizes[1]),
    ] {
        let vectors = model.encode_images(image)?;
        let resolution = select_best_resolution(size, &config().image_grid_pinpoints);
        assert_eq!(resolution.0 as usize, across * TILE);
        for i in 0..SIDE * SIDE {
            wanted.push(vectors.get(0)?.get(i)?);
        }
        for y in rows {
            for x in columns.clone() {
                wanted.push(patch(&vectors, across, y, x)?);
            }
            wanted.push(newline());
        }
        if across == 2 {
            wanted.extend([word(1)?, word(2)?]);
        }
    }
    let vectors = model.encode_images(&one)?.get(0)?;
    for i in 0..SIDE * SIDE {
        wanted.push(vectors.get(i)?);
    }
    wanted.extend([newline(), word(3)?]);
    let wanted = Tensor::stack(&wanted, 0)?.unsqueeze(0)?;
    assert_close(&found, &wanted, TOLERANCE);

    let strided = |t: &Tensor| t.transpose(2, 3)?.contiguous()?.transpose(2, 3);
    let images_strided = [strided(&wide)?, strided(&tall)?, strided(&one)?];
    let again = model.prepare_inputs_labels_for_multimodal(&ids, &images_strided, &sizes)?;
    assert_close(&again, &wanted, TOLERANCE);

    // Ids of another dtype; a prompt of an image alone; and one that is cut.
    let hf = load(|config| config.image_token_index = 60, DType::F32, device)?;
    let ids = Tensor::new(&[[60u32]], device)?;
    let alone = hf.prepare_inputs_labels_for_multimodal(&ids, &images[2..], &[])?;
    assert_eq!(alone.dims(), &[1, SIDE * SIDE + 1, HIDDEN]);
    let cut = load(
        |config| config.tokenizer_model_max_length = Some(9),
        DType::F32,
        device,
    )?;
    let ids = Tensor::new(&[[3i64, -200, 4]], device)?;
    let short = cut.prepare_inputs_labels_for_multimodal(&ids, &images[..1], &sizes[..1])?;
    assert_close(&short, &wanted.narrow(1, 0, 9)?, TOLERANCE);
    let half = load(|_| {}, DType::F16, device)?;
    let image = wide.to_dtype(DType::F16)?;
    let found = half.prepare_inputs_labels_for_multimodal(&ids, &[image], &sizes[..1])?;
    let wanted = model.prepare_inputs_labels_for_multimodal(&ids, &images[..1], &sizes[..1])?;
    assert_close(&found, &wanted, 0.05);
    Ok(())
}
test_device!(prompts_hold_pictures_where_ids_say);

/// Borders are left out at the top and bottom of images that are higher than wide, too.
fn rows_are_left_out_of_tall_pictures(device: &Device) -> Result<()> {
    let model = load(
        |config| config.image_grid_pinpoints = vec![(TILE as u32, 3 * TILE as u32)],
        DType::F32,
        device,
    )?;
    let image = pictures([4, 3, TILE, TILE], device)?;
    let ids = Tensor::new(&[[-200i64]], device)?;
    // 12 rows and 4 columns, of which a square fills 4 rows.
    let found = model.prepare_inputs_labels_for_multimodal(
        &ids,
        std::slice::from_ref(&image),
        &[(9, 9)],
    )?;
    let vectors = model.encode_images(&image)?;
    let mut wanted = (0..SIDE * SIDE)
        .map(|i| vectors.get(0)?.get(i))
        .collect::<Result<Vec<_>>>()?;
    for y in 4..8 {
        for x in 0..4 {
            wanted.push(patch(&vectors, 1, y, x)?);
        }
        wanted.push(model.image_newline.clone());
    }
    assert_close(&found, &Tensor::stack(&wanted, 0)?.unsqueeze(0)?, TOLERANCE);
    Ok(())
}
test_device!(rows_are_left_out_of_tall_pictures);

/// Layers of projectors by their names, and GELU without its approximation between them.
fn projectors(device: &Device) -> Result<()> {
    let xs = pictures([1, 1, 5, 24], device)?.squeeze(0)?;
    let vb = weights(DType::F32, device);
    for (name, count) in [("linear", 1), ("mlp1x_gelu", 1), ("mlp3x_gelu", 3)] {
        for hf in [false, true] {
            let with = |config: &mut LLaVAConfig| {
                config.mm_projector_type = name.to_string();
                config.hf = hf;
            };
            let found = load(with, DType::F32, device)?.mm_projector.forward(&xs)?;
            let mut wanted = xs.clone();
            for i in 0..count {
                let (inputs, vb) = match (i, hf) {
                    (0, true) => (24, vb.pp("multi_modal_projector.linear_1")),
                    (0, false) => (24, vb.pp("model.mm_projector.0")),
                    (i, true) => (
                        HIDDEN,
                        vb.pp(format!("multi_modal_projector.linear_{}", i + 1)),
                    ),
                    (i, false) => (HIDDEN, vb.pp(format!("model.mm_projector.{}", 2 * i))),
                };
                if i > 0 {
                    wanted = Activation::Gelu.forward(&wanted)?;
                }
                wanted = linear(inputs, HIDDEN, vb)?.forward(&wanted)?;
            }
            assert_close(&found, &wanted, TOLERANCE);
        }
    }
    let identity = |config: &mut LLaVAConfig| {
        config.mm_projector_type = "identity".to_string();
        config.hidden_size = 24;
    };
    let model = load(identity, DType::F32, device)?;
    assert_close(&model.mm_projector.forward(&xs)?, &xs, 0.);
    Ok(())
}
test_device!(projectors);

/// A prompt gives the same result at once and in pieces.
fn prompts_come_in_pieces(device: &Device) -> Result<()> {
    let model = load(|_| {}, DType::F32, device)?;
    let image = pictures([1, 3, TILE, TILE], device)?;
    let ids = Tensor::new(&[[3i64, -200, 4, 5]], device)?;
    let embeds = model.prepare_inputs_labels_for_multimodal(&ids, &[image], &[])?;
    let mut cache = Cache::new(true, DType::F32, &config().to_llama_config(), device)?;
    let wanted = model.forward(&embeds, 0, &mut cache)?;
    assert_eq!(wanted.dims(), &[1, VOCAB]);
    cache.reset();
    let (mut at, mut logits) = (0, None);
    for len in [11, 8, 1] {
        logits = Some(model.forward(&embeds.narrow(1, at, len)?, at, &mut cache)?);
        at += len;
    }
    assert_eq!(at, embeds.dim(1)?);
    assert_close(&logits.expect("there are pieces"), &wanted, TOLERANCE);
    let changed = model.forward(&embeds.affine(1., 0.1)?, 0, &mut {
        cache.reset();
        cache
    })?;
    assert!(
        (changed - wanted)?
            .abs()?
            .max(D::Minus1)?
            .to_vec1::<f32>()?[0]
            > 1e-3
    );
    Ok(())
}
test_device!(prompts_come_in_pieces);

fn what_does_not_fit_is_an_error(device: &Device) -> Result<()> {
    let with = |change: fn(&mut LLaVAConfig)| load(change, DType::F32, device);
    let error = |change, parts: &[&str]| assert_error(with(change), parts);
    error(
        |c| c.mm_patch_merge_type = "rows".to_string(),
        &["\"rows\"", "spatial_unpad"],
    );
    error(
        |c| c.mm_projector_type = "mlpx_gelu".to_string(),
        &["\"mlpx_gelu\"", "linear"],
    );
    error(
        |c| c.mm_projector_type = "identity".to_string(),
        &["mm_hidden_size 24", "hidden_size 16"],
    );
    error(|c| c.mm_hidden_size = 1024, &["1024", "24"]);
    error(|c| c.num_attention_heads = 3, &["llama", "3"]);

    let model = with(|_| {})?;
    let image = pictures([3, 3, TILE, TILE], device)?;
    let prompt = Tensor::new(&[[3i64, -200, 4]], device)?;
    let run = |model: &LLaVA, ids: &Tensor, images: &[Tensor], sizes: &[(u32, u32)]| {
        model.prepare_inputs_labels_for_multimodal(ids, images, sizes)
    };
    let images = [image.clone()];
    assert_error(
        run(&model, &prompt, &[], &[]),
        &["1 placeholder tokens", "0 pictures"],
    );
    let twice = [image.clone(), image.clone()];
    assert_error(
        run(&model, &prompt, &twice, &[(20, 40); 2]),
        &["1 placeholder tokens", "2 pictures"],
    );
    assert_error(run(&model, &prompt, &images, &[]), &["image_sizes"]);
    let nothing = run(&model, &prompt, &images, &[(0, 40)]);
    assert_error(nothing, &["(0, 40)", "at least 1"]);
    let more = [pictures([4, 3, TILE, TILE], device)?];
    assert_error(
        run(&model, &prompt, &more, &[(20, 40)]),
        &["3 tiles", "1 x 2", "image_grid_pinpoints"],
    );
    let square = with(|c| c.image_aspect_ratio = "square".to_string())?;
    assert_error(
        run(&square, &prompt, &images, &[(20, 40)]),
        &["anyres", "\"square\""],
    );
    let with_class = with(|c| c.mm_vision_select_feature = "cls_patch".to_string())?;
    assert_error(
        run(&with_class, &prompt, &images, &[(20, 40)]),
        &["17 patches", "4 x 4"],
    );
    let batch = Tensor::cat(&[&prompt, &prompt], 0)?;
    assert_error(run(&model, &batch, &images, &[]), &["[2, 3]", "(1, seq)"]);
    let other = Tensor::new(&[[3i64, -7]], device)?;
    assert_error(run(&model, &other, &images, &[]), &["-7"]);
    // Without an image token, images are ignored.
    let words = Tensor::new(&[[3i64, 4]], device)?;
    assert_eq!(run(&model, &words, &images, &[])?.dims(), &[1, 2, HIDDEN]);
    Ok(())
}
test_device!(what_does_not_fit_is_an_error);

/// As LLaVA's authors choose: enlarging an image adds no pixels, so of the sizes that hold all of it the one nearest to it is taken.
#[test]
fn resolutions() {
    let all = [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)];
    for (size, wanted) in [
        ((300, 300), (336, 672)),
        ((640, 480), (672, 672)),
        ((1200, 300), (1008, 336)),
        ((300, 1300), (336, 1008)),
        ((5000, 5000), (672, 672)),
        ((672, 336), (672, 336)),
        ((700, 340), (1008, 336)),
    ] {
        assert_eq!(select_best_resolution(size, &all), wanted, "{size:?}");
        let tiles = (wanted.0 / 336, wanted.1 / 336);
        assert_eq!(get_anyres_image_grid_shape(size, &all, 336), tiles);
    }
    assert_eq!(select_best_resolution((3, 3), &[]), (0, 0));
    assert_eq!(get_anyres_image_grid_shape((3, 3), &all, 0), (0, 0));
    // No arithmetic overflows.
    let huge = (u32::MAX, u32::MAX);
    assert_eq!(select_best_resolution(huge, &[huge]), huge);
}

/// The defaults of Transformers' configuration, and the names that change.
#[test]
fn configurations() -> Result<()> {
    let json = json!({
        "architectures": ["L"], "ignore_index": -100, "image_grid_pinpoints": [[336, 672]], "image_token_index": 32000,
        "model_type": "llava_next", "projector_hidden_act": "gelu", "torch_dtype": "float16",
        "use_image_newline_parameter": true, "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "vocab_size": 32064,
        "text_config": {"architectures": [], "max_position_embeddings": 4096, "model_type": "llama", "pad_token_id": 0,
            "rms_norm_eps": 1e-5, "torch_dtype": "float16", "vocab_size": 32064},
        "vision_config": {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768, "vocab_size": 32000}
    });
    let hf: HFLLaVAConfig = serde_json::from_value(json).map_err(candle_core::Error::wrap)?;
    let generation = json!({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0});
    let pictures = json!({
        "aspect_ratio_setting": "anyres", "crop_size": {"height": 336}, "do_center_crop": true, "do_convert_rgb": true,
        "do_normalize": true, "do_rescale": true, "do_resize": true, "image_mean": [], "image_std": [], "resample": 3,
        "rescale_factor": 0.1, "size": {"shortest_edge": 336}
    });
    let generation = serde_json::from_value(generation).map_err(candle_core::Error::wrap)?;
    let pictures = serde_json::from_value(pictures).map_err(candle_core::Error::wrap)?;
    let config = hf.to_llava_config(&generation, &pictures);
    let sizes = (
        config.hidden_size,
        config.intermediate_size,
        config.mm_hidden_size,
    );
    assert_eq!(sizes, (4096, 11008, 1024));
    assert_eq!(
        (config.num_hidden_layers, config.num_key_value_heads),
        (32, 32)
    );
    assert_eq!(config.mm_projector_type, "mlp2x_gelu");
    assert_eq!(config.mm_vision_select_feature, "patch");
    assert_eq!(config.mm_patch_merge_type, "spatial_unpad");
    assert_eq!(
        (config.hf, config.tokenizer_model_max_length),
        (true, Some(4096))
    );
    let clip = hf.to_clip_vision_config();
    assert_eq!(
        (clip.embed_dim, clip.patch_size, clip.num_channels),
        (1024, 14, 3)
    );
    let llama = config.to_llama_config();
    assert_eq!((llama.vocab_size, llama.rope_theta), (32064, 10_000.));
    // What is written is read again.
    let text = serde_json::to_string(&config).map_err(candle_core::Error::wrap)?;
    let again: LLaVAConfig = serde_json::from_str(&text).map_err(candle_core::Error::wrap)?;
    assert_eq!(format!("{again:?}"), format!("{config:?}"));
    Ok(())
}
