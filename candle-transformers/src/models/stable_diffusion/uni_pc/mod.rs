//! UniPC, a predictor and a corrector of any order for few steps: [arXiv 2302.04867](https://arxiv.org/abs/2302.04867), in the form that
//! predicts originals.
//!
//! In the logarithm of `alpha / sigma`, where a sample is `alpha * original + sigma * noise`, the way to the next sample is an integral
//! over the originals that the model predicts. The predictor takes them for a polynomial through the last steps; the corrector does the
//! last step again, with what the model has said of its end.

mod sigmas;

use std::collections::{HashSet, VecDeque};

use candle_core::{bail, DType, Result, Tensor};

pub use self::sigmas::{
    ExponentialSigmaSchedule, KarrasSigmaSchedule, SigmaSchedule, TimestepSchedule,
};
use super::schedulers::{weighted_sum, PredictionType, Scheduler, SchedulerConfig};

/// The function of the step's length `h` that the polynomial is scaled with.
#[derive(Debug, Default, Clone, Copy)]
pub enum SolverType {
    /// `-h`.
    #[default]
    Bh1,
    /// `exp(-h) - 1`.
    Bh2,
}

/// Kinds of solvers. The scheduler has the first one; it is not asked.
#[derive(Debug, Default, Clone, Copy)]
pub enum AlgorithmType {
    /// Without noise in the steps.
    #[default]
    DpmSolverPlusPlus,
    /// With noise in the steps.
    SdeDpmSolverPlusPlus,
}

/// Kinds of last steps. The scheduler is not asked for one.
#[derive(Debug, Default, Clone, Copy)]
pub enum FinalSigmasType {
    /// To no noise.
    #[default]
    Zero,
    /// To the least sigma.
    SigmaMin,
}

/// Whether steps are corrected.
#[derive(Debug, Clone)]
pub enum CorrectorConfiguration {
    /// None.
    Disabled,
    /// All but some.
    Enabled {
        /// The steps, from 0, before which the sample is taken as it is.
        skip_steps: HashSet<usize>,
    },
}

/// All but the first three.
impl Default for CorrectorConfiguration {
    fn default() -> Self {
        Self::new([0, 1, 2])
    }
}

impl CorrectorConfiguration {
    /// All but these steps, from 0, are corrected.
    pub fn new(disabled_steps: impl IntoIterator<Item = usize>) -> Self {
        Self::Enabled {
            skip_steps: disabled_steps.into_iter().collect(),
        }
    }

    fn skips(&self, step: usize) -> bool {
        match self {
            Self::Disabled => true,
            Self::Enabled { skip_steps } => skip_steps.contains(&step),
        }
    }
}

/// The numbers of the scheduler.
#[derive(Debug, Clone)]
pub struct UniPCSchedulerConfig {
    /// The steps that are corrected.
    pub corrector: CorrectorConfiguration,
    /// Noise level at each training step.
    pub sigma_schedule: SigmaSchedule,
    /// The training steps used.
    pub timestep_schedule: TimestepSchedule,
    /// The order: how many originals a step is computed from. 2 is good for guided sampling, 3 for sampling without guidance.
    pub solver_order: usize,
    /// The quantity that the model predicts.
    pub prediction_type: PredictionType,
    /// Steps in training.
    pub num_training_timesteps: usize,
    /// Whether originals are clamped to what most of their elements keep to, for models of pixels: section 2.3 of
    /// [arXiv 2205.11487](https://arxiv.org/abs/2205.11487).
    pub thresholding: bool,
    /// Quantile, from 0 to 1, of an image's elements that is its threshold.
    pub dynamic_thresholding_ratio: f64,
    /// Minimum of the threshold.
    pub sample_max_value: f64,
    /// The scaling of the polynomial.
    pub solver_type: SolverType,
    /// Whether the order is less in the last steps, down to 1.
    pub lower_order_final: bool,
}

impl Default for UniPCSchedulerConfig {
    fn default() -> Self {
        Self {
            corrector: CorrectorConfiguration::default(),
            timestep_schedule: TimestepSchedule::FromSigmas,
            sigma_schedule: SigmaSchedule::default(),
            prediction_type: PredictionType::Epsilon,
            num_training_timesteps: 1000,
            solver_order: 2,
            thresholding: false,
            dynamic_thresholding_ratio: 0.995,
            sample_max_value: 1.,
            solver_type: SolverType::Bh1,
            lower_order_final: true,
        }
    }
}

impl SchedulerConfig for UniPCSchedulerConfig {
    fn build(&self, inference_steps: usize) -> Result<Box<dyn Scheduler>> {
        let scheduler = EdmDpmMultistepScheduler::new(self.clone(), inference_steps)?;
        Ok(Box::new(scheduler))
    }
}

/// The results of earlier steps.
#[derive(Debug, Clone)]
struct History {
    /// The step, from 0.
    index: usize,
    /// Number of consecutive steps so far.
    taken: usize,
    order: usize,
    /// The sample before the step.
    sample: Tensor,
    /// The training steps and the originals that were predicted there, the latest first.
    originals: VecDeque<(usize, Tensor)>,
}

