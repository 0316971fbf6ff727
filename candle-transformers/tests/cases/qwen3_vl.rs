//! Qwen3-VL beyond what Candle's does: prompts in which each token sees those before it, positions on three axes, batches.

use candle_core::{bail, test_device, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::qwen3_vl::{Config, Qwen3VLModel};

use super::support::{assert_close, token_ids, Numbers};
use super::vision::{weights, weights_without, Made};

const PATCH: usize = 3 * 2 * 2 * 2;

const CONFIG: &str = r#"{"image_token_id": 50, "video_token_id": 51, "vision_start_token_id": 52, "vision_end_token_id": 53,
    "text_config": {"head_dim": 16, "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 40,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0},
    "vision_config": {"depth": 2, "hidden_size": 16, "out_hidden_size": 32, "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 24, "num_heads": 2, "patch_size": 2, "num_position_embeddings": 9, "deepstack_visual_indexes": [0, 1]}}"#;

fn config() -> Config {
    serde_json::from_str(CONFIG).expect("a configuration")
}

fn model(device: &Device) -> Result<Qwen3VLModel> {
    Qwen3VLModel::new(&config(), weights(DType::F32, device))
}

/// Patches, their grids and the spans of each row.
type Visual = Option<(Tensor, Tensor, Vec<Vec<(usize, usize)>>)>;

fn visual(seed: u64, grid: [u32; 3], spans: &[(usize, usize)], device: &Device) -> Result<Visual> {
    let patches: u32 = grid.iter().product();
    let patches = Numbers::new(seed).tensor(&[patches as usize, PATCH], 1., device)?;
    let grid = Tensor::new(&[grid], device)?;
    Ok(Some((patches, grid, vec![spans.to_vec()])))
}

/// A call with images and videos; `lens` are those of the rows.
fn call(
    model: &Qwen3VLModel,
    ids: &Tensor,
    [image, video]: [Visual; 2],
    lens: &[usize],
    offsets: &[usize],
) -> Result<Tensor> {
    let parts = |visual: Visual| match visual {
        Some((patches, grid, spans)) => (Some(patches), Some(grid), spans),
        None => (None, None, vec![]),
    };
    let (image, video) = (parts(image), parts(video));
    model.forward(
        ids,
        image.0,
        video.0,
        image.1,
        video.1,
        lens.to_vec(),
        image.2,
        video.2,
        offsets,
    )
}

fn text(model: &Qwen3VLModel, ids: &Tensor, offset: usize) -> Result<Tensor> {
    let (b, t) = ids.dims2()?;
    call(model, ids, [None, None], &vec![t; b], &vec![offset; b])
}

/// A prompt gives the same token by token as at once; position 0 starts again, and so does `clear_kv_cache`.
fn steps_are_the_whole(device: &Device) -> Result<()> {
    let model = model(device)?;
    let ids = token_ids(1, 7, 50, device)?;
    let whole = text(&model, &ids, 0)?;
    assert_eq!(whole.dims(), [1, 61]);
    let mut last = None;
    for i in 0..7 {
        last = Some(text(&model, &ids.narrow(1, i, 1)?, i)?);
    }
    assert_close(&last.expect("a step"), &whole, 2e-5);
    assert_close(&text(&model, &ids, 0)?, &whole, 1e-6);
    model.clear_kv_cache();
    let message = text(&model, &ids, 7)
        .expect_err("nothing is held")
        .to_string();
    assert!(
        message.contains("[7]") && message.contains("[]"),
        "{message}"
    );
    Ok(())
}
test_device!(steps_are_the_whole);

/// An image and a video in one call give the same as in two calls, with text around them: also if the pieces end there.
fn pieces_are_the_whole(device: &Device) -> Result<()> {
    let model = model(device)?;
    let ids = token_ids(1, 20, 50, device)?;
    // 6 tokens of one frame, and 2 frames of 2 tokens.
    let (image, video) = ([1, 4, 6], [2, 4, 2]);
    let both = [
        visual(1, image, &[(2, 8)], device)?,
        visual(2, video, &[(9, 11), (12, 14)], device)?,
    ];
    let whole = call(&model, &ids, both, &[20], &[0])?;
    let first = [visual(1, image, &[(2, 8)], device)?, None];
    call(&model, &ids.narrow(1, 0, 9)?, first, &[9], &[0])?;
    let second = [None, visual(2, video, &[(0, 2), (3, 5)], device)?];
    call(&model, &ids.narrow(1, 9, 8)?, second, &[17], &[9])?;
    text(&model, &ids.narrow(1, 17, 2)?, 17)?;
    let last = text(&model, &ids.narrow(1, 19, 1)?, 19)?;
    assert_close(&last, &whole, 2e-5);
    // The image is seen.
    let other = [
        visual(3, image, &[(2, 8)], device)?,
        visual(2, video, &[(9, 11), (12, 14)], device)?,
    ];
    let other = call(&model, &ids, other, &[20], &[0])?;
    let change = (other - whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(change > 1e-3, "another picture changes logits by {change}");
    Ok(())
}
test_device!(pieces_are_the_whole);

/// Rows of different lengths, with images of different sizes, have the logits that each has alone, in steps after the prompt too.
fn rows_are_alone(device: &Device) -> Result<()> {
    let model = model(device)?;
    let ids = token_ids(2, 10, 50, device)?;
    let steps = token_ids(2, 3, 47, device)?;
    let (lens, grids) = ([10, 8], [[1, 4, 4], [1, 2, 6]]);
    let spans = [vec![(1, 5)], vec![(3, 6)]];
    let mut alone = Vec::new();
    for row in 0..2 {
        let of_row = ids.narrow(0, row, 1)?.narrow(1, 0, lens[row])?;
        let image = visual(row as u64, grids[row], &spans[row], device)?;
        let mut logits = vec![call(&model, &of_row, [image, None], &[lens[row]], &[0])?];
        for i in 0..3 {
            let step = steps.narrow(0, row, 1)?.narrow(1, i, 1)?;
            logits.push(text(&model, &step, lens[row] + i)?);
        }
        alone.push(logits);
    }
    let one = |i: usize| visual(i as u64, grids[i], &[], device);
    let (Some((first, ..)), Some((second, ..))) = (one(0)?, one(1)?) else {
        bail!("no picture")
    };
    let patches = Tensor::cat(&[first, second], 0)?;
    let both = Some((patches, Tensor::new(&grids, device)?, spans.to_vec()));
    let mut logits = vec![call(&model, &ids, [both, None], &lens, &[0, 0])?];
    for i in 0..3 {
        let offsets = lens.map(|len| len + i);
        let lens = offsets.map(|len| len + 1);
        logits.push(call(
            &model,
            &steps.narrow(1, i, 1)?,
            [None, None],
            &lens,
            &offsets,
        )?);
    }
    for (row, alone) in alone.iter().enumerate() {
        for (alone, both) in alone.iter().zip(&logits) {
            assert_close(&both.narrow(0, row, 1)?, alone, 3e-5);
        }
    }
    Ok(())
}
test_device!(rows_are_alone);

/// An encoder in which patches have no positions and do not see each other.
struct Placeless(Made);

impl SimpleBackend for Placeless {
    fn get(&self, s: Shape, name: &str, i: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if name.contains("attn.proj") || name.contains("pos_embed") {
            Tensor::zeros(s, dtype, dev)
        } else {
            self.0.get(s, name, i, dtype, dev)
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.0.get_unchecked(name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains_tensor(name)
    }
}

/// The same features in 2 rows of 4 and in 4 rows of 2: to the decoder these are different images.
fn positions_have_axes(device: &Device) -> Result<()> {
    let made = Made {
        vars: false,
        without: "",
        gain: 1.,
    };
    let vb = VarBuilder::from_backend(Box::new(Placeless(made)), DType::F32, device.clone());
    let model = Qwen3VLModel::new(&config(), vb)?;
    let ids = token_ids(1, 12, 50, device)?;
    let mut logits = Vec::new();
    for grid in [[1, 4, 8], [1, 8, 4], [2, 4, 4], [1, 4, 8]] {
        let image = visual(1, grid, &[(2, 10)], device)?;
        logits.push(call(&model, &ids, [image, None], &[12], &[0])?);
    }
    let change = |other: usize| -> Result<f32> {
        (&logits[other] - &logits[0])?.abs()?.max_all()?.to_scalar()
    };
    assert!(
        change(1)? > 1e-3 && change(2)? > 1e-3,
        "the shape changes nothing"
    );
    assert!(change(3)? < 1e-6);
    Ok(())
}
test_device!(positions_have_axes);

/// f16 is near f32, and checkpoints without `lm_head.bias`, which are all, load.
fn half_is_near(device: &Device) -> Result<()> {
    let ids = token_ids(1, 9, 50, device)?;
    let mut logits = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let vb = weights_without("lm_head.bias", dtype, device);
        let model = Qwen3VLModel::new(&config(), vb)?;
        let image = visual(1, [1, 4, 4], &[(2, 6)], device)?;
        logits.push(call(&model, &ids, [image, None], &[9], &[0])?);
        assert_eq!(logits[logits.len() - 1].dtype(), dtype);
    }
    assert_close(&logits[1], &logits[0], 0.05);
    Ok(())
}
test_device!(half_is_near);

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
fn inputs_that_do_not_fit_are_errors() -> Result<()> {
    let device = &Device::Cpu;
    let model = model(device)?;
    let ids = token_ids(1, 8, 50, device)?;
    let image = |grid, spans: &[(usize, usize)]| {
        let image = visual(1, grid, spans, device)?;
        call(&model, &ids, [image, None], &[8], &[0])
    };
    image([1, 4, 4], &[(1, 5)])?;
    fails(
        image([1, 4, 4], &[(1, 4)]),
        &["3 placeholder tokens", "have 4"],
    );
    fails(image([1, 3, 4], &[(1, 4)]), &["3 rows", "multiples of 2"]);
    fails(image([1, 4, 4], &[(5, 9)]), &["5..9", "8 tokens"]);
    fails(image([1, 4, 4], &[(1, 3), (2, 4)]), &["whole frames"]);
    fails(
        image([2, 2, 4], &[(1, 3), (2, 4)]),
        &["1..3", "2..4", "overlap"],
    );
    let wrong = visual(1, [1, 4, 2], &[(1, 5)], device)?;
    let wrong = wrong.map(|(patches, _, spans)| {
        let grid = Tensor::new(&[[1u32, 4, 4]], device)?;
        call(
            &model,
            &ids,
            [Some((patches, grid, spans)), None],
            &[8],
            &[0],
        )
    });
    fails(wrong.expect("a picture"), &["[8, 24]", "(16, 24)"]);
    let short = visual(1, [1, 4, 4], &[(3, 7)], device)?;
    fails(
        call(&model, &ids, [short, None], &[6], &[0]),
        &["3..7", "masked tokens"],
    );
    fails(
        text(&model, &token_ids(1, 41, 50, device)?, 0),
        &["41", "max_position_embeddings of 40"],
    );
    fails(text(&model, &ids.narrow(1, 0, 0)?, 0), &["[1, 0]"]);
    fails(
        call(&model, &ids, [None, None], &[], &[0]),
        &["seqlens []", "1 rows"],
    );
    text(&model, &ids, 0)?;
    fails(text(&model, &ids, 7), &["[7]", "[8]"]);
    let none = vec![];
    let pixels = Tensor::zeros((4, PATCH), DType::F32, device)?;
    let lost = model.forward(
        &ids,
        Some(pixels),
        None,
        None,
        None,
        vec![8],
        none.clone(),
        none,
        &[0],
    );
    fails(lost, &["pixel_values", "without their grids"]);
    Ok(())
}

#[test]
fn configurations_that_contradict_themselves_are_errors() {
    let load = |change: &dyn Fn(&mut Config)| {
        let mut cfg = config();
        change(&mut cfg);
        Qwen3VLModel::new(&cfg, weights(DType::F32, &Device::Cpu))
    };
    fails(load(&|c| c.vision_config.num_heads = 3), &["3 heads", "16"]);
    fails(load(&|c| c.vision_config.num_heads = 0), &["0 heads"]);
    fails(
        load(&|c| c.vision_config.num_heads = 8),
        &["2 elements", "multiple of 4"],
    );
    fails(
        load(&|c| c.vision_config.num_position_embeddings = 8),
        &["num_position_embeddings 8"],
    );
    fails(
        load(&|c| c.vision_config.deepstack_visual_indexes = vec![2]),
        &["layer 2", "has 2"],
    );
    fails(load(&|c| c.vision_config.patch_size = 0), &["patch_size 0"]);
    fails(
        load(&|c| c.vision_config.out_hidden_size = 16),
        &["16", "32"],
    );
    fails(
        load(&|c| c.text_config.num_key_value_heads = 3),
        &["4 query heads", "3 key heads"],
    );
    fails(
        load(&|c| c.text_config.num_attention_heads = 0),
        &["0 heads"],
    );
}
