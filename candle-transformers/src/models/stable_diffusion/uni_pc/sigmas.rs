//! The noise levels, and the training steps that are used.

use candle_core::{bail, Result};

use crate::models::stable_diffusion::utils::{interp, points};

/// The noise over the time of training, which goes from 0 to 1: the deviation of the noise over that of the original.
#[derive(Debug, Clone, Copy)]
pub enum SigmaSchedule {
    /// A power of a line.
    Karras(KarrasSigmaSchedule),
    /// The exponential of a line.
    Exponential(ExponentialSigmaSchedule),
}

/// That of Karras.
impl Default for SigmaSchedule {
    fn default() -> Self {
        Self::Karras(KarrasSigmaSchedule::default())
    }
}

impl SigmaSchedule {
    pub(super) fn check(&self) -> Result<()> {
        let (min, max, rho) = match self {
            Self::Karras(schedule) => (schedule.sigma_min, schedule.sigma_max, schedule.rho),
            Self::Exponential(schedule) => (schedule.sigma_min, schedule.sigma_max, 1.),
        };
        // Not `min <= 0. || …`, which is false for NaN.
        if !(0. < min && min < max && max.is_finite() && 0. < rho && rho.is_finite()) {
            bail!("uni_pc: sigmas from {min} to {max} with rho {rho}; they must be 0 < sigma_min < sigma_max, and rho above 0")
        }
        Ok(())
    }

    pub(super) fn at(&self, time: f64) -> f64 {
        match self {
            Self::Karras(schedule) => schedule.at(time),
            Self::Exponential(schedule) => schedule.at(time),
        }
    }
}

/// Formula 5 of [arXiv 2206.00364](https://arxiv.org/abs/2206.00364).
#[derive(Debug, Clone, Copy)]
pub struct KarrasSigmaSchedule {
    /// At time 0.
    pub sigma_min: f64,
    /// At time 1.
    pub sigma_max: f64,
    /// The power; the greater it is, the more of the time has little noise.
    pub rho: f64,
}

impl KarrasSigmaSchedule {
    fn at(&self, time: f64) -> f64 {
        let root = |sigma: f64| sigma.powf(1. / self.rho);
        let (min, max) = (root(self.sigma_min), root(self.sigma_max));
        (max + (1. - time) * (min - max)).powf(self.rho)
    }
}

/// From 0.1 to 10 with `rho` 4.
impl Default for KarrasSigmaSchedule {
    fn default() -> Self {
        Self {
            sigma_max: 10.,
            sigma_min: 0.1,
            rho: 4.,
        }
    }
}

/// Sigmas whose logarithms are a line.
#[derive(Debug, Clone, Copy)]
pub struct ExponentialSigmaSchedule {
    sigma_min: f64,
    sigma_max: f64,
}

impl ExponentialSigmaSchedule {
    fn at(&self, time: f64) -> f64 {
        let (min, max) = (self.sigma_min.ln(), self.sigma_max.ln());
        (min + time * (max - min)).exp()
    }
}

/// From 0.1 to 80.
impl Default for ExponentialSigmaSchedule {
    fn default() -> Self {
        Self {
            sigma_max: 80.,
            sigma_min: 0.1,
        }
    }
}

/// The training steps that are used.
#[derive(Debug, Clone)]
pub enum TimestepSchedule {
    /// Those that the logarithms of the sigmas point to.
    FromSigmas,
    /// Those at even distances, rounded down.
    Linspace,
}

impl TimestepSchedule {
    /// `inference` of the `train` steps, the last one first.
    pub(super) fn timesteps(
        &self,
        sigmas: &SigmaSchedule,
        inference: usize,
        train: usize,
    ) -> Result<Vec<usize>> {
        if inference == 0 || inference > train {
            bail!("uni_pc: {inference} steps requested; expected 1 to {train}, the number of training steps")
        }
        let last = train - 1;
        let taken: Vec<usize> = match self {
            Self::Linspace => {
                let points = points(last as f64, 0., inference);
                points.into_iter().map(|at| at as usize).collect()
            }
            Self::FromSigmas => {
                let times = points(1., 0., inference).into_iter().rev();
                let logs: Vec<_> = times.map(|time| sigmas.at(time).ln()).collect();
                // A little wider than the sigmas, so that rounding leaves none outside.
                let line = points(logs[0] - 1e-3, logs[inference - 1] + 1e-3, inference);
                let steps = interp(&logs, &line, &points(0., train as f64, inference));
                // NaN, of a single step, is 0.
                let step = |at: f64| last.saturating_sub(at as usize);
                steps.into_iter().map(step).collect()
            }
        };
        match taken.windows(2).find(|pair| pair[0] <= pair[1]) {
            Some(pair) => bail!(
                "uni_pc: {inference} steps of {train} repeat training step {}; use fewer",
                pair[1]
            ),
            None => Ok(taken),
        }
    }
}
