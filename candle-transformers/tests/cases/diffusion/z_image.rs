//! Z-Image's transformer. What it returns is held against Candle's by the oracle; here is what that cannot show.

use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::{linear, rms_norm, VarBuilder};
use candle_transformers::models::z_image::transformer::{
    self, Config, ZImageTransformer2DModel, ZImageTransformerBlock,
};
use candle_transformers::models::z_image::{preprocess, SchedulerConfig};

use super::{
    assert_close, difference, every_weight_learns, refused, weights, weights_without, Numbers,
};

fn config() -> Config {
    Config {
        in_channels: 4,
        dim: 36,
        n_layers: 1,
        n_refiner_layers: 1,
        n_heads: 2,
        n_kv_heads: 2,
        cap_feat_dim: 10,
        axes_dims: vec![6, 4, 8],
        axes_lens: vec![80, 8, 8],
        ..Config::z_image_turbo()
    }
}

/// Latents, times, texts of five and three tokens, and which are tokens.
#[derive(Clone)]
struct Inputs([Tensor; 4]);

impl Inputs {
    fn new(device: &Device) -> Result<Self> {
        let mut numbers = Numbers::new(3);
        let mut some = |shape: &[usize]| numbers.tensor(shape, 1., device);
        Ok(Self([
            some(&[2, 4, 1, 4, 6])?,
            Tensor::new(&[0.1f32, 0.75], device)?,
            some(&[2, 5, 10])?,
            Tensor::new(&[[1u8, 1, 1, 1, 1], [1, 1, 1, 0, 0]], device)?,
        ]))
    }

    fn run(&self, model: &ZImageTransformer2DModel) -> Result<Tensor> {
        let [x, t, text, mask] = &self.0;
        model.forward(x, t, text, mask)
    }

    fn map(&self, f: impl Fn(usize, &Tensor) -> Result<Tensor>) -> Result<Self> {
        let [x, t, text, mask] = &self.0;
        Ok(Self([f(0, x)?, f(1, t)?, f(2, text)?, f(3, mask)?]))
    }

    /// The inputs with one of them replaced.
    fn with(&self, which: usize, other: &Tensor) -> Result<Self> {
        self.map(|i, t| Ok(if i == which { other.clone() } else { t.clone() }))
    }
}

fn model(device: &Device) -> Result<()> {
    let model = ZImageTransformer2DModel::new(&config(), weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    let results = both.run(&model)?;
    assert_eq!(results.dims(), both.0[0].dims());
    for i in 0..2 {
        let alone = both.map(|_, t| t.narrow(0, i, 1))?.run(&model)?;
        assert_close(&alone, &results.narrow(0, i, 1)?, 2e-5);
    }
    // Rows and columns exchanged in memory.
    let strided = both.map(|i, t| match i {
        1 => Ok(t.clone()),
        _ => t.t()?.contiguous()?.t(),
    })?;
    assert_close(&strided.run(&model)?, &results, 1e-5);
    // One time for the whole batch.
    let time = both.0[1].narrow(0, 0, 1)?;
    let expected = both.with(1, &time.repeat(2)?)?.run(&model)?;
    assert_close(&both.with(1, &time)?.run(&model)?, &expected, 1e-5);

    // What a text is filled up with does not matter, its tokens do.
    let [_, _, text, mask] = &both.0;
    let changed = |first, len| -> Result<Tensor> {
        let (before, after) = (
            text.narrow(1, 0, first)?,
            text.narrow(1, first + len, 5 - first - len)?,
        );
        let other = (text.narrow(1, first, len)? * -3.)?;
        both.with(2, &Tensor::cat(&[before, other, after], 1)?)?
            .run(&model)
    };
    let other = changed(3, 2)?;
    assert_close(&other.get(1)?, &results.get(1)?, 1e-5);
    assert!(
        difference(&other.get(0)?, &results.get(0)?)? > 1e-4,
        "tokens do not matter"
    );
    assert!(
        difference(&changed(2, 1)?.get(1)?, &results.get(1)?)? > 1e-4,
        "a token does not matter"
    );
    // A text without tokens does not give NaN.
    let nothing = both.with(3, &mask.zeros_like()?)?.run(&model)?;
    assert!(difference(&nothing, &results)?.is_finite());

    let half = ZImageTransformer2DModel::new(&config(), weights(DType::F16, device))?;
    let inputs = both.map(|i, t| {
        if i % 2 == 1 {
            Ok(t.clone())
        } else {
            t.to_dtype(DType::F16)
        }
    })?;
    let half = inputs.run(&half)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &results, 0.03);
    Ok(())
}
test_device!(model);

