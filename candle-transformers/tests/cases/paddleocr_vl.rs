//! PaddleOCR-VL beyond what Candle's does: text alone, batches, sequences that go on, results on the way after the first step.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::paddleocr_vl::*;

use super::support::{assert_close, token_ids, Numbers};
use super::vision::{weights, weights_without};

const IMAGE: u32 = 50;
const VIDEO: u32 = 51;

fn config() -> Config {
    let json = r#"{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "vocab_size": 61, "max_position_embeddings": 40, "image_token_id": 50, "video_token_id": 51,
        "rope_scaling": {"mrope_section": [2, 3, 3]},
        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 6, "patch_size": 2}}"#;
    serde_json::from_str(json).expect("a configuration")
}

fn model(device: &Device) -> Result<PaddleOCRVLModel> {
    PaddleOCRVLModel::new(&config(), weights(DType::F32, device))
}

fn pictures(seed: u64, count: usize, [h, w]: [usize; 2], device: &Device) -> Result<Tensor> {
    Numbers::new(seed).tensor(&[count, 3, 2 * h, 2 * w], 1., device)
}

fn grids(count: usize, [h, w]: [usize; 2], device: &Device) -> Result<Tensor> {
    let grid: Vec<u32> = vec![1, h as u32, w as u32];
    Tensor::from_vec(grid.repeat(count), (count, 3), device)
}

/// Text alone gives the same token by token and at once; so does text after an image, and an image in a continued sequence.
fn pieces_are_the_whole(device: &Device) -> Result<()> {
    let mut model = model(device)?;
    let text = token_ids(2, 6, 50, device)?;
    let whole = model.forward(&text, None, None, 0)?;
    assert_eq!(whole.dims(), [2, 61]);
    let mut last = None;
    for i in 0..6 {
        last = Some(model.forward(&text.narrow(1, i, 1)?, None, None, i)?);
    }
    assert_close(&last.expect("a step"), &whole, 2e-5);

    let (picture, grid) = (pictures(1, 1, [2, 6], device)?, grids(1, [2, 6], device)?);
    let ids = Tensor::new(&[[3u32, 4, IMAGE, IMAGE, IMAGE, 5, 6, 7]], device)?;
    let whole = model.forward(&ids, Some(&picture), Some(&grid), 0)?;
    model.forward(&ids.narrow(1, 0, 1)?, None, None, 0)?;
    model.forward(&ids.narrow(1, 1, 5)?, Some(&picture), Some(&grid), 1)?;
    let last = model.forward(&ids.narrow(1, 6, 2)?, None, None, 6)?;
    assert_close(&last, &whole, 2e-5);
    // The positions of an image's tokens matter: as 3 rows of 1, they are another image.
    let other = grids(1, [6, 2], device)?;
    let turned = pictures(1, 1, [6, 2], device)?;
    let other = model.forward(&ids, Some(&turned), Some(&other), 0)?;
    let change = (other - whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-3, "another picture changes logits by {change}");
    Ok(())
}
test_device!(pieces_are_the_whole);

/// Rows with different images at different positions have the same logits as alone, in steps too.
fn rows_are_alone(device: &Device) -> Result<()> {
    let mut model = model(device)?;
    let both = pictures(2, 2, [4, 2], device)?;
    let ids = Tensor::new(
        &[[3u32, IMAGE, IMAGE, 5, 6], [4, 9, 8, IMAGE, IMAGE]],
        device,
    )?;
    let step = Tensor::new(&[[7u32], [8]], device)?;
    let mut together =
        vec![model.forward(&ids, Some(&both), Some(&grids(2, [4, 2], device)?), 0)?];
    together.push(model.forward(&step, None, None, 5)?);
    let one = grids(1, [4, 2], device)?;
    for row in 0..2 {
        let (picture, of_row) = (both.narrow(0, row, 1)?, ids.narrow(0, row, 1)?);
        let alone = model.forward(&of_row, Some(&picture), Some(&one), 0)?;
        assert_close(&alone, &together[0].narrow(0, row, 1)?, 2e-5);
        let alone = model.forward(&step.narrow(0, row, 1)?, None, None, 5)?;
        assert_close(&alone, &together[1].narrow(0, row, 1)?, 2e-5);
    }
    // Together in one run of placeholders, and each by itself.
    let ids = Tensor::new(&[[3u32, IMAGE, IMAGE, IMAGE, IMAGE, 6]], device)?;
    let multi = model.forward_multi_image(&ids, &both, &grids(2, [4, 2], device)?, 0)?;
    let apart = [both.narrow(0, 0, 1)?, both.narrow(0, 1, 1)?];
    let separate = model.forward_multi_image_separate(&ids, &apart, &[one.clone(), one], 0)?;
    assert_close(&separate, &multi, 2e-5);
    Ok(())
}
test_device!(rows_are_alone);

