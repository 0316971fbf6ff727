//! The scheduler of Würstchen: DDPM, [arXiv 2006.11239](https://arxiv.org/abs/2006.11239), whose time goes from 1, all noise, down to 0.

use candle_core::{bail, Result, Tensor};

/// The numbers of the scheduler.
#[derive(Debug, Clone)]
pub struct DDPMWSchedulerConfig {
    /// A power that bends the time.
    scaler: f64,
    /// Shift of the cosine, so that the last steps have some noise.
    s: f64,
}

/// A time that is not bent, and a shift of 0.008.
impl Default for DDPMWSchedulerConfig {
    fn default() -> Self {
        Self {
            scaler: 1.,
            s: 0.008,
        }
    }
}

/// The scheduler.
#[derive(Debug, Clone)]
pub struct DDPMWScheduler {
    timesteps: Vec<f64>,
    /// The configuration of the scheduler.
    pub config: DDPMWSchedulerConfig,
}

impl DDPMWScheduler {
    /// The scheduler for this number of steps.
    ///
    /// # Errors
    /// There are no steps.
    pub fn new(inference_steps: usize, config: DDPMWSchedulerConfig) -> Result<Self> {
        if inference_steps == 0 {
            bail!("ddpm: 0 steps requested; at least 1 is required")
        }
        let time = |i| 1. - i as f64 / inference_steps as f64;
        Ok(Self {
            timesteps: (0..=inference_steps).map(time).collect(),
            config,
        })
    }

    /// The times of the steps, from 1 down, and 0, where no step begins.
    pub fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    /// Fraction of a sample's variance that is the original's.
    fn alpha(&self, time: f64) -> f64 {
        let DDPMWSchedulerConfig { scaler, s } = self.config;
        let time = match scaler {
            _ if scaler > 1. => 1. - (1. - time).powf(scaler),
            _ if scaler < 1. => time.powf(scaler),
            _ => time,
        };
        let square = |angle: f64| (angle * std::f64::consts::PI).cos().powi(2);
        // Diffusers divides by the square at half of this angle. The difference is 5e-4 of alpha; this is what Candle does.
        let alpha = square((time + s) / (1. + s) * 0.5) / square(s / (1. + s));
        alpha.clamp(0.0001, 0.9999)
    }

    /// The time of the step after the one that is nearest to `time`.
    fn next(&self, time: f64) -> Result<f64> {
        let far = |i: &usize| (self.timesteps[*i] - time).abs();
        let steps = 0..self.timesteps.len();
        let nearest = steps.min_by(|a, b| far(a).total_cmp(&far(b)));
        match nearest.and_then(|i| self.timesteps.get(i + 1)) {
            Some(&next) => Ok(next),
            None => bail!(
                "ddpm: no step starts at {time}, the end; steps start at {:?}",
                &self.timesteps[..self.timesteps.len() - 1]
            ),
        }
    }

    /// The sample unchanged.
    pub fn scale_model_input(&self, sample: Tensor, _timestep: usize) -> Tensor {
        sample
    }

    /// The sample of the next step, from that at time `ts` and the noise that the model found in it, all of one shape: with new noise, but
    /// for the last step.
    ///
    /// # Errors
    /// No step begins at this time, or shapes, dtypes or devices do not match.
    pub fn step(&self, model_output: &Tensor, ts: f64, sample: &Tensor) -> Result<Tensor> {
        let next_time = self.next(ts)?;
        let (now, next) = (self.alpha(ts), self.alpha(next_time));
        let alpha = now / next;
        let found = (model_output * ((1. - alpha) / (1. - now).sqrt()))?;
        let mean = ((sample - found)? / alpha.sqrt())?;
        if next_time == 0. {
            Ok(mean)
        } else {
            let deviation = ((1. - alpha) * (1. - next) / (1. - now)).sqrt();
            let noise = mean.randn_like(0., 1.)?;
            mean + (noise * deviation)?
        }
    }

    /// Factor of unit noise before the first step: 1.
    pub fn init_noise_sigma(&self) -> f64 {
        1.
    }
}
