//! Stable Diffusion's networks: batches, 16 bits, names of weights, and what is refused.

use std::collections::HashMap;

use candle_core::{test_device, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::clip::text_model;
use candle_transformers::models::stable_diffusion::attention::{
    AttentionBlock, AttentionBlockConfig, CrossAttention, SpatialTransformer,
    SpatialTransformerConfig,
};
use candle_transformers::models::stable_diffusion::embeddings::Timesteps;
use candle_transformers::models::stable_diffusion::unet_2d::{
    BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
};
use candle_transformers::models::stable_diffusion::unet_2d_blocks::{
    CrossAttnUpBlock2D, CrossAttnUpBlock2DConfig, UpBlock2DConfig,
};
use candle_transformers::models::stable_diffusion::vae::{
    AutoEncoderKL, AutoEncoderKLConfig, DiagonalGaussianDistribution,
};
use candle_transformers::models::stable_diffusion::{
    build_clip_transformer, clip, StableDiffusionConfig,
};

use super::schedulers::{assert_refused, moments};
use super::support::{assert_close, token_ids, Numbers};
use super::vision::{check, check_of, pictures, weights, Forward, Made};

fn vae_config() -> AutoEncoderKLConfig {
    AutoEncoderKLConfig {
        block_out_channels: vec![8, 12],
        norm_num_groups: 4,
        ..Default::default()
    }
}

fn decoder(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        let vae = AutoEncoderKL::new(vb, 3, 3, vae_config())?;
        Ok(Box::new(move |xs| vae.decode(xs)))
    };
    check(device, load, [4, 6, 5], &[])
}
test_device!(decoder);

/// Weights whose distributions of latents have no width.
struct Narrow(Made);