/// Results on the way are those of the way, also behind the first step, and the tokens are those without them.
fn exports(device: &Device) -> Result<()> {
    let mut model = model(device)?;
    let (picture, grid) = (pictures(3, 1, [2, 4], device)?, grids(1, [2, 4], device)?);
    let ids = Tensor::new(&[[3u32, IMAGE, IMAGE, 5]], device)?;
    let tokens = model.generate(&ids, &picture, &grid, 4, 60)?;
    let (with, all) = model.generate_debug(&ids, &picture, &grid, 4, 60)?;
    assert_eq!(with, tokens);
    assert_eq!(all.len(), tokens.len());
    for (i, exports) in all.iter().enumerate() {
        let sum = (&exports["layer1_post_attn_residual"] + &exports["layer1_mlp_output"])?;
        assert_close(&sum, &exports["layer1_layer_output"], 2e-5);
        assert_close(
            &exports["layer_1_output"],
            &exports["layer1_layer_output"],
            1e-6,
        );
        let number = |name: &str| exports[name].to_vec1::<i64>();
        assert_eq!(number("step")?, [i as i64]);
        assert_eq!(number("predicted_token")?, [i64::from(tokens[i])]);
        if i > 0 {
            // An image of 1 x 2 tokens has two positions.
            assert_eq!(number("mrope_position")?, [3 + i as i64]);
            assert_eq!(number("seqlen_offset")?, [3 + i as i64]);
            assert_eq!(exports["layer1_attn_k_repeated"].dims(), [1, 2, 4 + i, 16]);
        }
    }
    let logits = model.forward(&ids, Some(&picture), Some(&grid), 0)?;
    assert_close(&all[0]["last_token_logits"], &logits, 2e-5);
    let encoded = model.encode_image(&picture, &grid)?;
    assert_close(&all[0]["vision_embeds"], &encoded, 1e-6);
    assert_close(&model.encode_image_debug(&picture, &grid)?, &encoded, 1e-6);
    Ok(())
}
test_device!(exports);

/// f16 is near f32; images may have any layout, and the table of packed positions that files also have is not needed.
fn half_is_near(device: &Device) -> Result<()> {
    let ids = Tensor::new(
        &[[3u32, IMAGE, IMAGE, 5, VIDEO, VIDEO, VIDEO, VIDEO]],
        device,
    )?;
    let picture = pictures(4, 1, [2, 4], device)?;
    let turned = picture.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
    let grid = grids(1, [2, 4], device)?;
    let frames = pictures(5, 2, [2, 4], device)?;
    let of_frames = Tensor::new(&[[2u32, 2, 4]], device)?;
    let mut logits = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let vb = weights_without("packing_position_embedding", dtype, device);
        let mut model = PaddleOCRVLModel::new(&config(), vb)?;
        let image = model.forward(&ids.narrow(1, 0, 4)?, Some(&turned), Some(&grid), 0)?;
        let video = model.forward_video(&ids.narrow(1, 3, 5)?, &frames, &of_frames, 1., 0)?;
        assert_eq!(image.dtype(), dtype);
        logits.push(Tensor::cat(&[image, video], 0)?);
    }
    assert_close(&logits[1], &logits[0], 0.05);
    Ok(())
}
test_device!(half_is_near);

/// The example of Qwen2-VL's documentation, and frames that are further apart.
#[test]
fn positions_of_a_video() -> Result<()> {
    let device = &Device::Cpu;
    let ids = Tensor::new(&[[7u32, 7, 7, 7, 7, 7, 7, 7, 1, 2]], device)?;
    let grid = VideoGrid {
        grid_t: 2,
        grid_h: 2,
        grid_w: 2,
    };
    let positions = |seconds| -> Result<Vec<Vec<i64>>> {
        let all = compute_mrope_position_ids_video(&ids, 7, &grid, seconds, 2, device)?;
        all.squeeze(1)?.to_vec2()
    };
    let [rows, columns] = [[0, 0, 1, 1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1]];
    let [time, far] = [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 5, 5, 5, 5]];
    let with = |places: [i64; 8], next: i64| [&places[..], &[next, next + 1]].concat();
    assert_eq!(
        positions(0.5)?,
        [with(time, 2), with(rows, 2), with(columns, 2)]
    );
    assert_eq!(
        positions(2.5)?,
        [with(far, 6), with(rows, 6), with(columns, 6)]
    );
    Ok(())
}