/// The scheduler. Its steps follow each other; a step that does not follow the last one starts again.
#[derive(Debug, Clone)]
pub struct EdmDpmMultistepScheduler {
    config: UniPCSchedulerConfig,
    timesteps: Vec<usize>,
    history: Option<History>,
}

impl EdmDpmMultistepScheduler {
    /// The scheduler for this number of steps.
    ///
    /// # Errors
    /// There are no steps, more than in training, or so close ones that two are the same; the order is 0; or sigmas or the ratio of the
    /// threshold are out of range.
    pub fn new(config: UniPCSchedulerConfig, num_inference_steps: usize) -> Result<Self> {
        config.sigma_schedule.check()?;
        if config.solver_order == 0 {
            bail!("uni_pc: solver_order is 0; it must be at least 1")
        }
        let ratio = config.dynamic_thresholding_ratio;
        if config.thresholding && !(0. ..=1.).contains(&ratio) {
            bail!("uni_pc: dynamic_thresholding_ratio is {ratio}; it must be from 0 to 1")
        }
        let train = config.num_training_timesteps;
        let (schedule, sigmas) = (&config.timestep_schedule, &config.sigma_schedule);
        Ok(Self {
            timesteps: schedule.timesteps(sigmas, num_inference_steps, train)?,
            history: None,
            config,
        })
    }

    fn index(&self, timestep: usize) -> Result<usize> {
        match self.timesteps.iter().position(|&t| t == timestep) {
            Some(index) => Ok(index),
            None => bail!(
                "uni_pc: timestep {timestep} is not one of the scheduler's, which are {:?}",
                self.timesteps
            ),
        }
    }

    /// The deviation of the noise over that of the original.
    fn ratio(&self, timestep: usize) -> f64 {
        let train = self.config.num_training_timesteps;
        let time = (timestep as f64 + 1.) / train as f64;
        self.config.sigma_schedule.at(time)
    }

    /// The deviations of the original and of the noise.
    fn alpha_sigma(&self, timestep: usize) -> (f64, f64) {
        let ratio = self.ratio(timestep);
        let alpha = 1. / (ratio * ratio + 1.).sqrt();
        (alpha, ratio * alpha)
    }

    /// The logarithm of alpha over sigma.
    fn lambda(&self, timestep: usize) -> f64 {
        -self.ratio(timestep).ln()
    }

    fn original(&self, model_output: &Tensor, timestep: usize, sample: &Tensor) -> Result<Tensor> {
        let (alpha, sigma) = self.alpha_sigma(timestep);
        let [[of_sample, of_output], _] = self.config.prediction_type.factors(alpha, sigma);
        let original = weighted_sum(&[(of_sample, sample), (of_output, model_output)])?;
        if self.config.thresholding {
            self.thresholded(&original)
        } else {
            Ok(original)
        }
    }

    /// `xs` clamped to a threshold for each image, and larger where that took something from it.
    fn thresholded(&self, xs: &Tensor) -> Result<Tensor> {
        let wide = xs.to_dtype(DType::F32)?;
        let (sizes, _) = wide.abs()?.flatten_from(1)?.sort_last_dim(true)?;
        let last = sizes.dim(1)?.saturating_sub(1);
        let place = self.config.dynamic_thresholding_ratio * last as f64;
        let (below, part) = (place as usize, place.fract());
        let size = |i: usize| sizes.narrow(1, i.min(last), 1);
        let between = weighted_sum(&[(1. - part, &size(below)?), (part, &size(below + 1)?)])?;
        let threshold = between.maximum(self.config.sample_max_value)?;
        let grown = (&threshold / size(last)?)?.sqrt()?.minimum(1f64)?;

        let mut per_picture = vec![1; xs.rank()];
        per_picture[0] = xs.dim(0)?;
        let threshold = threshold.reshape(per_picture.as_slice())?;
        let clamped = wide.broadcast_minimum(&threshold)?;
        let clamped = clamped.broadcast_maximum(&threshold.neg()?)?;
        let grown = grown.reshape(per_picture)?;
        clamped.broadcast_div(&grown)?.to_dtype(xs.dtype())
    }

