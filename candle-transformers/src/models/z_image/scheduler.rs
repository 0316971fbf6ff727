//! Euler's method along the times of flow matching, as diffusers' `FlowMatchEulerDiscreteScheduler` has it.

use candle_core::{bail, Result, Tensor};
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::diffusion::{shift_of, shifted};

/// Patches of an image that [`BASE_SHIFT`] is for.
pub const BASE_IMAGE_SEQ_LEN: usize = 256;
/// Patches of an image that [`MAX_SHIFT`] is for.
pub const MAX_IMAGE_SEQ_LEN: usize = 4096;
/// Shift of the times of small images.
pub const BASE_SHIFT: f64 = 0.5;
/// Shift of the times of large images.
pub const MAX_SHIFT: f64 = 1.15;

/// The numbers of a `scheduler_config.json`, which leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    /// The time step of pure noise, which is time 1.
    pub num_train_timesteps: usize,
    /// By what the ratio of noise to image grows.
    pub shift: f64,
    /// Whether it grows by `exp(mu)` instead of `shift`, where `mu` is that of [`FlowMatchEulerDiscreteScheduler::set_timesteps`].
    pub use_dynamic_shifting: bool,
}

/// [`SchedulerConfig::z_image_turbo`].
impl Default for SchedulerConfig {
    fn default() -> Self {
        Self::z_image_turbo()
    }
}

impl SchedulerConfig {
    /// [Z-Image-Turbo](https://huggingface.co/Tongyi-MAI/Z-Image-Turbo).
    pub fn z_image_turbo() -> Self {
        Self {
            num_train_timesteps: 1000,
            shift: 3.,
            use_dynamic_shifting: false,
        }
    }

    /// A time from 0 to 1, moved to noise.
    fn moved(&self, sigma: f64, mu: Option<f64>) -> f64 {
        match (self.use_dynamic_shifting, mu) {
            (true, Some(_)) if sigma <= 0. => 0.,
            (true, Some(mu)) => shifted(sigma, mu),
            (true, None) => sigma,
            (false, _) => self.shift * sigma / (1. + (self.shift - 1.) * sigma),
        }
    }
}

/// The times of a run, and where in it a sample is.
#[derive(Debug, Clone)]
pub struct FlowMatchEulerDiscreteScheduler {
    /// The configuration.
    pub config: SchedulerConfig,
    /// Times of the steps from `num_train_timesteps`, noise, on; before [`set_timesteps`](Self::set_timesteps) those of the training.
    pub timesteps: Vec<f64>,
    /// The same from 1 on, and after [`set_timesteps`](Self::set_timesteps) followed by a 0.
    pub sigmas: Vec<f64>,
    /// The smallest time of the training.
    pub sigma_min: f64,
    /// The largest time of the training.
    pub sigma_max: f64,
    step_index: usize,
}

impl FlowMatchEulerDiscreteScheduler {
    /// With the times of the training; [`set_timesteps`](Self::set_timesteps) makes those of a run.
    pub fn new(config: SchedulerConfig) -> Self {
        let count = config.num_train_timesteps as f64;
        let times = (1..=config.num_train_timesteps).rev();
        let sigmas: Vec<f64> = times
            .map(|time| config.moved(time as f64 / count, None))
            .collect();
        Self {
            timesteps: sigmas.iter().map(|sigma| sigma * count).collect(),
            sigma_min: sigmas.last().copied().unwrap_or(0.),
            sigma_max: sigmas.first().copied().unwrap_or(0.),
            sigmas,
            config,
            step_index: 0,
        }
    }

    /// Begins a run of `num_inference_steps` steps: times equally far from each other, from `sigma_max` on, and then moved to noise as the
    /// configuration says. `mu`, as [`calculate_shift`] gives it, counts with `use_dynamic_shifting` alone; without `mu` such times stay.
    pub fn set_timesteps(&mut self, num_inference_steps: usize, mu: Option<f64>) {
        let (steps, train) = (num_inference_steps, self.config.num_train_timesteps as f64);
        let sigmas = (0..steps).map(|i| {
            let done = i as f64 / steps as f64;
            let sigma = self.sigma_max * (1. - done) + self.sigma_min * done;
            self.config.moved(sigma, mu)
        });
        self.sigmas = sigmas.collect();
        self.timesteps = self.sigmas.iter().map(|sigma| sigma * train).collect();
        self.sigmas.push(0.);
        self.step_index = 0;
    }

    /// The time of the sample, from 1 to 0; 0 after the last step.
    pub fn current_sigma(&self) -> f64 {
        self.sigmas.get(self.step_index).copied().unwrap_or(0.)
    }

    /// The time of the sample as the model takes it: from 0, noise, to 1; `(1000 - t) / 1000`.
    pub fn current_timestep_normalized(&self) -> f64 {
        let time = self.timesteps.get(self.step_index).copied();
        (1000. - time.unwrap_or(0.)) / 1000.
    }

    /// The sample after a step: `sample + (next - now) * model_output`, of one shape and dtype. The model's results point to the image
    /// and have to be negated first.
    ///
    /// # Errors
    /// All steps are done, or the shapes, dtypes or devices differ.
    pub fn step(&mut self, model_output: &Tensor, sample: &Tensor) -> Result<Tensor> {
        let times = self.sigmas.get(self.step_index..);
        let Some([now, next, ..]) = times else {
            bail!(
                "{FAMILY}: all {} steps are done; reset the scheduler, or set its timesteps",
                self.step_index
            )
        };
        let sample = (sample + (model_output * (next - now))?)?;
        self.step_index += 1;
        Ok(sample)
    }

    /// Goes back to the first step.
    pub fn reset(&mut self) {
        self.step_index = 0;
    }

    /// The number of steps.
    pub fn num_inference_steps(&self) -> usize {
        self.timesteps.len()
    }

    /// The number of steps done.
    pub fn step_index(&self) -> usize {
        self.step_index
    }

    /// Whether all steps are done.
    pub fn is_complete(&self) -> bool {
        self.step_index >= self.timesteps.len()
    }
}

/// The shift of the times for an image of `image_seq_len` patches: linear, `base_shift` for `base_seq_len` of them and `max_shift` for
/// `max_seq_len`.
pub fn calculate_shift(
    image_seq_len: usize,
    base_seq_len: usize,
    max_seq_len: usize,
    base_shift: f64,
    max_shift: f64,
) -> f64 {
    let (lens, shifts) = ([base_seq_len, max_seq_len], [base_shift, max_shift]);
    shift_of(image_seq_len, lens, shifts)
}
