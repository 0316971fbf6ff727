//! MMDiT. What its parts return is held against Candle's by the oracle; here is what that cannot show.

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::mmdit::{blocks, embedding, model, projections};

use super::{
    assert_close, difference, every_weight_learns, refused, weights, weights_without, Numbers,
};

fn config() -> model::Config {
    model::Config {
        in_channels: 4,
        out_channels: 4,
        depth: 3,
        head_size: 8,
        adm_in_channels: 12,
        pos_embed_max_size: 8,
        context_embed_size: 10,
        frequency_embedding_size: 16,
        ..model::Config::sd3_medium()
    }
}

/// Latents, times, texts and their tokens, for two images.
#[derive(Clone)]
struct Inputs([Tensor; 4]);

impl Inputs {
    fn new(device: &Device) -> Result<Self> {
        let mut numbers = Numbers::new(3);
        let mut some = |shape: &[usize]| numbers.tensor(shape, 1., device);
        Ok(Self([
            some(&[2, 4, 6, 8])?,
            Tensor::new(&[900f32, 12.5], device)?,
            some(&[2, 12])?,
            some(&[2, 5, 10])?,
        ]))
    }

    fn run(&self, model: &model::MMDiT, skipped: Option<&[usize]>) -> Result<Tensor> {
        let [x, t, y, context] = &self.0;
        model.forward(x, t, y, context, skipped)
    }

    fn map(&self, f: impl Fn(usize, &Tensor) -> Result<Tensor>) -> Result<Self> {
        let [x, t, y, context] = &self.0;
        Ok(Self([f(0, x)?, f(1, t)?, f(2, y)?, f(3, context)?]))
    }
}

fn load(vb: VarBuilder<'static>) -> Result<model::MMDiT> {
    model::MMDiT::new(&config(), false, vb)
}

