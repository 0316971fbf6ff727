//! Latent diffusion: schedulers, and small UNets and autoencoders.

use crate::weights::{weight, Place};
use crate::Run;
use candle_core::{bail, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::stable_diffusion::attention::{
    AttentionBlock, AttentionBlockConfig, CrossAttention, SpatialTransformer,
    SpatialTransformerConfig,
};
use candle_transformers::models::stable_diffusion::ddim::DDIMSchedulerConfig;
use candle_transformers::models::stable_diffusion::ddpm::{
    DDPMScheduler, DDPMSchedulerConfig, DDPMVarianceType,
};
use candle_transformers::models::stable_diffusion::embeddings::{TimestepEmbedding, Timesteps};
use candle_transformers::models::stable_diffusion::euler_ancestral_discrete::EulerAncestralDiscreteSchedulerConfig;
use candle_transformers::models::stable_diffusion::resnet::{ResnetBlock2D, ResnetBlock2DConfig};
use candle_transformers::models::stable_diffusion::schedulers::{
    BetaSchedule, PredictionType, Scheduler, SchedulerConfig, TimestepSpacing,
};
use candle_transformers::models::stable_diffusion::unet_2d::{
    BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
};
use candle_transformers::models::stable_diffusion::unet_2d_blocks::{
    UNetMidBlock2D, UNetMidBlock2DConfig,
};
use candle_transformers::models::stable_diffusion::uni_pc::{
    CorrectorConfiguration, ExponentialSigmaSchedule, KarrasSigmaSchedule, SigmaSchedule,
    SolverType, TimestepSchedule, UniPCSchedulerConfig,
};
use candle_transformers::models::stable_diffusion::utils::{interp, linspace};
use candle_transformers::models::stable_diffusion::vae::{
    AutoEncoderKL, AutoEncoderKLConfig, DiagonalGaussianDistribution,
};
use candle_transformers::models::stable_diffusion::{clip, StableDiffusionConfig};

pub const RUNS: &[Run] = &[
    ("ddim", ddim),
    ("ddpm", ddpm),
    ("euler", euler),
    ("uni_pc", uni_pc),
    ("stable_diffusion_presets", presets),
    ("stable_diffusion_parts", parts),
    ("autoencoder_kl", autoencoder),
    ("unet_2d", unet),
];

fn numbers(place: &Place, values: impl IntoIterator<Item = f64>) -> Result<Tensor> {
    let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
    Tensor::new(values, &place.device)
}

/// A sample of a step, or a model's output for it.
fn sample(place: &Place, name: &str, i: usize) -> Result<Tensor> {
    place.input(&format!("{name} {i}"), (2, 3, 4, 5))
}

/// Steps with the noise of each.
fn schedule(place: &Place, scheduler: &dyn Scheduler) -> Result<Vec<Tensor>> {
    let steps = scheduler.timesteps().to_vec();
    let mut noisy = Vec::new();
    for (i, &step) in steps.iter().enumerate() {
        let original = sample(place, "original", i)?;
        let noisy_now = scheduler.add_noise(&original, sample(place, "noise", i)?, step)?;
        noisy.push(scheduler.scale_model_input(noisy_now, step)?);
    }
    let numbers = numbers(
        place,
        steps
            .iter()
            .map(|&step| step as f64)
            .chain([scheduler.init_noise_sigma()]),
    )?;
    Ok(vec![numbers, Tensor::stack(&noisy, 0)?])
}

/// The results of the steps whose indexes are in `wanted`; all steps run, in order.
fn steps(
    place: &Place,
    scheduler: &mut dyn Scheduler,
    wanted: impl Fn(usize) -> bool,
) -> Result<Tensor> {
    let mut results = Vec::new();
    for (i, step) in scheduler.timesteps().to_vec().into_iter().enumerate() {
        let (sample, output) = (sample(place, "sample", i)?, sample(place, "output", i)?);
        let result = scheduler.step(&output, step, &sample)?;
        if wanted(i) {
            results.push(result);
        }
    }
    Tensor::stack(&results, 0)
}

const PREDICTIONS: [PredictionType; 3] = [
    PredictionType::Epsilon,
    PredictionType::VPrediction,
    PredictionType::Sample,
];

fn ddim(place: &Place) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::new();
    for (count, timestep_spacing, beta_schedule) in [
        (20, TimestepSpacing::Leading, BetaSchedule::ScaledLinear),
        (7, TimestepSpacing::Trailing, BetaSchedule::Linear),
        (4, TimestepSpacing::Trailing, BetaSchedule::ScaledLinear),
        (7, TimestepSpacing::Linspace, BetaSchedule::ScaledLinear),
        (1, TimestepSpacing::Linspace, BetaSchedule::Linear),
    ] {
        for prediction_type in PREDICTIONS {
            let config = DDIMSchedulerConfig {
                beta_schedule,
                timestep_spacing,
                prediction_type,
                ..Default::default()
            };
            let mut scheduler = config.build(count)?;
            outputs.extend(schedule(place, &*scheduler)?);
            outputs.push(steps(place, &mut *scheduler, |_| true)?);
        }
    }
    // The first step is one without a counterpart in training.
    let mut every = DDIMSchedulerConfig {
        train_timesteps: 40,
        ..Default::default()
    }
    .build(40)?;
    outputs.extend(schedule(place, &*every)?);
    outputs.push(steps(place, &mut *every, |_| true)?);
    Ok(outputs)
}