/// Texts and patches are filled up by vectors of the model, which are seen; a text of a batch is what it is alone.
fn filled_up(device: &Device) -> Result<()> {
    let (cfg, vb) = (config(), weights(DType::F32, device));
    let model = ZImageTransformer2DModel::new(&cfg, vb.clone())?;
    let both = Inputs::new(device)?;
    let [x, t, text, mask] = both.map(|_, t| t.narrow(0, 0, 1))?.0;
    let found = model.forward(&x, &t, &text, &mask)?;

    let fill = |xs: Tensor, name: &str| -> Result<Tensor> {
        let padding = vb.get((1, 36), name)?.broadcast_left(32 - xs.dim(1)?)?;
        Tensor::cat(&[xs, padding.transpose(0, 1)?], 1)
    };
    let (patches, size) = transformer::patchify(&x, 2, 1)?;
    let xs = linear(16, 36, vb.pp("all_x_embedder.2-1"))?.forward(&patches)?;
    let mut xs = fill(xs, "x_pad_token")?;
    let cap = rms_norm(10, 1e-5, vb.pp("cap_embedder.0"))?.forward(&text)?;
    let cap = linear(10, 36, vb.pp("cap_embedder.1"))?.forward(&cap)?;
    let mut cap = fill(cap, "cap_pad_token")?;
    let (dims, lens) = (cfg.axes_dims.clone(), cfg.axes_lens.clone());
    let rope = transformer::RopeEmbedder::new(cfg.rope_theta, dims, lens, device, DType::F32)?;
    let grid = |size, start| transformer::create_coordinate_grid(size, start, device);
    let places = grid((1, 2, 3), (33, 0, 0))?;
    let places = Tensor::cat(&[places, Tensor::zeros((26, 3), DType::U32, device)?], 0)?;
    let (cos, sin) = rope.forward(&places)?;
    let (cap_cos, cap_sin) = rope.forward(&grid((32, 1, 1), (1, 0, 0))?)?;
    let time = transformer::TimestepEmbedder::new(36, 1024, vb.pp("t_embedder"))?;
    let time = time.forward(&(&t * 1000.)?)?;
    let block = |name, timed| ZImageTransformerBlock::new(&cfg, timed, vb.pp(name));
    xs = block("noise_refiner.0", true)?.forward(&xs, None, &cos, &sin, Some(&time))?;
    cap = block("context_refiner.0", false)?.forward(&cap, None, &cap_cos, &cap_sin, None)?;
    let all = Tensor::cat(&[xs, cap], 1)?;
    let (cos, sin) = (
        Tensor::cat(&[cos, cap_cos], 0)?,
        Tensor::cat(&[sin, cap_sin], 0)?,
    );
    let all = block("layers.0", true)?.forward(&all, None, &cos, &sin, Some(&time))?;
    let last = transformer::FinalLayer::new(36, 16, vb.pp("all_final_layer.2-1"))?;
    let ys = last.forward(&all, &time)?;
    let expected = transformer::unpatchify(&ys, size, 2, 1, 4)?;
    assert_close(&found, &expected, 2e-5);

    // A text of 40 tokens in the same batch: 64 positions, of which the short one has 32.
    let long = Numbers::new(8).tensor(&[40, 10], 1., device)?;
    let short = text.squeeze(0)?;
    let (texts, masks, _) = preprocess::pad_text_embeddings(&[short, long], 9., device)?;
    assert_eq!(texts.dims(), &[2, 64, 10]);
    let (xs, ts) = (x.repeat(2)?, t.repeat(2)?);
    let together = model.forward(&xs, &ts, &texts, &masks)?;
    assert_close(&together.narrow(0, 0, 1)?, &expected, 2e-5);
    let changed = difference(&together.narrow(0, 1, 1)?, &expected)?;
    assert!(
        changed > 1e-4,
        "another text changes the picture by {changed}"
    );
    Ok(())
}
test_device!(filled_up);

