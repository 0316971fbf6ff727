//! Schedulers of diffusion: what the oracle cannot compare, which is noise, and what upstream has wrong.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::stable_diffusion::ddim::DDIMSchedulerConfig;
use candle_transformers::models::stable_diffusion::ddpm::{
    DDPMScheduler, DDPMSchedulerConfig, DDPMVarianceType,
};
use candle_transformers::models::stable_diffusion::euler_ancestral_discrete::EulerAncestralDiscreteSchedulerConfig;
use candle_transformers::models::stable_diffusion::schedulers::{
    BetaSchedule, PredictionType, SchedulerConfig, TimestepSpacing,
};
use candle_transformers::models::stable_diffusion::utils::{interp, linspace};

use super::support::{assert_close, Numbers};

pub(super) fn noise(seed: u64, device: &Device) -> Result<Tensor> {
    Numbers::new(seed).tensor(&[2, 3, 4, 4], 1., device)
}

#[track_caller]
pub(super) fn assert_refused<T>(result: Result<T>, named: &[&str]) {
    let Err(err) = result else {
        panic!("accepted, should have named {named:?}")
    };
    let text = err.to_string();
    for part in named {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// The mean and the deviation of all elements.
pub(super) fn moments(xs: &Tensor) -> Result<(f64, f64)> {
    let values = xs.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| x as f64).sum::<f64>() / n;
    let square = values.iter().map(|&x| (x as f64 - mean).powi(2));
    Ok((mean, (square.sum::<f64>() / n).sqrt()))
}

/// Fails unless 10,000 elements are of this mean and deviation, within six times what chance does to them.
#[track_caller]
fn assert_moments(xs: &Tensor, mean: f64, deviation: f64) {
    let (found_mean, found) = moments(xs).expect("a tensor that can be read");
    let chance = (xs.elem_count() as f64).sqrt().recip() * deviation;
    assert!(
        (found_mean - mean).abs() <= 6. * chance + 1e-6,
        "the mean is {found_mean}, expected {mean}"
    );
    assert!(
        (found - deviation).abs() <= 6. * chance + 1e-6,
        "the deviation is {found}, expected {deviation}"
    );
}

/// The products of `1 - beta` of Stable Diffusion.
fn alphas() -> Vec<f64> {
    let mut product = 1.;
    let beta = |i: usize| {
        let (first, last) = (0.00085f64.sqrt(), 0.012f64.sqrt());
        (first + (last - first) * i as f64 / 999.).powi(2)
    };
    let up_to = |i| {
        product *= 1. - beta(i);
        product
    };
    (0..1000).map(up_to).collect()
}

fn output(
    kind: PredictionType,
    original: &Tensor,
    noise: &Tensor,
    alpha_cumprod: f64,
) -> Result<Tensor> {
    let (alpha, sigma) = (alpha_cumprod.sqrt(), (1. - alpha_cumprod).sqrt());
    match kind {
        PredictionType::Epsilon => Ok(noise.clone()),
        PredictionType::Sample => Ok(original.clone()),
        PredictionType::VPrediction => (noise * alpha)? - (original * sigma)?,
    }
}

const KINDS: [PredictionType; 3] = [
    PredictionType::Epsilon,
    PredictionType::VPrediction,
    PredictionType::Sample,
];

/// A model that knows the noise leads from each sample to the sample of the next step.
fn ddim_of_known_noise(device: &Device) -> Result<()> {
    let (original, noise) = (noise(1, device)?, noise(2, device)?);
    let alphas = alphas();
    for prediction_type in KINDS {
        let config = DDIMSchedulerConfig {
            prediction_type,
            ..Default::default()
        };
        let mut scheduler = config.build(10)?;
        let steps = scheduler.timesteps().to_vec();
        assert_eq!(steps, [901, 801, 701, 601, 501, 401, 301, 201, 101, 1]);
        let mut sample = scheduler.add_noise(&original, noise.clone(), steps[0])?;
        for step in steps {
            let output = output(prediction_type, &original, &noise, alphas[step])?;
            sample = scheduler.step(&output, step, &sample)?;
            let next = step.saturating_sub(100);
            let expected = scheduler.add_noise(&original, noise.clone(), next)?;
            assert_close(&sample, &expected, 1e-5);
        }
    }
    Ok(())
}
test_device!(ddim_of_known_noise);

/// 100 by 100 times the same.
fn constant(value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::full(value as f32, (1, 100, 100), device)?.to_dtype(dtype)
}

fn ddim_with_noise(device: &Device) -> Result<()> {
    let alphas = alphas();
    let (now, next) = (alphas[601], alphas[501]);
    let variance = (1. - next) / (1. - now) * (1. - now / next);
    for (eta, dtype) in [(0., DType::F32), (0.5, DType::F32), (1., DType::F16)] {
        let config = DDIMSchedulerConfig {
            eta,
            ..Default::default()
        };
        let (sample, output) = (
            constant(0.7, dtype, device)?,
            constant(-0.4, dtype, device)?,
        );
        let moved = config.build(10)?.step(&output, 601, &sample)?;
        assert_eq!(moved.dtype(), dtype);
        let deviation = eta * variance.sqrt();
        let original = (0.7 + 0.4 * (1. - now).sqrt()) / now.sqrt();
        let along = (1. - next - deviation * deviation).sqrt();
        let mean = next.sqrt() * original - 0.4 * along;
        if eta == 0. {
            assert_close(&moved, &constant(mean, dtype, device)?, 1e-5);
        }
        assert_moments(&moved, mean, deviation);
    }
    Ok(())
}
test_device!(ddim_with_noise);

fn ddpm_with_noise(device: &Device) -> Result<()> {
    let alphas = alphas();
    let (now, next) = (alphas[600], alphas[500]);
    let beta = 1. - now / next;
    let small = (1. - next) / (1. - now) * beta;
    let (sample, output) = (
        constant(0.7, DType::F32, device)?,
        constant(-0.4, DType::F32, device)?,
    );
    // The paper's formula 11, with the beta of a step over 100.
    let mean = (0.7 + 0.4 * beta / (1. - now).sqrt()) / (now / next).sqrt();
    for (variance_type, variance) in [
        (DDPMVarianceType::FixedSmall, small),
        (DDPMVarianceType::FixedSmallLog, small),
        (DDPMVarianceType::FixedLarge, beta),
        // Upstream takes the root of the logarithm, which is NaN.
        (DDPMVarianceType::FixedLargeLog, beta),
        (DDPMVarianceType::Learned, small),
    ] {
        let config = DDPMSchedulerConfig {
            variance_type,
            ..Default::default()
        };
        let moved = DDPMScheduler::new(10, config)?.step(&output, 600, &sample)?;
        assert_moments(&moved, mean, variance.sqrt());
    }
    // Clamped, the original is 1.
    let config = DDPMSchedulerConfig {
        clip_sample: true,
        ..Default::default()
    };
    let clipped = DDPMScheduler::new(10, config)?.step(&output, 600, &sample)?;
    let mean =
        next.sqrt() * beta / (1. - now) + (now / next).sqrt() * (1. - next) / (1. - now) * 0.7;
    assert_moments(&clipped, mean, small.sqrt());
    Ok(())
}
test_device!(ddpm_with_noise);

fn euler_with_noise(device: &Device) -> Result<()> {
    let sigma = |step: usize| ((1. - alphas()[step]) / alphas()[step]).sqrt();
    let (from, to) = (sigma(601), sigma(501));
    let up = (to * to * (from * from - to * to) / (from * from)).sqrt();
    let down = (to * to - up * up).sqrt();
    let sample = constant(0.7, DType::F32, device)?;
    for prediction_type in [PredictionType::Epsilon, PredictionType::VPrediction] {
        let config = EulerAncestralDiscreteSchedulerConfig {
            prediction_type,
            ..Default::default()
        };
        // The model that finds noise of -0.4 in the sample.
        let original = 0.7 + 0.4 * from;
        let output = match prediction_type {
            PredictionType::VPrediction => (-0.4 - original * from) / (1. + from * from).sqrt(),
            _ => -0.4,
        };
        let output = constant(output, DType::F32, device)?;
        let moved = config.build(10)?.step(&output, 601, &sample)?;
        assert_moments(&moved, 0.7 - 0.4 * (down - from), up);
    }
    let half = sample.to_dtype(DType::F16)?;
    let moved = EulerAncestralDiscreteSchedulerConfig::default()
        .build(10)?
        .step(&half, 601, &half)?;
    assert_eq!(moved.dtype(), DType::F16);

    let originals = EulerAncestralDiscreteSchedulerConfig {
        prediction_type: PredictionType::Sample,
        ..Default::default()
    };
    let refused = originals.build(10)?.step(&sample, 601, &sample);
    assert_refused(refused, &["Sample", "Epsilon or VPrediction"]);
    Ok(())
}
test_device!(euler_with_noise);

/// Upstream rounds the time of the cosine to 0 and 1, so that nothing has noise.
fn cosine_betas(device: &Device) -> Result<()> {
    let config = DDIMSchedulerConfig {
        beta_schedule: BetaSchedule::SquaredcosCapV2,
        train_timesteps: 50,
        ..Default::default()
    };
    let scheduler = config.build(5)?;
    let (one, zero) = (
        noise(1, device)?.ones_like()?,
        noise(1, device)?.zeros_like()?,
    );
    for step in [0, 10, 30, 48] {
        let cos = |steps: f64| ((steps / 50. + 0.008) / 1.008 * 90f64.to_radians()).cos();
        let expected = cos(step as f64 + 1.) / cos(0.);
        let found = scheduler.add_noise(&one, zero.clone(), step)?;
        assert_close(&found, &(&one * expected)?, 1e-6);
    }
    // No beta is above 0.999.
    let last = scheduler.add_noise(&one, zero, 49)?;
    let least = 0.001f64.sqrt() * ((49. / 50. + 0.008) / 1.008 * 90f64.to_radians()).cos();
    assert!(last.min_all()?.to_scalar::<f32>()? as f64 >= least * 0.999);
    Ok(())
}
test_device!(cosine_betas);

#[test]
fn steps_that_are_taken() -> Result<()> {
    let steps = |timestep_spacing, count| -> Result<Vec<usize>> {
        let config = DDIMSchedulerConfig {
            timestep_spacing,
            ..Default::default()
        };
        Ok(config.build(count)?.timesteps().to_vec())
    };
    assert_eq!(steps(TimestepSpacing::Leading, 3)?, [667, 334, 1]);
    assert_eq!(steps(TimestepSpacing::Trailing, 4)?, [999, 749, 499, 249]);
    // As upstream has it: one step more where the count does not divide.
    assert_eq!(steps(TimestepSpacing::Trailing, 3)?, [999, 666, 333, 0]);
    assert_eq!(steps(TimestepSpacing::Linspace, 3)?, [999, 499, 0]);

    // The first of all steps is after those of training; upstream has no number for it.
    let every = EulerAncestralDiscreteSchedulerConfig::default().build(1000)?;
    assert_eq!(every.timesteps()[0], 1000);
    assert!(every.init_noise_sigma().is_finite());
    Ok(())
}

#[test]
fn what_schedulers_refuse() -> Result<()> {
    let none = DDIMSchedulerConfig {
        train_timesteps: 0,
        ..Default::default()
    };
    assert_refused(none.build(1), &["train_timesteps is 0"]);
    for count in [0, 1001] {
        let named = &[&format!("{count} steps")[..], "1 to 1000"];
        assert_refused(DDIMSchedulerConfig::default().build(count), named);
        let euler = EulerAncestralDiscreteSchedulerConfig {
            timestep_spacing: TimestepSpacing::Trailing,
            ..Default::default()
        };
        assert_refused(euler.build(count), named);
    }
    assert_refused(
        DDPMScheduler::new(0, DDPMSchedulerConfig::default()),
        &["0 steps"],
    );

    let xs = noise(1, &Device::Cpu)?;
    let mut ddim = DDIMSchedulerConfig::default().build(10)?;
    assert_refused(ddim.step(&xs, 1001, &xs), &["1001", "1000 steps"]);
    assert_refused(ddim.add_noise(&xs, xs.clone(), 1001), &["1001"]);
    let ddpm = DDPMScheduler::new(10, DDPMSchedulerConfig::default())?;
    assert_refused(ddpm.step(&xs, 1000, &xs), &["1000"]);
    assert_refused(ddpm.add_noise(&xs, xs.clone(), 1000), &["1000"]);
    let mut euler = EulerAncestralDiscreteSchedulerConfig::default().build(10)?;
    assert_refused(euler.step(&xs, 600, &xs), &["600", "601"]);
    assert_refused(euler.scale_model_input(xs.clone(), 600), &["600"]);
    assert_refused(euler.add_noise(&xs, xs.clone(), 600), &["600"]);
    assert!(euler.step(&xs.narrow(3, 0, 2)?, 601, &xs).is_err());
    Ok(())
}

#[test]
fn lines_and_points_between() -> Result<()> {
    assert_eq!(linspace(0., 1., 0)?.dims(), [0]);
    assert_eq!(linspace(2., 9., 1)?.to_vec1::<f64>()?, [2.]);
    assert_eq!(linspace(4., 1., 4)?.to_vec1::<f64>()?, [4., 3., 2., 1.]);
    assert_eq!(
        interp(&[1.5, 1., 4.], &[1., 2., 4.], &[10., 20., 0.]),
        [15., 10., 0.]
    );
    // Upstream indexes beyond the end of a single point.
    assert_eq!(interp(&[3.], &[3.], &[7.]), [7.]);
    let none = interp(&[0.9, 4.1, f64::NAN], &[1., 2., 4.], &[10., 20., 0.]);
    assert!(none.iter().all(|x| x.is_nan()));
    assert!(interp(&[1.], &[], &[])[0].is_nan());
    Ok(())
}