impl SimpleBackend for Narrow {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let made = self.0.get(s, name, h, dtype, dev)?;
        if name == "quant_conv.bias" {
            let half = made.dim(0)? / 2;
            let below = (made.narrow(0, half, half)? - 2000.)?;
            Tensor::cat(&[made.narrow(0, 0, half)?, below], 0)
        } else {
            Ok(made)
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.0.get_unchecked(name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains_tensor(name)
    }
}

/// Upstream's attention of several images is wrong on the CPU.
fn encoder(device: &Device) -> Result<()> {
    let load = |dtype| -> Result<Forward> {
        let made = Narrow(Made {
            vars: false,
            without: "",
            gain: 1.,
        });
        let vb = VarBuilder::from_backend(Box::new(made), dtype, device.clone());
        let vae = AutoEncoderKL::new(vb, 3, 3, vae_config())?;
        Ok(Box::new(move |xs| vae.encode(xs)?.sample()))
    };
    check_of(device, load, [3, 12, 10], &[&[1, 3, 1, 8]])
}
test_device!(encoder);

fn distribution(device: &Device) -> Result<()> {
    let mean = Tensor::full(2f32, (1, 1, 100, 100), device)?;
    let log_variance = Tensor::full(9f32.ln(), (1, 1, 100, 100), device)?;
    let parameters = Tensor::cat(&[mean, log_variance], 1)?;
    for dtype in [DType::F32, DType::F16] {
        let parameters = DiagonalGaussianDistribution::new(&parameters.to_dtype(dtype)?)?;
        let sample = parameters.sample()?;
        assert_eq!(
            (sample.dims(), sample.dtype()),
            (&[1, 1, 100, 100][..], dtype)
        );
        let (mean, deviation) = moments(&sample)?;
        assert!((mean - 2.).abs() < 0.2, "the mean is {mean}");
        assert!((deviation - 3.).abs() < 0.2, "the deviation is {deviation}");
    }
    let odd = Tensor::zeros((1, 3, 2), DType::F32, device)?;
    assert_refused(
        DiagonalGaussianDistribution::new(&odd),
        &["[1, 3, 2]", "2 * channels"],
    );
    Ok(())
}
test_device!(distribution);

#[test]
fn what_autoencoders_refuse() {
    let load = |block_out_channels: Vec<usize>, norm_num_groups| {
        let config = AutoEncoderKLConfig {
            block_out_channels,
            norm_num_groups,
            ..Default::default()
        };
        AutoEncoderKL::new(weights(DType::F32, &Device::Cpu), 3, 3, config)
    };
    assert_refused(load(vec![], 4), &["block_out_channels is empty"]);
    assert_refused(load(vec![8, 10], 4), &["10 channels", "4 groups"]);
    assert_refused(load(vec![8], 0), &["0 groups"]);
}

/// The three forms that files have the layers of attention in.
fn names_of_attention(device: &Device) -> Result<()> {
    let mut numbers = Numbers::new(3);
    let mut made = HashMap::new();
    for (old, new) in [
        ("query", "to_q"),
        ("key", "to_k"),
        ("value", "to_v"),
        ("proj_attn", "to_out.0"),
    ] {
        let weight = numbers.tensor(&[8, 8], 0.5, device)?;
        made.insert((old, new), (weight, numbers.tensor(&[8], 0.5, device)?));
    }
    let norm = |name: &str| -> Result<_> {
        Ok((
            format!("group_norm.{name}"),
            Tensor::ones(8, DType::F32, device)?,
        ))
    };
    let load = |new: bool, shape: &[usize]| -> Result<AttentionBlock> {
        let mut tensors: HashMap<_, _> = [norm("weight")?, norm("bias")?].into();
        for ((old, named), (weight, bias)) in &made {
            let name = if new { named } else { old };
            tensors.insert(format!("{name}.weight"), weight.reshape(shape)?);
            tensors.insert(format!("{name}.bias"), bias.clone());
        }
        let config = AttentionBlockConfig {
            num_groups: 2,
            num_head_channels: Some(4),
            ..Default::default()
        };
        AttentionBlock::new(
            VarBuilder::from_tensors(tensors, DType::F32, device),
            8,
            config,
        )
    };
    let xs = Numbers::new(4).tensor(&[2, 8, 3, 4], 1., device)?;
    let expected = load(true, &[8, 8])?.forward(&xs)?;
    // An image in a batch is as it is alone, with several heads too, which upstream's products refuse.
    let alone = load(true, &[8, 8])?.forward(&xs.narrow(0, 1, 1)?)?;
    assert_close(&expected.narrow(0, 1, 1)?, &alone, 1e-6);
    for (new, shape) in [
        (false, &[8, 8][..]),
        (true, &[8, 8, 1, 1]),
        (false, &[8, 8, 1, 1]),
    ] {
        assert_close(&load(new, shape)?.forward(&xs)?, &expected, 0.);
    }
    assert_refused(load(true, &[4, 16]), &["to_q.weight"]);

    let heads = |num_head_channels| {
        let config = AttentionBlockConfig {
            num_head_channels,
            num_groups: 2,
            ..Default::default()
        };
        AttentionBlock::new(weights(DType::F32, device), 8, config)
    };
    assert_refused(heads(Some(3)), &["size 3", "8 channels"]);
    assert_refused(heads(Some(0)), &["size 0"]);
    Ok(())
}
test_device!(names_of_attention);

/// The size of slices, which is an error in upstream, and flash attention change nothing; a context that is the input is none.
fn attention_of_slices(device: &Device) -> Result<()> {
    let load = |context, slice, flash| {
        let vb = weights(DType::F32, device);
        CrossAttention::new(vb, 12, context, 3, 4, slice, flash)
    };
    let xs = Numbers::new(4).tensor(&[2, 5, 12], 1., device)?;
    let expected = load(None, None, false)?.forward(&xs, None)?;
    for (context, slice, flash) in [
        (None, Some(2), false),
        (None, Some(0), true),
        (Some(12), Some(3), true),
    ] {
        let attention = load(context, slice, flash)?;
        assert_close(&attention.forward(&xs, None)?, &expected, 1e-6);
        assert_close(&attention.forward(&xs, Some(&xs))?, &expected, 1e-6);
    }
    let turned = xs.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
    assert_close(
        &load(None, None, false)?.forward(&turned, None)?,
        &expected,
        1e-6,
    );
    let vb = weights(DType::F32, device);
    assert_refused(
        CrossAttention::new(vb.clone(), 12, None, 0, 4, None, false),
        &["0 heads"],
    );
    let none = SpatialTransformer::new(vb, 12, 0, 4, false, SpatialTransformerConfig::default());
    assert!(none.is_err());
    Ok(())
}
test_device!(attention_of_slices);

/// More and less inside than outside, where the last layer is linear: upstream loads it the wrong way round.
fn transformer_of_other_size(device: &Device) -> Result<()> {
    let load = |use_linear_projection, vb| {
        let config = SpatialTransformerConfig {
            num_groups: 4,
            context_dim: Some(6),
            use_linear_projection,
            ..Default::default()
        };
        SpatialTransformer::new(vb, 8, 3, 4, false, config)
    };
    let xs = Numbers::new(4).tensor(&[2, 8, 3, 5], 1., device)?;
    let text = Numbers::new(5).tensor(&[2, 7, 6], 1., device)?;
    let convs = load(false, weights(DType::F32, device))?.forward(&xs, Some(&text))?;
    let linears = load(true, weights(DType::F32, device))?.forward(&xs, Some(&text))?;
    assert_close(&linears, &convs, 1e-6);
    Ok(())
}
test_device!(transformer_of_other_size);

fn unet_config() -> UNet2DConditionModelConfig {
    let block = |out_channels, use_cross_attn| BlockConfig {
        out_channels,
        use_cross_attn,
        attention_head_dim: 2,
    };
    UNet2DConditionModelConfig {
        blocks: vec![block(8, Some(1)), block(12, None)],
        layers_per_block: 1,
        // Upstream's blocks have 32 whatever this says.
        norm_num_groups: 4,
        cross_attention_dim: 6,
        ..Default::default()
    }
}

fn unet(vb: VarBuilder, config: UNet2DConditionModelConfig) -> Result<UNet2DConditionModel> {
    UNet2DConditionModel::new(vb, 4, 4, false, config)
}

/// One text of five tokens for each of the latents.
fn text(xs: &Tensor) -> Result<Tensor> {
    let text = Numbers::new(9).tensor(&[1, 5, 6], 1., xs.device())?;
    text.expand((xs.dim(0)?, 5, 6))?.to_dtype(xs.dtype())
}

/// The time is 997, which f16 has, but not the angles of its sines.
fn unet_of_batches(device: &Device) -> Result<()> {
    let load = |vb| -> Result<Forward> {
        let model = unet(vb, unet_config())?;
        Ok(Box::new(move |xs| model.forward(xs, 997., &text(xs)?)))
    };
    check(device, load, [4, 6, 7], &[&[1, 3, 6, 7]])?;

    let model = load(weights(DType::F32, device))?;
    let xs = pictures([1, 4, 6, 7], device)?;
    let expected = model(&xs)?;
    let turned = xs.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
    assert_close(&model(&turned)?, &expected, 1e-6);
    let sliced = UNet2DConditionModelConfig {
        sliced_attention_size: Some(0),
        ..unet_config()
    };
    let sliced = UNet2DConditionModel::new(weights(DType::F32, device), 4, 4, true, sliced)?;
    assert_close(&sliced.forward(&xs, 997., &text(&xs)?)?, &expected, 0.);
    Ok(())
}
test_device!(unet_of_batches);

/// The text, the time and the residuals all matter; residuals of zeros do not.
fn unet_of_residuals(device: &Device) -> Result<()> {
    let model = unet(weights(DType::F32, device), unet_config())?;
    let xs = pictures([2, 4, 6, 8], device)?;
    let text = text(&xs)?;
    let plain = model.forward(&xs, 3., &text)?;
    let shapes = [(8, 6, 8), (8, 6, 8), (8, 3, 4), (12, 3, 4)];
    let zeros = |(c, h, w)| Tensor::zeros((2, c, h, w), DType::F32, device);
    let residuals = shapes.into_iter().map(zeros).collect::<Result<Vec<_>>>()?;
    let with = |residuals: &[Tensor], middle: f64| {
        let middle = (residuals[3].ones_like()? * middle)?;
        model.forward_with_additional_residuals(&xs, 3., &text, Some(residuals), Some(&middle))
    };
    assert_close(&with(&residuals, 0.)?, &plain, 0.);
    let far =
        |other: Tensor| -> Result<f32> { (other - &plain)?.abs()?.max_all()?.to_scalar::<f32>() };
    assert!(far(with(&residuals, 0.5)?)? > 1e-3);
    for i in 0..4 {
        let mut changed = residuals.clone();
        changed[i] = (&changed[i] + 0.5)?;
        assert!(far(with(&changed, 0.)?)? > 1e-3, "residual {i} is not read");
    }
    assert!(far(model.forward(&xs, 900., &text)?)? > 1e-3);
    assert!(far(model.forward(&xs, 3., &(&text * 2.)?)?)? > 1e-3);

    assert_refused(
        with(&[&residuals[..], &residuals[..2]].concat(), 0.),
        &["6 residuals", "4"],
    );
    let refused = |text: Tensor| model.forward(&xs, 3., &text);
    assert_refused(
        refused(text.narrow(0, 0, 1)?),
        &["[1, 5, 6]", "(2, tokens, 6)"],
    );
    assert_refused(
        refused(text.narrow(2, 0, 5)?),
        &["[2, 5, 5]", "(2, tokens, 6)"],
    );
    Ok(())
}
test_device!(unet_of_residuals);

#[test]
fn what_unets_refuse() -> Result<()> {
    let load = |change: fn(&mut UNet2DConditionModelConfig)| {
        let mut config = unet_config();
        change(&mut config);
        unet(weights(DType::F32, &Device::Cpu), config)
    };
    assert!(load(|_| ()).is_ok());
    assert_refused(load(|c| c.blocks.clear()), &["no blocks"]);
    assert_refused(load(|c| c.norm_num_groups = 3), &["8 channels", "3 groups"]);
    let heads = |c: &mut UNet2DConditionModelConfig| c.blocks[0].attention_head_dim = 3;
    assert_refused(load(heads), &["3 heads", "8 channels"]);
    let heads = |c: &mut UNet2DConditionModelConfig| c.blocks[1].attention_head_dim = 0;
    assert_refused(load(heads), &["0 heads", "12 channels"]);

    let upblock = UpBlock2DConfig {
        resnet_groups: 4,
        num_layers: 2,
        ..Default::default()
    };
    let config = CrossAttnUpBlock2DConfig {
        upblock,
        cross_attention_dim: 8,
        ..Default::default()
    };
    let vb = weights(DType::F32, &Device::Cpu);
    let block = CrossAttnUpBlock2D::new(vb, 8, 8, 8, None, false, config)?;
    let xs = pictures([1, 8, 4, 4], &Device::Cpu)?;
    assert_refused(
        block.forward(&xs, std::slice::from_ref(&xs), None, None, None),
        &["1 skip tensors", "2 residual blocks"],
    );
    let both = [xs.clone(), xs.clone()];
    assert_eq!(
        block.forward(&xs, &both, None, None, None)?.dims(),
        &[1, 8, 8, 8]
    );
    let sized = block.forward(&xs, &both, None, Some((7, 8)), None)?;
    assert_eq!(sized.dims(), &[1, 8, 7, 8]);
    Ok(())
}

/// An odd channel is a zero at the end of each vector; upstream adds a row.
fn odd_timesteps(device: &Device) -> Result<()> {
    let times = Tensor::new(&[3f32, 500.], device)?;
    let even = Timesteps::new(6, true, 0.).forward(&times)?;
    let odd = Timesteps::new(7, true, 0.).forward(&times)?;
    let zeros = Tensor::zeros((2, 1), DType::F32, device)?;
    assert_close(&odd, &Tensor::cat(&[&even, &zeros], 1)?, 0.);
    let half = Timesteps::new(6, true, 0.).forward(&times.to_dtype(DType::F16)?)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &even, 2e-3);
    for (channels, shift) in [(1, 0.), (2, 1.), (0, -1.)] {
        let refused = Timesteps::new(channels, true, shift).forward(&times);
        assert_refused(refused, &[&format!("{channels} channels")]);
    }
    Ok(())
}
test_device!(odd_timesteps);