    /// From `sample` at the latest step of `earlier` to `timestep`. The polynomial goes through `order` of the originals in `earlier` and,
    /// for the corrector, through that at `timestep`.
    fn moved(
        &self,
        sample: &Tensor,
        timestep: usize,
        earlier: &VecDeque<(usize, Tensor)>,
        order: usize,
        corrector: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Some((from, latest)) = earlier.front() else {
            bail!("uni_pc: a step without a previous sample")
        };
        let h = self.lambda(timestep) - self.lambda(*from);
        if h == 0. {
            return Ok(sample.clone());
        }
        let ((alpha, sigma), (_, sigma_from)) =
            (self.alpha_sigma(timestep), self.alpha_sigma(*from));
        let scale = match self.config.solver_type {
            SolverType::Bh1 => -h,
            SolverType::Bh2 => (-h).exp_m1(),
        };

        // The positions of the other originals, in steps of h from the latest.
        let others = earlier.iter().skip(1).take(order - 1);
        let mut places = Vec::with_capacity(order);
        let mut originals = Vec::with_capacity(order);
        for (timestep, original) in others {
            places.push((self.lambda(*timestep) - self.lambda(*from)) / h);
            originals.push(original);
        }
        if let Some(original) = corrector {
            places.push(1.);
            originals.push(original);
        }
        let weights = match places.as_slice() {
            // As the paper's code has it: exact for a small step, and stable.
            [_] => vec![0.5],
            places => weights(places, h, scale)?,
        };

        let factor = |(weight, place): (f64, &f64)| -alpha * scale * weight / place;
        let factors: Vec<f64> = weights.into_iter().zip(&places).map(factor).collect();
        let of_latest = -alpha * (-h).exp_m1() - factors.iter().sum::<f64>();
        let mut terms = vec![(sigma / sigma_from, sample), (of_latest, latest)];
        terms.extend(factors.into_iter().zip(originals));
        weighted_sum(&terms)
    }
}

/// The weights of the differences to the latest original, at `places` steps of `h` from it, over `scale`: formula 11 of the paper.
fn weights(places: &[f64], h: f64, scale: f64) -> Result<Vec<f64>> {
    let (mut phi, mut factorial) = ((-h).exp_m1() / -h - 1., 1.);
    let mut rows = Vec::with_capacity(places.len());
    for power in 0..places.len() {
        let mut row: Vec<f64> = places.iter().map(|r| r.powi(power as i32)).collect();
        row.push(phi * factorial / scale);
        rows.push(row);
        factorial *= power as f64 + 2.;
        phi = phi / -h - 1. / factorial;
    }
    solved(rows)
}

/// The solution of linear equations by Gaussian elimination; the last element of each row is its right-hand side.
fn solved(mut rows: Vec<Vec<f64>>) -> Result<Vec<f64>> {
    let n = rows.len();
    for column in 0..n {
        let size = |i: &usize| rows[*i][column].abs();
        let pivot = (column..n).max_by(|a, b| size(a).total_cmp(&size(b)));
        rows.swap(column, pivot.unwrap_or(column));
        let (above, below) = rows.split_at_mut(column + 1);
        let pivot = &above[column];
        if pivot[column] == 0. || !pivot[column].is_finite() {
            bail!("uni_pc: two of the previous steps have the same noise")
        }
        for row in below {
            let factor = row[column] / pivot[column];
            row.iter_mut()
                .zip(pivot)
                .for_each(|(x, p)| *x -= factor * p);
        }
    }
    let mut solution = vec![0.; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| rows[i][j] * solution[j]).sum();
        solution[i] = (rows[i][n] - known) / rows[i][i];
    }
    Ok(solution)
}

impl Scheduler for EdmDpmMultistepScheduler {
    fn step(&mut self, model_output: &Tensor, timestep: usize, sample: &Tensor) -> Result<Tensor> {
        let index = self.index(timestep)?;
        let before = self.history.as_ref();
        let before = before.filter(|before| before.index + 1 == index).cloned();
        let original = self.original(model_output, timestep, sample)?;

        let sample = match &before {
            Some(before) if !self.config.corrector.skips(index) => {
                let (from, earlier) = (&before.sample, &before.originals);
                self.moved(from, timestep, earlier, before.order, Some(&original))?
            }
            _ => sample.clone(),
        };

        let mut order = self.config.solver_order;
        if self.config.lower_order_final {
            order = order.min(self.timesteps.len() - index);
        }
        let (taken, mut originals) = match before {
            Some(before) => (before.taken, before.originals),
            None => (0, VecDeque::new()),
        };
        let order = order.min(taken + 1);
        originals.push_front((timestep, original));
        originals.truncate(self.config.solver_order);

        // Behind the last step there is training step 0.
        let next = self.timesteps.get(index + 1).copied().unwrap_or(0);
        let moved = self.moved(&sample, next, &originals, order, None)?;
        self.history = Some(History {
            index,
            taken: taken + 1,
            order,
            sample,
            originals,
        });
        Ok(moved)
    }

    /// The sample unchanged.
    fn scale_model_input(&self, sample: Tensor, _timestep: usize) -> Result<Tensor> {
        Ok(sample)
    }

    fn timesteps(&self) -> &[usize] {
        &self.timesteps
    }

    fn add_noise(&self, original: &Tensor, noise: Tensor, timestep: usize) -> Result<Tensor> {
        let (alpha, sigma) = self.alpha_sigma(timestep);
        weighted_sum(&[(alpha, original), (sigma, &noise)])
    }

    /// The deviation of the noise in a sample, just behind the last training step.
    fn init_noise_sigma(&self) -> f64 {
        self.alpha_sigma(self.config.num_training_timesteps).1
    }
}