/// Key heads that several query heads read are the same as copies of them.
#[test]
fn grouped_heads() -> Result<()> {
    let device = &Device::Cpu;
    let grouped = Config {
        n_kv_heads: 1,
        ..config()
    };
    let vb = weights(DType::F32, device);
    let attention = transformer::ZImageAttention::new(&grouped, vb.clone())?;
    let mut tensors = std::collections::HashMap::new();
    for (name, rows) in [("to_q", 36), ("to_k", 18), ("to_v", 18), ("to_out.0", 36)] {
        let weight = vb.get((rows, 36), &format!("{name}.weight"))?;
        let copies = 36 / rows;
        tensors.insert(format!("{name}.weight"), weight.repeat((copies, 1))?);
    }
    for name in ["norm_q.weight", "norm_k.weight"] {
        tensors.insert(name.to_string(), vb.get(18, name)?);
    }
    let vb = VarBuilder::from_tensors(tensors, DType::F32, device);
    let copied = transformer::ZImageAttention::new(&config(), vb)?;
    let xs = Numbers::new(1).tensor(&[2, 4, 36], 1., device)?;
    let angles = Numbers::new(2).tensor(&[4, 9], 3., device)?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    let expected = copied.forward(&xs, None, &cos, &sin)?;
    assert_close(&attention.forward(&xs, None, &cos, &sin)?, &expected, 1e-5);
    // A mask of ones hides nothing.
    let mask = Tensor::ones((2, 4), DType::U32, device)?;
    assert_close(
        &attention.forward(&xs, Some(&mask), &cos, &sin)?,
        &expected,
        1e-5,
    );
    Ok(())
}

#[test]
fn blocks_need_their_time() -> Result<()> {
    let device = &Device::Cpu;
    let vb = weights(DType::F32, device);
    let xs = Numbers::new(1).tensor(&[1, 4, 36], 1., device)?;
    let angles = Tensor::zeros((4, 9), DType::F32, device)?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    let timed = transformer::ZImageTransformerBlock::new(&config(), true, vb.clone())?;
    refused(timed.forward(&xs, None, &cos, &sin, None), &["adaln_input"]);
    let plain = transformer::ZImageTransformerBlock::new(&config(), false, vb)?;
    let time = Tensor::ones((1, 36), DType::F32, device)?;
    let with = plain.forward(&xs, None, &cos, &sin, Some(&time))?;
    assert_close(&with, &plain.forward(&xs, None, &cos, &sin, None)?, 0.);
    Ok(())
}