fn clip_config(num_hidden_layers: usize) -> text_model::ClipTextConfig {
    text_model::ClipTextConfig {
        vocab_size: 50,
        embed_dim: 16,
        intermediate_size: 24,
        max_position_embeddings: 9,
        num_hidden_layers,
        num_attention_heads: 4,
        ..text_model::ClipTextConfig::vit_base_patch32()
    }
}

fn text_encoder(layers: usize, dtype: DType, device: &Device) -> Result<clip::ClipTextTransformer> {
    clip::ClipTextTransformer::new(weights(dtype, device), &clip_config(layers).into())
}

/// The same encoder as that of a whole CLIP, which is compared with upstream's.
fn texts(device: &Device) -> Result<()> {
    let vb = weights(DType::F32, device);
    let whole = text_model::ClipTextTransformer::new(vb.pp("text_model"), &clip_config(2))?;
    let model = text_encoder(2, DType::F32, device)?;
    let ids = token_ids(2, 9, 50, device)?;
    let all = model.forward(&ids)?;
    assert_close(&all, &whole.forward_with_mask(&ids, usize::MAX)?, 1e-6);
    let masked = model.forward_with_mask(&ids, 3)?;
    assert_close(&masked, &whole.forward_with_mask(&ids, 3)?, 1e-6);

    // A text that is shorter, and tokens that come later, change nothing before them; nor do masked ones behind.
    let start = model.forward(&ids.narrow(1, 0, 5)?)?;
    assert_close(&all.narrow(1, 0, 5)?, &start, 1e-5);
    let alone = model.forward(&ids.narrow(0, 1, 1)?)?;
    assert_close(&all.narrow(0, 1, 1)?, &alone, 1e-5);
    let others = (ids.narrow(1, 4, 4)?.affine(-1., 49.))?;
    let last = ids.narrow(1, 8, 1)?;
    let changed = Tensor::cat(&[&ids.narrow(1, 0, 4)?, &others, &last], 1)?;
    let end = |xs: Tensor| xs.narrow(1, 8, 1);
    assert_close(
        &end(model.forward_with_mask(&changed, 3)?)?,
        &end(masked)?,
        1e-5,
    );

    let half = text_encoder(2, DType::F16, device)?.forward(&ids)?;
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &all, 0.05);
    assert_refused(
        model.forward(&token_ids(1, 10, 50, device)?),
        &["10 tokens", "9"],
    );
    Ok(())
}
test_device!(texts);

