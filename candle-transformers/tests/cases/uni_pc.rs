//! UniPC against an equation whose solution is known.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::stable_diffusion::schedulers::{
    PredictionType, Scheduler, SchedulerConfig,
};
use candle_transformers::models::stable_diffusion::uni_pc::{
    CorrectorConfiguration, EdmDpmMultistepScheduler, KarrasSigmaSchedule, SigmaSchedule,
    SolverType, TimestepSchedule, UniPCSchedulerConfig,
};

use super::schedulers::{assert_refused, noise};
use super::support::assert_close;

fn config(solver_order: usize, solver_type: SolverType, corrected: bool) -> UniPCSchedulerConfig {
    let sigmas = KarrasSigmaSchedule {
        sigma_min: 0.1,
        sigma_max: 8.,
        rho: 4.,
    };
    UniPCSchedulerConfig {
        corrector: if corrected {
            CorrectorConfiguration::new([])
        } else {
            CorrectorConfiguration::Disabled
        },
        sigma_schedule: SigmaSchedule::Karras(sigmas),
        timestep_schedule: TimestepSchedule::Linspace,
        solver_order,
        solver_type,
        num_training_timesteps: 100_000,
        ..Default::default()
    }
}

/// The deviations of original and noise at a step.
fn alpha_sigma(config: &UniPCSchedulerConfig, step: usize) -> (f64, f64) {
    let SigmaSchedule::Karras(sigmas) = config.sigma_schedule else {
        panic!("the tests have Karras's sigmas")
    };
    let time = (step + 1) as f64 / config.num_training_timesteps as f64;
    let root = |sigma: f64| sigma.powf(1. / sigmas.rho);
    let (min, max) = (root(sigmas.sigma_min), root(sigmas.sigma_max));
    let ratio = (min + time * (max - min)).powf(sigmas.rho);
    let alpha = 1. / (1. + ratio * ratio).sqrt();
    (alpha, ratio * alpha)
}

/// Deviation of originals that are normal numbers.
const WIDTH: f64 = 0.5;

/// The deviation of the samples at a step. The equation's solution is proportional to it.
fn deviation(config: &UniPCSchedulerConfig, step: usize) -> f64 {
    let (alpha, sigma) = alpha_sigma(config, step);
    (alpha * WIDTH).hypot(sigma)
}

/// The final error of `count` steps of a perfect model, whose solution ends at 1.
fn error(config: &UniPCSchedulerConfig, count: usize, device: &Device) -> Result<f64> {
    let mut scheduler = config.build(count)?;
    let steps = scheduler.timesteps().to_vec();
    let first = deviation(config, steps[0]) / deviation(config, 0);
    let mut sample = Tensor::full(first as f32, (1, 1, 1, 2), device)?.to_dtype(DType::F32)?;
    for step in steps {
        let (alpha, sigma) = alpha_sigma(config, step);
        let original = alpha * (WIDTH / deviation(config, step)).powi(2);
        let output = match config.prediction_type {
            PredictionType::Sample => original,
            PredictionType::Epsilon => (1. - alpha * original) / sigma,
            PredictionType::VPrediction => {
                alpha * (1. - alpha * original) / sigma - sigma * original
            }
        };
        sample = scheduler.step(&(&sample * output)?, step, &sample)?;
    }
    let end = sample.flatten_all()?.to_vec1::<f32>()?;
    assert_eq!(end[0], end[1]);
    Ok((end[0] as f64 - 1.).abs())
}

/// Twice the steps reduce the error by a factor of 2 to the power of the order, and of the order plus one with the corrector. With
/// upstream's weights of order 2, the errors of 10, 20 and 40 steps are 0.024, 0.023 and 0.014, and order 3 is an error: a predictor
/// indexes the step before the last one too early, an inverse of 2 by 2 is wrong, and 3! is 3.
fn orders(device: &Device) -> Result<()> {
    for solver_type in [SolverType::Bh1, SolverType::Bh2] {
        for (order, corrected, factor) in [
            (1, false, 1.8),
            (1, true, 3.4),
            (2, false, 3.4),
            (2, true, 6.),
            (3, true, 6.),
        ] {
            let config = config(order, solver_type, corrected);
            let (few, many) = (error(&config, 20, device)?, error(&config, 40, device)?);
            assert!(
                few / many > factor,
                "order {order}, {solver_type:?}, corrected: {corrected}: errors {few:.1e} and {many:.1e}, {:.1} times less",
                few / many
            );
        }
    }
    Ok(())
}
test_device!(orders);

/// The kind of prediction does not matter if the content is the same.
fn predictions(device: &Device) -> Result<()> {
    let of = |prediction_type| {
        let config = UniPCSchedulerConfig {
            prediction_type,
            ..config(2, SolverType::Bh2, true)
        };
        error(&config, 6, device)
    };
    let sample = of(PredictionType::Sample)?;
    for other in [PredictionType::Epsilon, PredictionType::VPrediction] {
        assert!((of(other)? - sample).abs() < 2e-5);
    }
    Ok(())
}
test_device!(predictions);