/// Patches of several frames contain the numbers of their positions.
fn patches(device: &Device) -> Result<()> {
    let (b, c, f, h, w) = (2, 3, 4, 4, 6);
    let numbers = Tensor::arange(0f32, (b * c * f * h * w) as f32, device)?;
    let latents = numbers.reshape((b, c, f, h, w))?;
    let (found, size) = transformer::patchify(&latents, 2, 2)?;
    assert_eq!(size, (f, h, w));
    let mut expected = Vec::new();
    for (b, frame) in (0..b).flat_map(|b| (0..f).step_by(2).map(move |frame| (b, frame))) {
        for (row, column) in [0, 2].iter().flat_map(|r| [0, 2, 4].map(|c| (*r, c))) {
            for (i, y, x) in (0..8).map(|i| (i / 4, i / 2 % 2, i % 2)) {
                for channel in 0..c {
                    let frame = (b * c + channel) * f + frame + i;
                    expected.push(((frame * h + row + y) * w + column + x) as f32);
                }
            }
        }
    }
    assert_eq!(found.dims(), &[b, 2 * 2 * 3, 8 * c]);
    assert_eq!(found.flatten_all()?.to_vec1::<f32>()?, expected);
    let padded = found.pad_with_zeros(1, 0, 3)?;
    assert_close(
        &transformer::unpatchify(&padded, size, 2, 2, c)?,
        &latents,
        0.,
    );

    refused(transformer::patchify(&latents, 4, 1), &["4 x 6", "4 x 4"]);
    refused(
        transformer::patchify(&latents, 2, 3),
        &["4 frames", "3 frames"],
    );
    refused(transformer::patchify(&latents, 0, 1), &["0 x 0"]);
    refused(
        transformer::unpatchify(&found, (6, 4, 6), 2, 2, c),
        &["[2, 12, 24]", "18"],
    );
    refused(
        transformer::unpatchify(&found, size, 2, 2, 4),
        &["[2, 12, 24]", "32"],
    );
    let grid = transformer::create_coordinate_grid((2, 1, 2), (7, 3, 0), device)?;
    assert_eq!(
        grid.to_vec2::<u32>()?,
        [[7, 3, 0], [7, 3, 1], [8, 3, 0], [8, 3, 1]]
    );
    Ok(())
}
test_device!(patches);

/// Late positions have the angles of f64.
fn rotations(device: &Device) -> Result<()> {
    let rope = transformer::RopeEmbedder::new(256., vec![4, 2], vec![1536, 8], device, DType::F32)?;
    let ids = Tensor::new(&[[1535u32, 7], [0, 2]], device)?;
    let (cos, sin) = rope.forward(&ids)?;
    let mut expected = (Vec::new(), Vec::new());
    for [first, second] in [[1535f64, 7.], [0., 2.]] {
        for angle in [first, first / 16., second] {
            expected.0.push(angle.cos() as f32);
            expected.1.push(angle.sin() as f32);
        }
    }
    assert_close(&cos, &Tensor::from_vec(expected.0, (2, 3), device)?, 1e-6);
    assert_close(&sin, &Tensor::from_vec(expected.1, (2, 3), device)?, 1e-6);
    let heads = Numbers::new(4).tensor(&[1, 2, 5, 6], 1., device)?;
    let turned = transformer::apply_rotary_emb(&heads, &cos, &sin)?;
    let pair = |t: &Tensor, i| t.narrow(3, i, 1);
    let (cos, sin) = (cos.reshape((1, 2, 1, 3))?, sin.reshape((1, 2, 1, 3))?);
    for i in 0..3 {
        let (x, y) = (pair(&heads, 2 * i)?, pair(&heads, 2 * i + 1)?);
        let (c, s) = (pair(&cos, i)?, pair(&sin, i)?);
        let first = (x.broadcast_mul(&c)? - y.broadcast_mul(&s)?)?;
        let second = (x.broadcast_mul(&s)? + y.broadcast_mul(&c)?)?;
        assert_close(&pair(&turned, 2 * i)?, &first, 1e-6);
        assert_close(&pair(&turned, 2 * i + 1)?, &second, 1e-6);
    }
    refused(rope.forward(&ids.narrow(1, 0, 1)?), &["[2, 1]", "(seq, 2)"]);
    let new = |dims: &[usize], lens: &[usize]| {
        transformer::RopeEmbedder::new(256., dims.to_vec(), lens.to_vec(), device, DType::F32)
    };
    refused(new(&[4, 3], &[8, 8]), &["[4, 3]", "even"]);
    refused(new(&[4, 4], &[8]), &["[4, 4]", "[8]"]);
    Ok(())
}
test_device!(rotations);