/// SDXL takes what the layer before the last one gives.
fn texts_of_a_layer(device: &Device) -> Result<()> {
    let model = text_encoder(3, DType::F32, device)?;
    let ids = token_ids(2, 6, 50, device)?;
    let until = |layer| model.forward_until_encoder_layer(&ids, usize::MAX, layer);
    let all = model.forward(&ids)?;
    for (layer, layers) in [
        (0isize, 1),
        (1, 2),
        (2, 3),
        (-1, 3),
        (-2, 2),
        (-3, 1),
        (-4, 0),
    ] {
        let (last, state) = until(layer)?;
        assert_close(&last, &all, 1e-6);
        // The output of a model with these layers alone, before its norm.
        let short = text_encoder(layers, DType::F32, device)?;
        let (_, expected) = short.forward_until_encoder_layer(&ids, usize::MAX, -1)?;
        assert_close(&state, &expected, 1e-6);
    }
    for layer in [3, -5, isize::MAX, isize::MIN] {
        assert_refused(until(layer), &[&format!("layer {layer} "), "3 layers"]);
    }
    let (_, masked) = model.forward_until_encoder_layer(&ids, 2, 1)?;
    let (_, open) = until(1)?;
    let far = (masked - open)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(far > 1e-3, "the mask changes nothing");
    Ok(())
}
test_device!(texts_of_a_layer);

