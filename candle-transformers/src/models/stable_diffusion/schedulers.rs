//! What schedulers of diffusion have in common: the noise of each training step, the steps that are taken, and what a model predicts.
//!
//! A sample of training step `t` is `sqrt(a) * original + sqrt(1 - a) * noise`, where `a` is the product of `1 - beta` up to `t`.

use candle_core::{bail, Result, Tensor};

use super::utils::points;

/// The numbers of a scheduler.
pub trait SchedulerConfig: std::fmt::Debug + Send + Sync {
    /// The scheduler for this number of steps.
    ///
    /// # Errors
    /// The number of steps is 0 or does not go with the number of training steps.
    fn build(&self, inference_steps: usize) -> Result<Box<dyn Scheduler>>;
}

/// Takes the noise out of a sample, step by step.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_transformers::models::stable_diffusion::ddim::DDIMSchedulerConfig;
/// use candle_transformers::models::stable_diffusion::schedulers::SchedulerConfig;
/// # fn main() -> candle_core::Result<()> {
/// let mut scheduler = DDIMSchedulerConfig::default().build(20)?;
/// let noise = Tensor::randn(0f32, 1., (1, 4, 8, 8), &Device::Cpu)?;
/// let mut sample = (noise * scheduler.init_noise_sigma())?;
/// for timestep in scheduler.timesteps().to_vec() {
///     let input = scheduler.scale_model_input(sample.clone(), timestep)?;
///     // A real model: `unet.forward(&input, timestep as f64, &text)`.
///     let output = input.zeros_like()?;
///     sample = scheduler.step(&output, timestep, &sample)?;
/// }
/// assert_eq!(sample.dims(), &[1, 4, 8, 8]);
/// # Ok(())
/// # }
/// ```
pub trait Scheduler {
    /// The training steps that are taken, from the most noise to the least.
    fn timesteps(&self) -> &[usize];

    /// The sample of a training step: `original` with the noise, which is of mean 0 and deviation 1, that belongs to the step.
    ///
    /// # Errors
    /// The scheduler does not know the step, or shapes, dtypes or devices do not match.
    fn add_noise(&self, original: &Tensor, noise: Tensor, timestep: usize) -> Result<Tensor>;

    /// Factor of unit noise before the first step.
    fn init_noise_sigma(&self) -> f64;

    /// A sample as the model takes it at this step.
    ///
    /// # Errors
    /// The scheduler does not know the step.
    fn scale_model_input(&self, sample: Tensor, _timestep: usize) -> Result<Tensor>;

    /// The sample of the next step, with less noise, from that of this step and what the model gave for it; all of one shape.
    ///
    /// # Errors
    /// The scheduler does not know the step, or shapes, dtypes or devices do not match.
    fn step(&mut self, model_output: &Tensor, timestep: usize, sample: &Tensor) -> Result<Tensor>;
}

/// The interpolation of beta between its limits in training.
#[derive(Debug, Clone, Copy)]
pub enum BetaSchedule {
    /// In a line.
    Linear,
    /// Its square root in a line.
    ScaledLinear,
    /// So that the products of `1 - beta` are the square of a cosine, with betas of 0.999 at most:
    /// [arXiv 2102.09672](https://arxiv.org/abs/2102.09672). The least and greatest value are not used.
    SquaredcosCapV2,
}

impl BetaSchedule {
    /// For each of the `steps` of training the product of `1 - beta` up to it.
    pub(super) fn alphas_cumprod(self, start: f64, end: f64, steps: usize) -> Result<Vec<f64>> {
        if steps == 0 {
            bail!("scheduler: train_timesteps is 0; it must be at least 1")
        }
        let betas = match self {
            Self::Linear => points(start, end, steps),
            Self::ScaledLinear => {
                let roots = points(start.sqrt(), end.sqrt(), steps);
                roots.into_iter().map(|root| root * root).collect()
            }
            Self::SquaredcosCapV2 => cosine_betas(steps),
        };
        let mut product = 1.;
        let up_to = betas.into_iter().map(|beta| {
            product *= 1. - beta;
            product
        });
        Ok(up_to.collect())
    }
}

fn cosine_betas(steps: usize) -> Vec<f64> {
    let product = |step: usize| {
        let part = step as f64 / steps as f64;
        let angle = (part + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2;
        angle.cos().powi(2)
    };
    let beta = |step| f64::min(1. - product(step + 1) / product(step), 0.999);
    (0..steps).map(beta).collect()
}

/// The quantity that a model was trained to predict.
#[derive(Debug, Clone, Copy)]
pub enum PredictionType {
    /// The noise in it.
    Epsilon,
    /// `sqrt(a) * noise - sqrt(1 - a) * original`: [arXiv 2202.00512](https://arxiv.org/abs/2202.00512).
    VPrediction,
    /// The original.
    Sample,
}

impl PredictionType {
    /// The original as factors of the sample and of the model's output, and then the noise, where the sample is
    /// `alpha * original + sigma * noise`.
    pub(super) fn factors(self, alpha: f64, sigma: f64) -> [[f64; 2]; 2] {
        match self {
            Self::Epsilon => [[1. / alpha, -sigma / alpha], [0., 1.]],
            Self::VPrediction => [[alpha, -sigma], [sigma, alpha]],
            Self::Sample => [[0., 1.], [1. / sigma, -alpha / sigma]],
        }
    }
}

/// The training steps that are used: table 2 of [arXiv 2305.08891](https://arxiv.org/abs/2305.08891).
#[derive(Debug, Default, Clone, Copy)]
pub enum TimestepSpacing {
    /// At whole distances, from the offset on.
    #[default]
    Leading,
    /// At even distances, the first and the last among them, rounded down.
    Linspace,
    /// At whole distances, from the last on. If the number of steps does not divide that of training, there is one step more.
    Trailing,
}

impl TimestepSpacing {
    /// `inference` of the `train` steps, the last one first.
    pub(super) fn timesteps(
        self,
        inference: usize,
        train: usize,
        offset: usize,
    ) -> Result<Vec<usize>> {
        if inference == 0 || inference > train {
            bail!("scheduler: {inference} steps requested; expected 1 to {train}, the number of training steps")
        }
        let ratio = train / inference;
        Ok(match self {
            Self::Leading => (0..inference).rev().map(|i| i * ratio + offset).collect(),
            Self::Trailing => (0..train).rev().step_by(ratio).collect(),
            Self::Linspace => {
                let points = points(0., (train - 1) as f64, inference);
                points.into_iter().rev().map(|at| at as usize).collect()
            }
        })
    }
}

/// The sum of tensors of one shape, each times a factor. Terms with the factor 0 are not computed.
pub(super) fn weighted_sum(terms: &[(f64, &Tensor)]) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    for &(factor, term) in terms {
        if !factor.is_finite() {
            bail!("scheduler: a sample would be multiplied with {factor}; the step has no noise, or nothing but noise")
        }
        if factor == 0. {
            continue;
        }
        let term = (term * factor)?;
        sum = Some(match sum {
            Some(sum) => (sum + term)?,
            None => term,
        });
    }
    match (sum, terms) {
        (Some(sum), _) => Ok(sum),
        (None, [(_, first), ..]) => first.zeros_like(),
        (None, []) => bail!("scheduler: no samples to sum"),
    }
}

/// `xs` with noise of this deviation added.
pub(super) fn with_noise(xs: Tensor, deviation: f64) -> Result<Tensor> {
    if deviation == 0. {
        Ok(xs)
    } else {
        let noise = xs.randn_like(0., 1.)?;
        xs + (noise * deviation)?
    }
}
