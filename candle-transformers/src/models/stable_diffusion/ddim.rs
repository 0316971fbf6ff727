//! DDIM, denoising diffusion implicit models: [arXiv 2010.02502](https://arxiv.org/abs/2010.02502). Without `eta` there is no noise in a
//! step, so that steps can be large.

use candle_core::{bail, Result, Tensor};

use super::schedulers::{
    weighted_sum, with_noise, BetaSchedule, PredictionType, Scheduler, SchedulerConfig,
    TimestepSpacing,
};

/// The numbers of the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct DDIMSchedulerConfig {
    /// Beta of the first training step.
    pub beta_start: f64,
    /// Beta of the last training step.
    pub beta_end: f64,
    /// Interpolation between the two betas.
    pub beta_schedule: BetaSchedule,
    /// Fraction of DDPM's noise that each step adds, from 0 to 1.
    pub eta: f64,
    /// The lowest training step used, with [`TimestepSpacing::Leading`].
    pub steps_offset: usize,
    /// The quantity that the model predicts.
    pub prediction_type: PredictionType,
    /// Steps in training.
    pub train_timesteps: usize,
    /// The spacing of the training steps used.
    pub timestep_spacing: TimestepSpacing,
}

/// That of Stable Diffusion 1.5.
impl Default for DDIMSchedulerConfig {
    fn default() -> Self {
        Self {
            beta_start: 0.00085,
            beta_end: 0.012,
            beta_schedule: BetaSchedule::ScaledLinear,
            eta: 0.,
            steps_offset: 1,
            prediction_type: PredictionType::Epsilon,
            train_timesteps: 1000,
            timestep_spacing: TimestepSpacing::Leading,
        }
    }
}

impl SchedulerConfig for DDIMSchedulerConfig {
    fn build(&self, inference_steps: usize) -> Result<Box<dyn Scheduler>> {
        Ok(Box::new(DDIMScheduler::new(inference_steps, *self)?))
    }
}

/// The scheduler; [`DDIMSchedulerConfig::build`](SchedulerConfig::build) makes it.
#[derive(Debug, Clone)]
pub struct DDIMScheduler {
    timesteps: Vec<usize>,
    alphas_cumprod: Vec<f64>,
    /// Number of training steps per step.
    step_ratio: usize,
    /// The configuration of the scheduler.
    pub config: DDIMSchedulerConfig,
}

impl DDIMScheduler {
    fn new(inference_steps: usize, config: DDIMSchedulerConfig) -> Result<Self> {
        let train = config.train_timesteps;
        let (start, end) = (config.beta_start, config.beta_end);
        let spacing = config.timestep_spacing;
        Ok(Self {
            alphas_cumprod: config.beta_schedule.alphas_cumprod(start, end, train)?,
            timesteps: spacing.timesteps(inference_steps, train, config.steps_offset)?,
            step_ratio: train / inference_steps,
            config,
        })
    }

    /// `timestep` as an index. An offset of 1 makes the greatest step one that training did not have, which is the last one then.
    fn index(&self, timestep: usize) -> Result<usize> {
        let train = self.alphas_cumprod.len();
        if timestep > train {
            bail!("ddim: timestep {timestep} is out of range; training had {train} steps")
        }
        Ok(timestep.min(train - 1))
    }
}

impl Scheduler for DDIMScheduler {
    fn step(&mut self, model_output: &Tensor, timestep: usize, sample: &Tensor) -> Result<Tensor> {
        let timestep = self.index(timestep)?;
        let now = self.alphas_cumprod[timestep];
        let next = self.alphas_cumprod[timestep.saturating_sub(self.step_ratio)];
        let variance = (1. - next) / (1. - now) * (1. - now / next);
        let deviation = self.config.eta * variance.sqrt();
        let kept = (1. - next - deviation * deviation).sqrt();

        let prediction = self.config.prediction_type;
        let [original, noise] = prediction.factors(now.sqrt(), (1. - now).sqrt());
        let of = |i: usize| next.sqrt() * original[i] + kept * noise[i];
        let mean = weighted_sum(&[(of(0), sample), (of(1), model_output)])?;
        with_noise(mean, deviation)
    }

    /// The sample unchanged.
    fn scale_model_input(&self, sample: Tensor, _timestep: usize) -> Result<Tensor> {
        Ok(sample)
    }

    fn timesteps(&self) -> &[usize] {
        &self.timesteps
    }

    fn add_noise(&self, original: &Tensor, noise: Tensor, timestep: usize) -> Result<Tensor> {
        let alpha = self.alphas_cumprod[self.index(timestep)?];
        weighted_sum(&[(alpha.sqrt(), original), ((1. - alpha).sqrt(), &noise)])
    }

    /// 1.
    fn init_noise_sigma(&self) -> f64 {
        1.
    }
}