/// Steps without noise: those at training step 0, and those whose next sample is the original.
fn ddpm(place: &Place) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::new();
    for prediction_type in PREDICTIONS {
        for clip_sample in [false, true] {
            let config = DDPMSchedulerConfig {
                prediction_type,
                clip_sample,
                variance_type: DDPMVarianceType::Learned,
                ..Default::default()
            };
            let (many, one) = (
                DDPMScheduler::new(30, config.clone())?,
                DDPMScheduler::new(1, config)?,
            );
            let timesteps = many.timesteps().iter().map(|&step| step as f64);
            outputs.push(numbers(place, timesteps.chain([many.init_noise_sigma()]))?);
            let (xs, output) = (sample(place, "sample", 0)?, sample(place, "output", 0)?);
            let mut results = vec![many.step(&output, 0, &xs)?];
            for step in [0, 1, 250, 999] {
                results.push(one.step(&output, step, &xs)?);
                let noise = sample(place, "noise", step)?;
                results.push(many.add_noise(&xs, noise, step)?);
            }
            outputs.push(Tensor::stack(&results, 0)?);
        }
    }
    // More steps than in training are limited to that number.
    let all = DDPMScheduler::new(2000, DDPMSchedulerConfig::default())?;
    let steps = all.timesteps().iter().map(|&step| step as f64);
    outputs.push(numbers(place, steps)?);
    Ok(outputs)
}

/// Only the last step, which has no noise.
fn euler(place: &Place) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::new();
    for (count, timestep_spacing, beta_schedule) in [
        (20, TimestepSpacing::Leading, BetaSchedule::ScaledLinear),
        (7, TimestepSpacing::Trailing, BetaSchedule::Linear),
        (1, TimestepSpacing::Trailing, BetaSchedule::ScaledLinear),
        (7, TimestepSpacing::Linspace, BetaSchedule::ScaledLinear),
    ] {
        for prediction_type in [PredictionType::Epsilon, PredictionType::VPrediction] {
            let config = EulerAncestralDiscreteSchedulerConfig {
                beta_schedule,
                timestep_spacing,
                prediction_type,
                ..Default::default()
            };
            let mut scheduler = config.build(count)?;
            outputs.extend(schedule(place, &*scheduler)?);
            let last = scheduler.timesteps().len() - 1;
            outputs.push(steps(place, &mut *scheduler, |i| i == last)?);
        }
    }
    Ok(outputs)
}