/// The private settings of the versions.
#[test]
fn versions() {
    type Version = fn(Option<usize>, Option<usize>, Option<usize>) -> StableDiffusionConfig;
    type Blocks<'a> = &'a [(usize, Option<usize>, usize)];
    let v1: Blocks = &[
        (320, Some(1), 8),
        (640, Some(1), 8),
        (1280, Some(1), 8),
        (1280, None, 8),
    ];
    let v2: Blocks = &[
        (320, Some(1), 5),
        (640, Some(1), 10),
        (1280, Some(1), 20),
        (1280, None, 20),
    ];
    let xl: Blocks = &[(320, None, 5), (640, Some(2), 10), (1280, Some(10), 20)];
    let versions: [(Version, Blocks, usize, bool, usize); 5] = [
        (StableDiffusionConfig::v1_5, v1, 768, false, 512),
        (StableDiffusionConfig::v2_1, v2, 1024, true, 768),
        (StableDiffusionConfig::sdxl, xl, 2048, true, 1024),
        (StableDiffusionConfig::sdxl_turbo, xl, 2048, true, 512),
        (StableDiffusionConfig::ssd1b, xl, 2048, true, 1024),
    ];
    for (version, blocks, cross_attention_dim, use_linear_projection, side) in versions {
        let config = version(Some(3), None, None);
        assert_eq!((config.height, config.width), (side, side));
        let text = format!("{config:?}");
        let block = |&(out_channels, use_cross_attn, attention_head_dim): &_| BlockConfig {
            out_channels,
            use_cross_attn,
            attention_head_dim,
        };
        let unet = UNet2DConditionModelConfig {
            blocks: blocks.iter().map(block).collect(),
            cross_attention_dim,
            use_linear_projection,
            sliced_attention_size: Some(3),
            ..Default::default()
        };
        let vae = AutoEncoderKLConfig {
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            ..Default::default()
        };
        for expected in [format!("{unet:?}"), format!("{vae:?}")] {
            assert!(text.contains(&expected), "no {expected} in {text}");
        }
    }
    for (config, size, layers, heads, activation) in [
        (clip::Config::v1_5(), 768, 12, 12, "QuickGelu"),
        (clip::Config::v2_1(), 1024, 23, 16, "Gelu"),
        (clip::Config::sdxl(), 768, 12, 12, "QuickGelu"),
        (clip::Config::sdxl2(), 1280, 32, 20, "Gelu"),
        (clip::Config::wuerstchen(), 1024, 24, 16, "GeluErf"),
        (clip::Config::wuerstchen_prior(), 1280, 32, 20, "GeluErf"),
    ] {
        let text = format!("{config:?}");
        for expected in [
            "vocab_size: 49408,".to_string(),
            format!("embed_dim: {size},"),
            format!("intermediate_size: {},", 4 * size),
            format!("num_hidden_layers: {layers},"),
            format!("num_attention_heads: {heads} "),
            format!("activation: {activation},"),
        ] {
            assert!(text.contains(&expected), "no {expected} in {text}");
        }
    }
}