fn ran(scheduler: &mut dyn Scheduler, from: usize, device: &Device) -> Result<Tensor> {
    let mut sample = noise(1, device)?;
    for (i, step) in scheduler.timesteps().to_vec().into_iter().enumerate() {
        if i >= from {
            sample = scheduler.step(&noise(2 + i as u64, device)?, step, &sample)?;
        }
    }
    Ok(sample)
}

/// A scheduler that has made one image makes the next as if it were new, also from a later step on.
fn again(device: &Device) -> Result<()> {
    let config = config(3, SolverType::Bh1, true);
    let new = || EdmDpmMultistepScheduler::new(config.clone(), 8);
    let first = ran(&mut new()?, 0, device)?;
    let later = ran(&mut new()?, 3, device)?;
    let mut used = new()?;
    for (from, expected) in [(0, &first), (0, &first), (3, &later), (0, &first)] {
        assert_close(&ran(&mut used, from, device)?, expected, 0.);
    }
    // A step that is refused leaves what was known.
    let mut scheduler = new()?;
    let steps = scheduler.timesteps().to_vec();
    let mut sample = noise(1, device)?;
    for (i, &step) in steps.iter().enumerate() {
        assert!(scheduler
            .step(&sample.narrow(3, 0, 1)?, step, &sample)
            .is_err());
        sample = scheduler.step(&noise(2 + i as u64, device)?, step, &sample)?;
    }
    assert_close(&sample, &first, 0.);
    Ok(())
}
test_device!(again);

/// Each image has its threshold. Upstream has one for all, and estimates it.
fn thresholds(device: &Device) -> Result<()> {
    let config = UniPCSchedulerConfig {
        thresholding: true,
        dynamic_thresholding_ratio: 0.625,
        sample_max_value: 0.5,
        prediction_type: PredictionType::Sample,
        ..config(1, SolverType::Bh1, false)
    };
    let mut scheduler = config.build(1)?;
    let step = scheduler.timesteps()[0];
    // 0.625 of the way through five sizes is the middle of the third and the fourth, 3.5, and below 0.5 in the second image.
    let originals = [[-4f32, 1., 3., 7., -2.], [0.1, -0.2, 0.3, 0.4, 0.2]];
    let originals = Tensor::new(&originals, device)?.reshape((2, 5, 1, 1))?;
    let grown = (3.5f32 / 7.).sqrt();
    let clamped = [
        -3.5 / grown,
        1. / grown,
        3. / grown,
        3.5 / grown,
        -2. / grown,
    ];
    let clamped = [clamped, [0.1, -0.2, 0.3, 0.4, 0.2]];
    let clamped = Tensor::new(&clamped, device)?.reshape((2, 5, 1, 1))?;
    let sample = (originals.ones_like()? * 0.5)?;
    let moved = scheduler.step(&originals, step, &sample)?;

    let plain = UniPCSchedulerConfig {
        thresholding: false,
        ..config.clone()
    };
    let expected = plain.build(1)?.step(&clamped, step, &sample)?;
    assert_close(&moved, &expected, 1e-5);
    let half = |xs: &Tensor| xs.to_dtype(DType::F16);
    let moved = scheduler.step(&half(&originals)?, step, &half(&sample)?)?;
    assert_eq!(moved.dtype(), DType::F16);
    assert_close(&moved, &expected, 1e-2);

    let ratio = UniPCSchedulerConfig {
        dynamic_thresholding_ratio: 1.1,
        ..config
    };
    assert_refused(ratio.build(1), &["1.1", "0 to 1"]);
    Ok(())
}
test_device!(thresholds);

#[test]
fn what_uni_pc_refuses() -> Result<()> {
    let base = UniPCSchedulerConfig::default;
    assert_refused(base().build(0), &["0 steps", "1 to 1000"]);
    assert_refused(base().build(1001), &["1001 steps"]);
    assert_refused(base().build(900), &["900 steps", "repeat"]);
    let order = UniPCSchedulerConfig {
        solver_order: 0,
        ..base()
    };
    assert_refused(order.build(5), &["solver_order is 0"]);
    for (sigma_min, sigma_max, rho) in [
        (0., 1., 4.),
        (2., 1., 4.),
        (0.1, 1., 0.),
        (f64::NAN, 1., 1.),
    ] {
        let sigmas = KarrasSigmaSchedule {
            sigma_min,
            sigma_max,
            rho,
        };
        let config = UniPCSchedulerConfig {
            sigma_schedule: SigmaSchedule::Karras(sigmas),
            ..base()
        };
        assert_refused(
            config.build(5),
            &["sigma_min", &format!("from {sigma_min} to {sigma_max}")],
        );
    }
    let xs = noise(1, &Device::Cpu)?;
    let mut scheduler = base().build(5)?;
    assert_refused(scheduler.step(&xs, 7, &xs), &["timestep 7", "999"]);
    Ok(())
}