fn transformer(device: &Device) -> Result<()> {
    let mmdit = load(weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    let results = both.run(&mmdit, None)?;
    assert_eq!(results.dims(), both.0[0].dims());
    for i in 0..2 {
        let alone = both.map(|_, t| t.narrow(0, i, 1))?.run(&mmdit, None)?;
        assert_close(&alone, &results.narrow(0, i, 1)?, 2e-5);
    }
    // Rows and columns exchanged in memory.
    let strided = both.map(|i, t| match i {
        1 => Ok(t.clone()),
        _ => t.t()?.contiguous()?.t(),
    })?;
    assert_close(&strided.run(&mmdit, None)?, &results, 1e-5);
    // One time and text for the whole batch.
    let first = both.map(|i, t| {
        if i == 1 || i == 2 {
            t.narrow(0, 0, 1)
        } else {
            Ok(t.clone())
        }
    })?;
    let repeated = first.map(|i, t| {
        if i == 1 || i == 2 {
            t.repeat(2)
        } else {
            Ok(t.clone())
        }
    })?;
    let expected = repeated.run(&mmdit, None)?;
    assert_close(&first.run(&mmdit, None)?, &expected, 1e-5);

    for dtype in [DType::F16, DType::BF16] {
        if dtype == DType::BF16 && !device.is_cpu() {
            continue;
        }
        let half = load(weights(dtype, device))?;
        // Times keep their dtype.
        let inputs = both.map(|i, t| {
            if i == 1 {
                Ok(t.clone())
            } else {
                t.to_dtype(dtype)
            }
        })?;
        let half = inputs.run(&half, None)?;
        assert_eq!(half.dtype(), dtype);
        let tolerance = if dtype == DType::F16 { 0.03 } else { 0.15 };
        assert_close(&half, &results, tolerance);
    }
    let flash = model::MMDiT::new(&config(), true, weights(DType::F32, device))?;
    assert_close(&both.run(&flash, None)?, &results, 0.);
    Ok(())
}
test_device!(transformer);

/// The model is the composition of its public parts.
fn parts_make_the_whole(device: &Device) -> Result<()> {
    let (cfg, vb) = (config(), weights(DType::F32, device));
    let hidden = cfg.depth * cfg.head_size;
    let both = Inputs::new(device)?;
    let [x, t, y, context] = &both.0;
    let patches = embedding::PatchEmbedder::new(2, 4, hidden, vb.pp("x_embedder"))?;
    let places = embedding::PositionEmbedder::new(hidden, 2, 8, vb.clone())?;
    let times = embedding::TimestepEmbedder::new(hidden, 16, vb.pp("t_embedder"))?;
    let texts = embedding::VectorEmbedder::new(12, hidden, vb.pp("y_embedder"))?;
    let tokens = candle_nn::linear(10, hidden, vb.pp("context_embedder"))?;
    let core = model::MMDiTCore::new(3, hidden, 3, 2, 4, false, vb.clone())?;
    let xs = patches
        .forward(x)?
        .broadcast_add(&places.get_cropped_pos_embed(6, 8)?)?;
    let condition = (times.forward(t)? + texts.forward(y)?)?;
    let ys = core.forward(&tokens.forward(context)?, &xs, &condition, None)?;
    let expected = embedding::Unpatchifier::new(2, 4)?.unpatchify(&ys, 6, 8)?;
    assert_close(&both.run(&load(vb.clone())?, None)?, &expected, 1e-5);

    // A time's vector is that of its cosines and sines, as a text's is of its numbers.
    let mut sinusoids = Vec::new();
    for time in [900f32, 12.5] {
        let angles = (0..8).map(|i| time * (-(10_000f32.ln()) / 8. * i as f32).exp());
        let angles: Vec<f32> = angles.collect();
        sinusoids.extend(angles.iter().map(|angle| angle.cos()));
        sinusoids.extend(angles.iter().map(|angle| angle.sin()));
    }
    let sinusoids = Tensor::from_vec(sinusoids, (2, 16), device)?;
    let as_text = embedding::VectorEmbedder::new(16, hidden, vb.pp("t_embedder"))?;
    assert_close(&times.forward(t)?, &as_text.forward(&sinusoids)?, 1e-4);
    let whole = Tensor::new(&[900u32, 12], device)?;
    assert_close(
        &times.forward(&whole)?.get(0)?,
        &times.forward(t)?.get(0)?,
        1e-6,
    );
    Ok(())
}
test_device!(parts_make_the_whole);

/// The tensors of a file determine its blocks and their norms.
fn files_decide(device: &Device) -> Result<()> {
    let both = Inputs::new(device)?;
    let results = both.run(&load(weights(DType::F32, device))?, None)?;
    for without in [
        "attn2",
        "ln_",
        "0.x_block.attn2",
        "2.context_block.attn.ln_",
    ] {
        let other = load(weights_without(without, DType::F32, device))?;
        let changed = difference(&both.run(&other, None)?, &results)?;
        assert!(
            changed > 1e-4,
            "without {without} the result changes by {changed}"
        );
    }
    let half = weights_without("ln_q", DType::F32, device);
    refused(load(half), &["ln_q"]);
    Ok(())
}
test_device!(files_decide);

/// Blocks can be left out; the last one stays.
fn skipped_blocks(device: &Device) -> Result<()> {
    let mmdit = load(weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    let all = both.run(&mmdit, None)?;
    let skipped = |blocks: &[usize]| both.run(&mmdit, Some(blocks));
    assert_close(&skipped(&[])?, &all, 0.);
    assert_close(&skipped(&[2, 7])?, &all, 0.);
    let first = skipped(&[0])?;
    assert!(
        difference(&first, &all)? > 1e-4,
        "the first block is not left out"
    );
    assert!(
        difference(&skipped(&[0, 1])?, &first)? > 1e-4,
        "the second block is not left out"
    );
    Ok(())
}
test_device!(skipped_blocks);

/// Queries, keys and values are in the order of the file, and the middle of the table has the positions of few patches.
#[test]
fn layouts() -> Result<()> {
    let device = &Device::Cpu;
    let vb = weights_without("ln_", DType::F32, device);
    let attention = projections::AttnProjections::new(12, 3, vb.clone())?;
    let xs = Numbers::new(2).tensor(&[2, 5, 12], 1., device)?;
    let qkv = attention.pre_attention(&xs)?;
    let joined = candle_nn::linear(12, 36, vb.pp("qkv"))?.forward(&xs)?;
    assert_close(&qkv.q, &joined.narrow(2, 0, 12)?, 0.);
    assert_close(&qkv.k, &joined.narrow(2, 12, 12)?, 0.);
    assert_eq!(qkv.v.dims(), &[2, 5, 3, 4]);
    assert_close(&qkv.v.flatten_from(2)?, &joined.narrow(2, 24, 12)?, 0.);

    let places = embedding::PositionEmbedder::new(4, 2, 5, vb.clone())?;
    let table = vb.get((1, 25, 4), "pos_embed")?.reshape((5, 5, 4))?;
    let expected = table.narrow(0, 1, 2)?.narrow(1, 1, 3)?.reshape((1, 6, 4))?;
    assert_close(&places.get_cropped_pos_embed(4, 6)?, &expected, 0.);
    // A row or column of pixels behind the last whole patch is a patch.
    assert_close(&places.get_cropped_pos_embed(3, 5)?, &expected, 0.);
    let all = places.get_cropped_pos_embed(10, 10)?;
    assert_close(&all, &table.reshape((1, 25, 4))?, 0.);
    refused(
        places.get_cropped_pos_embed(10, 12),
        &["10 x 12", "5 x 6", "5 x 5"],
    );
    let single = embedding::PositionEmbedder::new(4, 1, 5, vb)?;
    assert_close(&single.get_cropped_pos_embed(5, 5)?, &all, 0.);
    Ok(())
}

#[test]
fn weights_learn() -> Result<()> {
    let inputs = Inputs::new(&Device::Cpu)?;
    every_weight_learns(|vb| inputs.run(&model::MMDiT::new(&config(), false, vb)?, None))
}

#[test]
fn bad_configurations() {
    type Break = fn(&mut model::Config);
    let cases: [(Break, &[&str]); 7] = [
        (|c| c.depth = 0, &["depth", "0"]),
        (|c| c.head_size = 0, &["head_size"]),
        (|c| c.patch_size = 0, &["patch_size"]),
        (|c| c.in_channels = 0, &["in_channels"]),
        (|c| c.pos_embed_max_size = 0, &["pos_embed_max_size"]),
        (
            |c| c.frequency_embedding_size = 0,
            &["frequency_embedding_size is 0"],
        ),
        (
            |c| c.frequency_embedding_size = 7,
            &["frequency_embedding_size is 7", "even"],
        ),
    ];
    let vb = || weights(DType::F32, &Device::Cpu);
    for (change, words) in cases {
        let mut cfg = config();
        change(&mut cfg);
        refused(model::MMDiT::new(&cfg, false, vb()), words);
    }
    refused(blocks::DiTBlock::new(16, 3, vb()), &["3 heads", "16"]);
    refused(blocks::SelfAttnDiTBlock::new(16, 0, vb()), &["0 heads"]);
    refused(blocks::QkvOnlyDiTBlock::new(16, 5, vb()), &["5 heads"]);
    refused(
        blocks::MMDiTJointBlock::new(16, 3, false, vb()),
        &["3 heads"],
    );
    refused(
        blocks::MMDiTXJointBlock::new(16, 3, false, vb()),
        &["3 heads"],
    );
    refused(
        blocks::ContextQkvOnlyJointBlock::new(16, 3, false, vb()),
        &["3 heads"],
    );
    refused(
        model::MMDiTCore::new(0, 16, 2, 2, 4, false, vb()),
        &["depth is 0"],
    );
    refused(embedding::Unpatchifier::new(0, 4), &["patch_size"]);
    refused(
        embedding::PatchEmbedder::new(0, 4, 8, vb()),
        &["patch_size"],
    );
}

#[test]
fn bad_inputs() -> Result<()> {
    let device = &Device::Cpu;
    let mmdit = load(weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    let cases: [(usize, &[usize], &[&str]); 8] = [
        (0, &[2, 4, 6], &["[2, 4, 6]", "height, width"]),
        (0, &[2, 4, 6, 7], &["[2, 4, 6, 7]", "multiples of 2"]),
        (0, &[2, 4, 18, 8], &["18 x 8", "9 x 4", "8 x 8"]),
        (0, &[2, 3, 6, 8], &["[2, 3, 6, 8]", "must be"]),
        (1, &[3], &["t is [3]", "(2) and (2, adm_in_channels)"]),
        (2, &[3, 12], &["y is [3, 12]"]),
        (2, &[1, 11], &["[1, 11]"]),
        (3, &[1, 5, 10], &["context is [1, 5, 10]", "(2, tokens"]),
    ];
    for (which, dims, words) in cases {
        let wrong = Tensor::zeros(dims, DType::F32, device)?;
        let inputs = both.map(|i, t| Ok(if i == which { wrong.clone() } else { t.clone() }))?;
        refused(inputs.run(&mmdit, None), words);
    }
    let unpatchifier = embedding::Unpatchifier::new(2, 4)?;
    let tokens = Tensor::zeros((1, 6, 16), DType::F32, device)?;
    refused(
        unpatchifier.unpatchify(&tokens, 4, 4),
        &["[1, 6, 16]", "4 x 4"],
    );
    Ok(())
}