/// Steps of order 1 with and without correction, the steps of order 2 that are right in Candle, and thresholds.
fn uni_pc(place: &Place) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::new();
    let narrow = KarrasSigmaSchedule {
        sigma_min: 0.02,
        sigma_max: 14.6,
        rho: 7.,
    };
    let base = UniPCSchedulerConfig::default;
    for (count, sigma_schedule, timestep_schedule) in [
        (1, SigmaSchedule::default(), TimestepSchedule::FromSigmas),
        (2, SigmaSchedule::default(), TimestepSchedule::FromSigmas),
        (25, SigmaSchedule::default(), TimestepSchedule::FromSigmas),
        (
            13,
            SigmaSchedule::Karras(narrow),
            TimestepSchedule::FromSigmas,
        ),
        (
            10,
            SigmaSchedule::Exponential(ExponentialSigmaSchedule::default()),
            TimestepSchedule::FromSigmas,
        ),
        (
            11,
            SigmaSchedule::Karras(narrow),
            TimestepSchedule::Linspace,
        ),
    ] {
        let config = UniPCSchedulerConfig {
            sigma_schedule,
            timestep_schedule,
            ..base()
        };
        outputs.extend(schedule(place, &*config.build(count)?)?);
    }
    let correctors = [
        CorrectorConfiguration::Disabled,
        CorrectorConfiguration::new([]),
        CorrectorConfiguration::new([0, 3, 4]),
    ];
    for (corrector, prediction_type) in correctors.into_iter().zip(PREDICTIONS) {
        for solver_type in [SolverType::Bh1, SolverType::Bh2] {
            let config = UniPCSchedulerConfig {
                corrector: corrector.clone(),
                prediction_type,
                solver_type,
                solver_order: 1,
                ..base()
            };
            outputs.push(steps(place, &mut *config.build(9)?, |_| true)?);
        }
    }
    for solver_type in [SolverType::Bh1, SolverType::Bh2] {
        let second = UniPCSchedulerConfig {
            corrector: CorrectorConfiguration::new([0, 2, 3, 4, 5, 6, 7, 8]),
            solver_type,
            ..base()
        };
        let right = |i| i < 2 || i == 8;
        outputs.push(steps(place, &mut *second.build(9)?, right)?);
    }
    let thresholds = UniPCSchedulerConfig {
        corrector: CorrectorConfiguration::Disabled,
        solver_order: 1,
        prediction_type: PredictionType::Sample,
        thresholding: true,
        dynamic_thresholding_ratio: 0.3,
        sample_max_value: 0.6,
        ..base()
    };
    // For one picture: Candle has one threshold for all.
    let mut thresholds = thresholds.build(1)?;
    let (xs, output) = (sample(place, "sample", 0)?, sample(place, "output", 0)?);
    let (xs, output) = (xs.narrow(0, 0, 1)?, output.narrow(0, 0, 1)?);
    outputs.push(thresholds.step(&output, thresholds.timesteps()[0], &xs)?);
    Ok(outputs)
}

/// The public items of the versions, and their schedulers.
fn presets(place: &Place) -> Result<Vec<Tensor>> {
    type Version = fn(Option<usize>, Option<usize>, Option<usize>) -> StableDiffusionConfig;
    let versions: [Version; 5] = [
        StableDiffusionConfig::v1_5,
        StableDiffusionConfig::v2_1,
        StableDiffusionConfig::sdxl,
        StableDiffusionConfig::sdxl_turbo,
        StableDiffusionConfig::ssd1b,
    ];
    let mut outputs = Vec::new();
    for version in versions {
        let (plain, sized) = (
            version(None, None, None),
            version(Some(0), Some(64), Some(24)),
        );
        let clips = [Some(&plain.clip), plain.clip2.as_ref()];
        let clips = clips.map(|clip| match clip {
            Some(clip) => {
                clip.max_position_embeddings + clip.pad_with.as_ref().map_or(0, String::len)
            }
            None => 0,
        });
        let sizes = [plain.width, plain.height, sized.width, sized.height];
        let public = sizes.into_iter().chain(clips).map(|n| n as f64);
        outputs.push(numbers(place, public)?);
        let mut scheduler = plain.build_scheduler(4)?;
        outputs.extend(schedule(place, &*scheduler)?);
        let last = scheduler.timesteps().len() - 1;
        outputs.push(steps(place, &mut *scheduler, |i| i == last)?);
    }
    let encoders = [
        clip::Config::wuerstchen(),
        clip::Config::wuerstchen_prior(),
        clip::Config::ssd1b2(),
    ];
    let public = encoders.iter().map(|clip| {
        (clip.max_position_embeddings + clip.pad_with.as_ref().map_or(0, String::len)) as f64
    });
    outputs.push(numbers(place, public)?);
    Ok(outputs)
}