/// Sizes that do not fit are an error when something is built; upstream panics when the size is said.
#[test]
fn sizes_of_pictures() -> Result<()> {
    let config = StableDiffusionConfig::v1_5(None, Some(64), None);
    assert_eq!((config.height, config.width), (64, 512));
    assert_eq!(config.build_scheduler(10)?.timesteps().len(), 10);
    for (height, width, named) in [
        (60, 64, "height is 60"),
        (64, 12, "width is 12"),
        (0, 8, "height is 0"),
    ] {
        let config = StableDiffusionConfig::sdxl(None, Some(height), Some(width));
        let (file, device) = ("no such file", &Device::Cpu);
        let named = &[named, "multiple of 8"];
        assert_refused(config.build_scheduler(10), named);
        assert_refused(config.build_vae(file, device, DType::F32), named);
        assert_refused(config.build_unet(file, device, 4, false, DType::F32), named);
    }
    Ok(())
}

/// A file without the weights is an error that names the first one of them.
#[test]
fn files_without_weights() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("empty.safetensors");
    let nothing = HashMap::from([("other", Tensor::zeros(1, DType::F32, &Device::Cpu)?)]);
    candle_core::safetensors::save(&nothing, &file)?;
    let (config, device) = (
        StableDiffusionConfig::sdxl_turbo(None, None, None),
        &Device::Cpu,
    );
    assert_refused(
        config.build_vae(&file, device, DType::F32),
        &["encoder.conv_in.weight"],
    );
    let unet = config.build_unet(&file, device, 4, false, DType::F32);
    assert_refused(unet, &["conv_in.weight"]);
    let files = [&file, &file];
    let unet = config.build_unet_sharded(&files, device, 4, false, DType::F32);
    assert_refused(unet, &["conv_in.weight"]);
    let text = build_clip_transformer(&config.clip, &file, device, DType::F32);
    assert_refused(text, &["text_model.encoder.layers.0"]);
    Ok(())
}
