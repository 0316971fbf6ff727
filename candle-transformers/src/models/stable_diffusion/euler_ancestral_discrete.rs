//! Euler's method with new noise in each step, the ancestral sampler of Katherine Crowson's
//! [k-diffusion](https://github.com/crowsonkb/k-diffusion). Its samples are `original + sigma * noise`.

use candle_core::{bail, Result, Tensor};

use super::schedulers::{
    weighted_sum, with_noise, BetaSchedule, PredictionType, Scheduler, SchedulerConfig,
    TimestepSpacing,
};
use super::utils::interp;

/// The numbers of the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct EulerAncestralDiscreteSchedulerConfig {
    /// Beta of the first training step.
    pub beta_start: f64,
    /// Beta of the last training step.
    pub beta_end: f64,
    /// Interpolation between the two betas.
    pub beta_schedule: BetaSchedule,
    /// The lowest training step used, with [`TimestepSpacing::Leading`].
    pub steps_offset: usize,
    /// The quantity that the model predicts: the noise or `v`.
    pub prediction_type: PredictionType,
    /// Steps in training.
    pub train_timesteps: usize,
    /// The spacing of the training steps used.
    pub timestep_spacing: TimestepSpacing,
}

/// That of Stable Diffusion 1.5.
impl Default for EulerAncestralDiscreteSchedulerConfig {
    fn default() -> Self {
        Self {
            beta_start: 0.00085,
            beta_end: 0.012,
            beta_schedule: BetaSchedule::ScaledLinear,
            steps_offset: 1,
            prediction_type: PredictionType::Epsilon,
            train_timesteps: 1000,
            timestep_spacing: TimestepSpacing::Leading,
        }
    }
}

impl SchedulerConfig for EulerAncestralDiscreteSchedulerConfig {
    fn build(&self, inference_steps: usize) -> Result<Box<dyn Scheduler>> {
        let scheduler = EulerAncestralDiscreteScheduler::new(inference_steps, *self)?;
        Ok(Box::new(scheduler))
    }
}

/// The scheduler.
#[derive(Debug, Clone)]
pub struct EulerAncestralDiscreteScheduler {
    timesteps: Vec<usize>,
    /// The noise level of each step, followed by 0.
    sigmas: Vec<f64>,
    /// The configuration of the scheduler.
    pub config: EulerAncestralDiscreteSchedulerConfig,
}

impl EulerAncestralDiscreteScheduler {
    /// The scheduler for this number of steps.
    ///
    /// # Errors
    /// There are no steps, or more than in training.
    pub fn new(
        inference_steps: usize,
        config: EulerAncestralDiscreteSchedulerConfig,
    ) -> Result<Self> {
        let train = config.train_timesteps;
        let (start, end) = (config.beta_start, config.beta_end);
        let alphas = config.beta_schedule.alphas_cumprod(start, end, train)?;
        let spacing = config.timestep_spacing;
        let timesteps = spacing.timesteps(inference_steps, train, config.steps_offset)?;

        let sigma = |alpha: &f64| ((1. - alpha) / alpha).sqrt();
        let known: Vec<_> = alphas.iter().map(sigma).collect();
        let places: Vec<_> = (0..train).map(|i| i as f64).collect();
        // With an offset the greatest step may be behind those of training.
        let at = |&timestep: &usize| timestep.min(train - 1) as f64;
        let taken: Vec<_> = timesteps.iter().map(at).collect();
        let mut sigmas = interp(&taken, &places, &known);
        sigmas.push(0.);
        Ok(Self {
            timesteps,
            sigmas,
            config,
        })
    }

    /// Sigma of a step and of the one after it.
    fn sigmas(&self, timestep: usize) -> Result<(f64, f64)> {
        match self.timesteps.iter().position(|&t| t == timestep) {
            Some(i) => Ok((self.sigmas[i], self.sigmas[i + 1])),
            None => bail!(
                "euler: timestep {timestep} is not one of the scheduler's, which are {:?}",
                self.timesteps
            ),
        }
    }
}

impl Scheduler for EulerAncestralDiscreteScheduler {
    fn timesteps(&self) -> &[usize] {
        &self.timesteps
    }

    /// The sample divided by `sqrt(sigma² + 1)`, which gives it the deviation that it had in training.
    fn scale_model_input(&self, sample: Tensor, timestep: usize) -> Result<Tensor> {
        let (sigma, _) = self.sigmas(timestep)?;
        sample / (sigma.powi(2) + 1.).sqrt()
    }

    /// The sample of the next step, with new noise but for the last step.
    ///
    /// # Errors
    /// The step is not one of the scheduler's, the model gives originals ([`PredictionType::Sample`]), or shapes, dtypes or devices do not
    /// match.
    fn step(&mut self, model_output: &Tensor, timestep: usize, sample: &Tensor) -> Result<Tensor> {
        let (from, to) = self.sigmas(timestep)?;
        let prediction = match self.config.prediction_type {
            PredictionType::Sample => {
                bail!("euler: the prediction type is Sample; it must be Epsilon or VPrediction")
            }
            prediction => prediction,
        };
        let up = (to.powi(2) * (from.powi(2) - to.powi(2)) / from.powi(2)).sqrt();
        let down = (to.powi(2) - up.powi(2)).sqrt();

        // The models' samples are those here times alpha.
        let alpha = 1. / (from.powi(2) + 1.).sqrt();
        let [[of_sample, of_output], _] = prediction.factors(alpha, from * alpha);
        // The slope is (sample - original) / from, and the step goes down - from along it.
        let kept = down / from;
        let mean = weighted_sum(&[
            (kept + (1. - kept) * alpha * of_sample, sample),
            ((1. - kept) * of_output, model_output),
        ])?;
        with_noise(mean, up)
    }

    fn add_noise(&self, original: &Tensor, noise: Tensor, timestep: usize) -> Result<Tensor> {
        let (sigma, _) = self.sigmas(timestep)?;
        weighted_sum(&[(1., original), (sigma, &noise)])
    }

    /// The greatest sigma `s`, or `sqrt(s² + 1)` with [`TimestepSpacing::Leading`].
    fn init_noise_sigma(&self) -> f64 {
        let greatest = self.sigmas.iter().copied().fold(0., f64::max);
        match self.config.timestep_spacing {
            TimestepSpacing::Trailing | TimestepSpacing::Linspace => greatest,
            TimestepSpacing::Leading => (greatest.powi(2) + 1.).sqrt(),
        }
    }
}
