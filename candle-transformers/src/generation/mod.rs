//! From logits to the next token.
//!
//! Top-p is nucleus sampling, [arXiv 1904.09751](https://arxiv.org/abs/1904.09751); the Gumbel trick of drawing with
//! an argmax is told in [arXiv 1611.01144](https://arxiv.org/abs/1611.01144).

mod greedy;

use std::cmp::Ordering;

use candle_core::{bail, DType, Error, Result, Tensor, D};
use rand::distr::{weighted::WeightedIndex, Distribution};
use rand::{rngs::StdRng, Rng, SeedableRng};

use greedy::check_shape;
pub use greedy::GreedyToken;

/// Below this the distribution is a single spike, and dividing by it would only lose digits: greedy instead.
const MIN_TEMPERATURE: f64 = 1e-7;

/// How [`LogitsProcessor`] chooses a token.
///
/// `temperature` divides the logits before the softmax: below 1 sharper, above 1 flatter. A temperature of 0 or less
/// means [`Sampling::ArgMax`].
#[derive(Clone, PartialEq, Debug)]
pub enum Sampling {
    /// The token with the highest logit.
    ArgMax,
    /// Any token, by its probability.
    All {
        /// Divides the logits.
        temperature: f64,
    },
    /// One of the `k` most probable tokens. More than there are tokens means all of them.
    TopK {
        /// How many tokens stay; at least 1.
        k: usize,
        /// Divides the logits.
        temperature: f64,
    },
    /// One of the smallest set of tokens whose probabilities sum to `p`. `p` outside `(0, 1)` means all tokens.
    TopP {
        /// The share of the probability to keep.
        p: f64,
        /// Divides the logits.
        temperature: f64,
    },
    /// [`Sampling::TopK`], then [`Sampling::TopP`] on what is left. The probabilities are not brought back to a sum
    /// of 1 in between: when those of the `k` tokens sum to less than `p`, all `k` stay.
    TopKThenTopP {
        /// How many tokens stay at first; at least 1.
        k: usize,
        /// The share of the whole probability to keep.
        p: f64,
        /// Divides the logits.
        temperature: f64,
    },
    /// The highest of logits with Gumbel noise added: the same distribution as [`Sampling::All`], without a softmax.
    GumbelSoftmax {
        /// Multiplies the noise.
        temperature: f64,
    },
}

impl Sampling {
    /// `None` where the choice is the highest logit.
    fn temperature(&self) -> Option<f64> {
        let temperature = match *self {
            Self::ArgMax => return None,
            Self::All { temperature }
            | Self::TopK { temperature, .. }
            | Self::TopP { temperature, .. }
            | Self::TopKThenTopP { temperature, .. }
            | Self::GumbelSoftmax { temperature } => temperature,
        };
        is_warm(temperature).then_some(temperature)
    }
}

/// NaN counts as warm, so that it is refused where it is used instead of passing for greedy.
fn is_warm(temperature: f64) -> bool {
    temperature.is_nan() || temperature >= MIN_TEMPERATURE
}

/// Chooses tokens from logits; the same seed, settings and logits give the same tokens.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_transformers::generation::{LogitsProcessor, Sampling};
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::new(&[0f32, 3., 1., 2.], &Device::Cpu)?;
/// let mut greedy = LogitsProcessor::from_sampling(0, Sampling::ArgMax);
/// assert_eq!(greedy.sample(&logits)?, 1);
/// let mut top2 = LogitsProcessor::from_sampling(0, Sampling::TopK { k: 2, temperature: 1. });
/// assert!([1, 3].contains(&top2.sample(&logits)?));
/// # Ok(())
/// # }
/// ```
pub struct LogitsProcessor {
    rng: StdRng,
    sampling: Sampling,
}