#[test]
fn weights_learn() -> Result<()> {
    let inputs = Inputs::new(&Device::Cpu)?;
    every_weight_learns(|vb| inputs.run(&ZImageTransformer2DModel::new(&config(), vb)?))
}

#[test]
fn bad_configurations() -> Result<()> {
    type Break = fn(&mut Config);
    let cases: [(Break, &[&str]); 9] = [
        (|c| c.n_heads = 0, &["0 heads", "36"]),
        (|c| c.n_heads = 5, &["5 heads", "36"]),
        (|c| c.n_kv_heads = 0, &["0 key heads"]),
        (
            |c| (c.n_heads, c.n_kv_heads) = (6, 4),
            &["6 query heads", "4 key heads"],
        ),
        (|c| c.axes_dims = vec![6, 4, 4], &["[6, 4, 4]", "18"]),
        (|c| c.axes_dims = vec![18], &["[18]", "three"]),
        (|c| c.all_patch_size.clear(), &["all_patch_size is []"]),
        (|c| c.all_f_patch_size = vec![0], &["all_f_patch_size [0]"]),
        (|c| c.in_channels = 0, &["in_channels is 0"]),
    ];
    for (change, words) in cases {
        let mut cfg = config();
        change(&mut cfg);
        let vb = weights(DType::F32, &Device::Cpu);
        refused(ZImageTransformer2DModel::new(&cfg, vb), words);
    }
    assert_eq!(
        Config {
            n_heads: 0,
            ..config()
        }
        .head_dim(),
        0
    );
    // Files leave out numbers, and have others that are not asked for.
    let turbo: Config = serde_json::from_str(r#"{"_class_name": "x", "n_layers": 3}"#)
        .map_err(candle_core::Error::wrap)?;
    assert_eq!(
        (turbo.n_layers, turbo.dim, turbo.hidden_dim()),
        (3, 3840, 10_240)
    );
    let scheduler: SchedulerConfig =
        serde_json::from_str("{}").map_err(candle_core::Error::wrap)?;
    assert_eq!((scheduler.shift, scheduler.num_train_timesteps), (3., 1000));
    // The names of layers to and from patches have the patch's size.
    let vb = weights_without("2-1", DType::F32, &Device::Cpu);
    refused(
        ZImageTransformer2DModel::new(&config(), vb.clone()),
        &["all_x_embedder.2-1"],
    );
    let larger = Config {
        all_patch_size: vec![4],
        ..config()
    };
    ZImageTransformer2DModel::new(&larger, vb)?;
    Ok(())
}

#[test]
fn bad_inputs() -> Result<()> {
    let device = &Device::Cpu;
    let model = ZImageTransformer2DModel::new(&config(), weights(DType::F32, device))?;
    let both = Inputs::new(device)?;
    let cases: [(usize, &[usize], &[&str]); 8] = [
        (0, &[2, 4, 4, 6], &["[2, 4, 4, 6]", "frames, height, width"]),
        (0, &[2, 3, 1, 4, 6], &["[2, 3, 1, 4, 6]", "(batch, 4,"]),
        (0, &[2, 4, 1, 4, 5], &["4 x 5", "2 x 2"]),
        (0, &[2, 4, 1, 18, 4], &["[34, 9, 2]", "[80, 8, 8]"]),
        (1, &[3], &["t is [3]"]),
        (
            2,
            &[1, 5, 10],
            &["cap_feats is [1, 5, 10]", "(2, tokens, 10)"],
        ),
        (2, &[2, 5, 9], &["cap_feats is [2, 5, 9]"]),
        (3, &[2, 4], &["cap_mask is [2, 4]", "(2, 5)"]),
    ];
    for (which, dims, words) in cases {
        let wrong = Tensor::zeros(dims, DType::F32, device)?;
        refused(both.with(which, &wrong)?.run(&model), words);
    }
    Ok(())
}