/// Tokens that a text about a video has become less probable.
#[test]
fn penalty_of_videos() -> Result<()> {
    let device = &Device::Cpu;
    let mut model = model(device)?;
    let (frames, grid) = (
        pictures(6, 2, [2, 2], device)?,
        Tensor::new(&[[2u32, 2, 2]], device)?,
    );
    let ids = Tensor::new(&[[3u32, VIDEO, VIDEO, 5]], device)?;
    let tokens = model.generate_video(&ids, &frames, &grid, 1., 8, 60)?;
    let mut logits = model.forward_video(&ids, &frames, &grid, 1., 0)?;
    let mut expected = Vec::new();
    for i in 0..tokens.len() {
        let mut numbers = logits.squeeze(0)?.to_vec1::<f32>()?;
        for token in &expected {
            let logit = &mut numbers[*token as usize];
            *logit *= if *logit > 0. { 1. / 1.1 } else { 1.1 };
        }
        let best = (0..61u32).max_by(|a, b| numbers[*a as usize].total_cmp(&numbers[*b as usize]));
        expected.extend(best);
        let next = Tensor::new(&[[expected[i]]], device)?;
        logits = model.forward(&next, None, None, 4 + i)?;
    }
    assert_eq!(tokens, expected);
    Ok(())
}

#[track_caller]
fn fails<T>(result: Result<T>, texts: &[&str]) {
    let Err(err) = result else {
        panic!("accepted, where an error with {texts:?} is due")
    };
    let message = err.to_string();
    for text in texts {
        assert!(message.contains(text), "{text:?} is not in {message:?}");
    }
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let device = &Device::Cpu;
    let mut model = model(device)?;
    let (picture, grid) = (pictures(1, 1, [2, 4], device)?, grids(1, [2, 4], device)?);
    let ids = Tensor::new(&[[3u32, IMAGE, 5]], device)?;
    fails(
        model.forward(&ids, Some(&picture), Some(&grid), 0),
        &["1 placeholder", "yield 2"],
    );
    let other = grids(1, [4, 2], device)?;
    fails(model.encode_image(&picture, &other), &["2 x 4", "rows: 4"]);
    fails(
        model.encode_image(&picture, &grids(1, [3, 4], device)?),
        &["3 rows", "multiples of 2"],
    );
    let odd = Tensor::zeros((1, 3, 5, 8), DType::F32, device)?;
    fails(
        model.encode_image(&odd, &grid),
        &["[1, 3, 5, 8]", "multiples of 2"],
    );
    fails(
        model.encode_images_separate(std::slice::from_ref(&picture), &[]),
        &["1 pictures but 0 grids"],
    );
    fails(model.forward(&ids, Some(&picture), None, 0), &["together"]);
    fails(
        model.forward_multi_image_separate(&ids, &[], &[], 0),
        &["no pictures"],
    );
    fails(
        model.forward(&token_ids(1, 41, 50, device)?, None, None, 0),
        &["41", "max_position_embeddings of 40"],
    );
    fails(
        model.forward(&ids.narrow(1, 0, 0)?, None, None, 0),
        &["no tokens"],
    );
    model.forward(&ids, None, None, 0)?;
    fails(
        model.forward(&ids, None, None, 2),
        &["position 2", "3 tokens"],
    );
    fails(
        model.forward(&token_ids(2, 1, 50, device)?, None, None, 3),
        &["2 rows", "1 rows"],
    );
    fails(
        model.generate(&token_ids(2, 3, 50, device)?, &picture, &grid, 1, 0),
        &["[2, 3]", "one text"],
    );
    let grid = |grid_h, grid_w| ImageGrid { grid_h, grid_w };
    let multi = |grids: &[ImageGrid]| compute_mrope_position_ids_multi(&ids, IMAGE, grids, device);
    fails(multi(&[]), &["1 runs", "0 grids"]);
    fails(multi(&[grid(1, 2)]), &["1 tokens", "1 x 2"]);
    Ok(())
}

#[test]
fn configurations_that_contradict_themselves_are_errors() {
    let load = |change: &dyn Fn(&mut Config)| {
        let mut cfg = config();
        change(&mut cfg);
        PaddleOCRVLModel::new(&cfg, weights(DType::F32, &Device::Cpu))
    };
    let sections = |c: &mut Config| {
        c.rope_scaling = Some(config::RopeScaling {
            mrope_section: vec![2, 2, 2],
            ..Default::default()
        });
    };
    fails(load(&sections), &["mrope_section [2, 2, 2]", "8"]);
    fails(
        load(&|c| c.num_key_value_heads = 3),
        &["2 query heads", "3 key heads"],
    );
    fails(load(&|c| c.num_attention_heads = 0), &["0 query heads"]);
    fails(
        load(&|c| c.vision_config.num_attention_heads = 3),
        &["3 heads", "16"],
    );
    fails(
        load(&|c| c.vision_config.num_attention_heads = 8),
        &["2 elements", "multiple of 4"],
    );
    fails(load(&|c| c.vision_config.patch_size = 0), &["patch_size 0"]);
    fails(load(&|c| c.vision_config.image_size = 1), &["image_size 1"]);
    assert_eq!(VisionConfig::default().head_dim(), 72);
    let plain: Config = serde_json::from_str("{}").expect("all are left out");
    assert_eq!(TextConfig::from(&plain).mrope_section, [16, 24, 24]);
}