impl LogitsProcessor {
    /// A processor with the given way of choosing; `seed` starts its random numbers.
    pub fn from_sampling(seed: u64, sampling: Sampling) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            sampling,
        }
    }

    /// Greedy without a temperature or with one of 0 or less, otherwise [`Sampling::All`], or [`Sampling::TopP`] where
    /// `top_p` is given.
    pub fn new(seed: u64, temperature: Option<f64>, top_p: Option<f64>) -> Self {
        let sampling = match (temperature.filter(|&t| is_warm(t)), top_p) {
            (None, _) => Sampling::ArgMax,
            (Some(temperature), None) => Sampling::All { temperature },
            (Some(temperature), Some(p)) => Sampling::TopP { p, temperature },
        };
        Self::from_sampling(seed, sampling)
    }

    /// Chooses one token id from `logits` of shape `(vocab)`, any floating-point dtype, any device.
    ///
    /// Greedy choice finds the id on the device and reads back nothing else, so it does not look for NaN; every other
    /// choice reads the logits once, as f32.
    ///
    /// # Errors
    /// If `logits` has another shape or no element; except when greedy, if a logit is NaN or `+inf`, or all are `-inf`;
    /// if `k` is 0 or the temperature not a finite number.
    pub fn sample(&mut self, logits: &Tensor) -> Result<u32> {
        self.sample_f(logits, |_| {})
    }

    /// As [`LogitsProcessor::sample`], with a chance for `f` to change the probabilities before top-k and top-p are
    /// applied. They need not sum to 1 afterwards. `f` is not called where no probabilities are computed: with
    /// [`Sampling::ArgMax`], a temperature of 0, and [`Sampling::GumbelSoftmax`].
    ///
    /// # Errors
    /// As [`LogitsProcessor::sample`], and if `f` leaves a negative or NaN probability, or only zeros.
    pub fn sample_f(&mut self, logits: &Tensor, f: impl FnOnce(&mut [f32])) -> Result<u32> {
        check_shape(logits)?;
        let Some(temperature) = self.sampling.temperature() else {
            return logits.argmax(D::Minus1)?.to_scalar::<u32>();
        };
        if !temperature.is_finite() {
            bail!("sampling: temperature {temperature} is not a finite number")
        }
        if let Sampling::TopK { k: 0, .. } | Sampling::TopKThenTopP { k: 0, .. } = self.sampling {
            bail!("sampling: top-k with k = 0 leaves no token, k has to be at least 1")
        }
        let (logits, max) = checked_logits(logits)?;
        if let Sampling::GumbelSoftmax { .. } = self.sampling {
            return Ok(self.gumbel_argmax(&logits, temperature));
        }
        let mut probs = softmax(&logits, max, temperature);
        f(&mut probs);
        match self.sampling {
            Sampling::TopK { k, .. } => keep_top_k(&mut probs, k),
            Sampling::TopP { p, .. } => keep_top_p(&mut probs, p),
            Sampling::TopKThenTopP { k, p, .. } => {
                keep_top_k(&mut probs, k);
                keep_top_p(&mut probs, p);
            }
            Sampling::ArgMax | Sampling::All { .. } | Sampling::GumbelSoftmax { .. } => {}
        }
        self.draw(&probs)
    }

    fn draw(&mut self, probs: &[f32]) -> Result<u32> {
        let distribution = WeightedIndex::new(probs)
            .map_err(|e| Error::msg(format!("sampling: no token can be drawn: {e}")))?;
        Ok(distribution.sample(&mut self.rng) as u32)
    }

    fn gumbel_argmax(&mut self, logits: &[f32], temperature: f64) -> u32 {
        let mut best = (0, f64::NEG_INFINITY);
        for (id, &logit) in logits.iter().enumerate() {
            // f64: in f32 the noise's upper tail ends at 17 and the rarest tokens would never be drawn.
            let uniform: f64 = self.rng.random();
            let noisy = f64::from(logit) - temperature * (-uniform.ln()).ln();
            if noisy > best.1 {
                best = (id, noisy);
            }
        }
        best.0 as u32
    }
}

/// The logits on the host as f32, and the highest of them.
fn checked_logits(logits: &Tensor) -> Result<(Vec<f32>, f32)> {
    let logits = logits.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    let unusable = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if let Some(id) = logits.iter().position(unusable) {
        let count = logits.iter().filter(|logit| unusable(logit)).count();
        bail!(
            "sampling: {count} of {} logits are NaN or +inf, the first is {} at token {id}; the model's arithmetic \
             overflowed or its weights are damaged",
            logits.len(),
            logits[id]
        )
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        bail!(
            "sampling: all {} logits are -inf, no token is allowed",
            logits.len()
        )
    }
    Ok((logits, max))
}

fn softmax(logits: &[f32], max: f32, temperature: f64) -> Vec<f32> {
    let inverse = (1. / temperature) as f32;
    let mut probs: Vec<f32> = logits
        .iter()
        .map(|logit| ((logit - max) * inverse).exp())
        .collect();
    // At least 1, the term of the highest logit.
    let sum: f64 = probs.iter().map(|&p| f64::from(p)).sum();
    let scale = (1. / sum) as f32;
    probs.iter_mut().for_each(|p| *p *= scale);
    probs
}

/// Most probable first, equal ones by id: which tokens stay must not depend on how a sort breaks ties.
fn by_probability(probs: &[f32]) -> impl Fn(&u32, &u32) -> Ordering + '_ {
    |&a, &b| {
        probs[b as usize]
            .total_cmp(&probs[a as usize])
            .then(a.cmp(&b))
    }
}

/// Sets all but the `k` highest probabilities to 0; `k` is at least 1.
fn keep_top_k(probs: &mut [f32], k: usize) {
    if k >= probs.len() {
        return;
    }
    let mut ids: Vec<u32> = (0..probs.len() as u32).collect();
    let (_, _, rest) = ids.select_nth_unstable_by(k - 1, by_probability(probs));
    for &id in rest.iter() {
        probs[id as usize] = 0.;
    }
}

/// Sets all probabilities to 0 but the highest ones that together reach `p`.
fn keep_top_p(probs: &mut [f32], p: f64) {
    if !(p > 0. && p < 1.) {
        return;
    }
    let total: f64 = probs.iter().map(|&p| f64::from(p)).sum();
    // All tokens below this sum to less than `total - p`: they cannot be among those kept and need no sorting, which
    // leaves a handful out of a vocabulary of 100,000.
    let cutoff = (total - p) / probs.len() as f64;
    let mut ids: Vec<u32> = (0..probs.len() as u32)
        .filter(|&id| f64::from(probs[id as usize]) >= cutoff)
        .collect();
    ids.sort_unstable_by(by_probability(probs));
    let mut sum = 0.;
    let kept = ids
        .iter()
        .position(|&id| {
            sum += f64::from(probs[id as usize]);
            sum >= p
        })
        .map_or(ids.len(), |last| last + 1);
    let mut nucleus = vec![0f32; probs.len()];
    for &id in &ids[..kept] {
        nucleus[id as usize] = probs[id as usize];
    }
    probs.copy_from_slice(&nucleus);
}