fn parts(place: &Place) -> Result<Vec<Tensor>> {
    let weights = |name: &str| place.weights("parts").pp(name);
    let xs = place.input("parts", (2, 32, 5, 6))?;
    let time = place.input("time", (2, 12))?;
    let text = place.input("text", (2, 7, 20))?;
    let tokens = place.input("tokens", (2, 9, 32))?;
    let mut outputs = Vec::new();

    let points = linspace(-1., 2., 5)?.to_vec1::<f64>()?;
    let single = linspace(3., 2., 1)?.to_vec1::<f64>()?;
    let between = interp(
        &[0., 0.5, 1., 2.5, 4., 1.],
        &[0., 1., 3., 4.],
        &[2., -1., 5., 6.],
    );
    outputs.push(numbers(
        place,
        points.into_iter().chain(single).chain(between),
    )?);

    let times = numbers(place, [0., 1., 17., 320.5, 999.])?;
    for (flip, shift) in [(true, 0.), (false, 1.)] {
        outputs.push(Timesteps::new(12, flip, shift).forward(&times)?);
    }
    let embedding = TimestepEmbedding::new(weights("time"), 12, 24)?;
    outputs.push(embedding.forward(&time)?);
    for activation in [
        clip::Activation::QuickGelu,
        clip::Activation::Gelu,
        clip::Activation::GeluErf,
    ] {
        outputs.push(activation.forward(&(&xs * 3.)?)?);
    }

    for (i, config) in [
        ResnetBlock2DConfig {
            temb_channels: Some(12),
            groups: 8,
            ..Default::default()
        },
        ResnetBlock2DConfig {
            out_channels: Some(24),
            temb_channels: None,
            groups: 4,
            groups_out: Some(3),
            eps: 1e-2,
            output_scale_factor: 1.5,
            ..Default::default()
        },
        ResnetBlock2DConfig {
            temb_channels: Some(12),
            use_in_shortcut: Some(true),
            ..Default::default()
        },
    ]
    .into_iter()
    .enumerate()
    {
        let block = ResnetBlock2D::new(weights(&format!("resnet {i}")), 32, config)?;
        outputs.push(block.forward(&xs, Some(&time))?);
        outputs.push(block.forward(&xs, None)?);
    }

    let own = CrossAttention::new(weights("own"), 32, None, 4, 8, None, false)?;
    outputs.push(own.forward(&tokens, None)?);
    outputs.push(own.forward(&tokens, Some(&tokens.narrow(1, 2, 4)?))?);
    let cross = CrossAttention::new(weights("cross"), 32, Some(20), 2, 12, Some(100), false)?;
    outputs.push(cross.forward(&tokens, Some(&text))?);

    for (i, (n_heads, config)) in [
        (
            4,
            SpatialTransformerConfig {
                depth: 2,
                num_groups: 8,
                context_dim: Some(20),
                use_linear_projection: true,
                ..Default::default()
            },
        ),
        // More inner than outer channels.
        (
            6,
            SpatialTransformerConfig {
                context_dim: Some(20),
                ..Default::default()
            },
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let vb = weights(&format!("transformer {i}"));
        let transformer = SpatialTransformer::new(vb, 32, n_heads, 8, false, config)?;
        outputs.push(transformer.forward(&xs, Some(&text))?);
    }

    // With one head; with several, Candle's CPU products reject the strides.
    let config = AttentionBlockConfig {
        num_groups: 4,
        rescale_output_factor: 1.25,
        ..Default::default()
    };
    let block = AttentionBlock::new(weights("attention"), 32, config)?;
    // One at a time: on the CPU Candle's products of several pictures are wrong.
    outputs.push(block.forward(&xs.narrow(0, 0, 1)?)?);
    outputs.push(block.forward(&xs.narrow(0, 1, 1)?)?);
    let config = UNetMidBlock2DConfig {
        num_layers: 2,
        resnet_groups: None,
        attn_num_head_channels: None,
        ..Default::default()
    };
    let middle = UNetMidBlock2D::new(weights("middle"), 32, Some(12), config)?;
    let (xs, time) = (xs.narrow(0, 0, 1)?, time.narrow(0, 0, 1)?);
    outputs.push(middle.forward(&xs, Some(&time))?);
    Ok(outputs)
}

/// Weights for latent distributions without width: the logarithm of the variance is that of a very small number.
struct Narrow;

impl SimpleBackend for Narrow {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let made = weight(name, &s)?;
        let made = if name.ends_with(".quant_conv.bias") {
            let half = s.elem_count() / 2;
            let below = (Tensor::ones(half, DType::F32, &Device::Cpu)? * -2000.)?;
            Tensor::cat(&[made.narrow(0, 0, half)?, below], 0)?
        } else {
            made
        };
        made.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} requires a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn autoencoder(place: &Place) -> Result<Vec<Tensor>> {
    let narrow = VarBuilder::from_backend(Box::new(Narrow), DType::F32, place.device.clone());
    let config = AutoEncoderKLConfig {
        block_out_channels: vec![8, 16, 16],
        layers_per_block: 1,
        norm_num_groups: 4,
        ..Default::default()
    };
    let vae = AutoEncoderKL::new(narrow.pp("vae"), 3, 3, config.clone())?;
    let bare = AutoEncoderKLConfig {
        use_quant_conv: false,
        use_post_quant_conv: false,
        latent_channels: 3,
        ..config
    };
    let bare = AutoEncoderKL::new(place.weights("bare vae"), 3, 2, bare)?;
    let mut outputs = Vec::new();
    // Odd sides lose their last row or column.
    for dims in [(1, 3, 16, 24), (1, 3, 13, 18)] {
        let latents = vae.encode(&place.input("vae", dims)?)?.sample()?;
        outputs.push(vae.decode(&latents)?);
        outputs.push(latents);
    }
    outputs.push(bare.decode(&place.input("bare vae", (1, 3, 4, 5))?)?);
    let parameters = place.input("distribution", (2, 4, 3))?;
    let parameters = Tensor::cat(
        &[
            parameters.narrow(1, 0, 2)?,
            (parameters.narrow(1, 2, 2)? - 2000.)?,
        ],
        1,
    )?;
    outputs.push(DiagonalGaussianDistribution::new(&parameters)?.sample()?);
    Ok(outputs)
}

/// Candle's blocks have 32 groups in any configuration, so all channels are multiples of that.
fn unet(place: &Place) -> Result<Vec<Tensor>> {
    let block = |out_channels, use_cross_attn, attention_head_dim| BlockConfig {
        out_channels,
        use_cross_attn,
        attention_head_dim,
    };
    let mut outputs = Vec::new();
    let like_v1 = UNet2DConditionModelConfig {
        blocks: vec![block(32, Some(1), 4), block(64, None, 2)],
        layers_per_block: 1,
        cross_attention_dim: 20,
        ..Default::default()
    };
    let model = UNet2DConditionModel::new(place.weights("unet v1"), 4, 4, false, like_v1)?;
    let text = place.input("unet text", (2, 7, 20))?;
    let xs = place.input("unet", (2, 4, 8, 6))?;
    outputs.push(model.forward(&xs, 481., &text)?);
    let odd = place.input("odd unet", (2, 4, 7, 9))?;
    outputs.push(model.forward(&odd, 20.5, &text)?);
    let left = [(32, 8, 6), (32, 8, 6), (32, 4, 3), (64, 4, 3)].into_iter();
    let left = left
        .enumerate()
        .map(|(i, (c, h, w))| place.input(&format!("residual {i}"), (2, c, h, w)));
    let left = left.collect::<Result<Vec<_>>>()?;
    let middle = place.input("residual of the middle", (2, 64, 4, 3))?;
    outputs.push(model.forward_with_additional_residuals(
        &xs,
        1.,
        &text,
        Some(&left),
        Some(&middle),
    )?);

    let like_xl = UNet2DConditionModelConfig {
        center_input_sample: true,
        flip_sin_to_cos: false,
        freq_shift: 1.,
        blocks: vec![
            block(32, None, 1),
            block(32, Some(1), 2),
            block(64, Some(2), 4),
        ],
        layers_per_block: 2,
        downsample_padding: 0,
        mid_block_scale_factor: 1.25,
        norm_eps: 1e-3,
        cross_attention_dim: 12,
        use_linear_projection: true,
        ..Default::default()
    };
    let model = UNet2DConditionModel::new(place.weights("unet xl"), 9, 3, false, like_xl)?;
    let text = place.input("unet xl text", (1, 5, 12))?;
    let xs = place.input("unet xl", (1, 9, 8, 12))?;
    outputs.push(model.forward(&xs, 999., &text)?);
    Ok(outputs)
}
