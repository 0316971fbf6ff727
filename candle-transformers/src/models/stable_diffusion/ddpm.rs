//! DDPM, denoising diffusion probabilistic models: [arXiv 2006.11239](https://arxiv.org/abs/2006.11239).

use candle_core::{bail, Result, Tensor};

use super::schedulers::{weighted_sum, with_noise, BetaSchedule, PredictionType};

/// The variance of the noise that a step adds: `beta` or, given the original, a little less, by formula 7 of the paper.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum DDPMVarianceType {
    /// Formula 7, and 1e-20 at least.
    #[default]
    FixedSmall,
    /// The same, computed as a logarithm.
    FixedSmallLog,
    /// `beta`.
    FixedLarge,
    /// The same, computed as a logarithm.
    FixedLargeLog,
    /// Formula 7; what a model has learned of the variance is not read.
    Learned,
}

/// The numbers of the scheduler.
#[derive(Debug, Clone)]
pub struct DDPMSchedulerConfig {
    /// Beta of the first training step.
    pub beta_start: f64,
    /// Beta of the last training step.
    pub beta_end: f64,
    /// Interpolation between the two betas.
    pub beta_schedule: BetaSchedule,
    /// Whether the original that a step predicts is clamped to -1 ..= 1.
    pub clip_sample: bool,
    /// Variance of the noise that a step adds.
    pub variance_type: DDPMVarianceType,
    /// The quantity that the model predicts.
    pub prediction_type: PredictionType,
    /// Steps in training.
    pub train_timesteps: usize,
}

/// That of Stable Diffusion 1.5.
impl Default for DDPMSchedulerConfig {
    fn default() -> Self {
        Self {
            beta_start: 0.00085,
            beta_end: 0.012,
            beta_schedule: BetaSchedule::ScaledLinear,
            clip_sample: false,
            variance_type: DDPMVarianceType::FixedSmall,
            prediction_type: PredictionType::Epsilon,
            train_timesteps: 1000,
        }
    }
}

/// The scheduler.
#[derive(Debug, Clone)]
pub struct DDPMScheduler {
    alphas_cumprod: Vec<f64>,
    timesteps: Vec<usize>,
    /// Number of training steps per step.
    step_ratio: usize,
    /// The configuration of the scheduler.
    pub config: DDPMSchedulerConfig,
}

impl DDPMScheduler {
    /// The scheduler for this number of steps, those of training at most.
    ///
    /// # Errors
    /// There are no steps, or none in training.
    pub fn new(inference_steps: usize, config: DDPMSchedulerConfig) -> Result<Self> {
        let train = config.train_timesteps;
        let (start, end) = (config.beta_start, config.beta_end);
        let alphas_cumprod = config.beta_schedule.alphas_cumprod(start, end, train)?;
        let steps = inference_steps.min(train);
        if steps == 0 {
            bail!("ddpm: 0 steps requested; at least 1 is required")
        }
        let step_ratio = train / steps;
        Ok(Self {
            alphas_cumprod,
            timesteps: (0..steps).rev().map(|i| i * step_ratio).collect(),
            step_ratio,
            config,
        })
    }

    fn alpha(&self, timestep: usize) -> Result<f64> {
        match self.alphas_cumprod.get(timestep) {
            Some(&alpha) => Ok(alpha),
            None => bail!(
                "ddpm: timestep {timestep} is out of range; training had {} steps",
                self.alphas_cumprod.len()
            ),
        }
    }

    /// The training steps that are taken, from the most noise to the least.
    pub fn timesteps(&self) -> &[usize] {
        &self.timesteps
    }

    /// The sample unchanged.
    pub fn scale_model_input(&self, sample: Tensor, _timestep: usize) -> Tensor {
        sample
    }

    /// The sample of the next step, from that of this step and what the model gave for it, all of one shape: with new noise, but for
    /// training step 0.
    ///
    /// # Errors
    /// The step is out of range, or shapes, dtypes or devices do not match.
    pub fn step(&self, model_output: &Tensor, timestep: usize, sample: &Tensor) -> Result<Tensor> {
        let now = self.alpha(timestep)?;
        let next = match timestep.checked_sub(self.step_ratio) {
            Some(timestep) => self.alpha(timestep)?,
            None => 1.,
        };
        let beta = 1. - now / next;

        let prediction = self.config.prediction_type;
        let [[of_sample, of_output], _] = prediction.factors(now.sqrt(), (1. - now).sqrt());
        let mut original = weighted_sum(&[(of_sample, sample), (of_output, model_output)])?;
        if self.config.clip_sample {
            original = original.clamp(-1f32, 1f32)?;
        }
        let mean = weighted_sum(&[
            (next.sqrt() * beta / (1. - now), &original),
            ((now / next).sqrt() * (1. - next) / (1. - now), sample),
        ])?;
        if timestep == 0 {
            return Ok(mean);
        }
        let small = (1. - next) / (1. - now) * beta;
        let variance = match self.config.variance_type {
            DDPMVarianceType::FixedSmall | DDPMVarianceType::FixedSmallLog => small.max(1e-20),
            DDPMVarianceType::FixedLarge | DDPMVarianceType::FixedLargeLog => beta,
            DDPMVarianceType::Learned => small,
        };
        with_noise(mean, variance.sqrt())
    }

    /// The sample of a training step: the originals with the noise, which is of mean 0 and deviation 1, that belongs to the step.
    ///
    /// # Errors
    /// The step is out of range, or shapes, dtypes or devices do not match.
    pub fn add_noise(
        &self,
        original_samples: &Tensor,
        noise: Tensor,
        timestep: usize,
    ) -> Result<Tensor> {
        let alpha = self.alpha(timestep)?;
        weighted_sum(&[
            (alpha.sqrt(), original_samples),
            ((1. - alpha).sqrt(), &noise),
        ])
    }

    /// Factor of unit noise before the first step: 1.
    pub fn init_noise_sigma(&self) -> f64 {
        1.
    }
}
