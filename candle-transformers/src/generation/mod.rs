//! From logits to the next token.
//!
//! Top-p is nucleus sampling, [arXiv 1904.09751](https://arxiv.org/abs/1904.09751); the Gumbel trick of drawing with an argmax is described
//! in [arXiv 1611.01144](https://arxiv.org/abs/1611.01144).

mod next_token;

use candle_core::{bail, DType, Device, Error, Result, Tensor, D};
use rand::distr::{Distribution, Uniform};
use rand::{rngs::StdRng, Rng, SeedableRng};

pub use candle_nn::sampling::Draw;
use next_token::check_shape;
pub use next_token::NextToken;

/// Below this the distribution is a single spike, and dividing by it would only lose digits: greedy instead.
const MIN_TEMPERATURE: f64 = 1e-7;

/// The method by which [`LogitsProcessor`] chooses a token.
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
        /// Number of tokens to keep; at least 1.
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
        /// Number of tokens to keep first; at least 1.
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

/// Chooses tokens from logits; the same seed, settings and logits give the same tokens, with f32 logits those that Candle 0.11.1 chooses
/// (but for [`Sampling::GumbelSoftmax`], whose noise Candle draws without the seed).
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
    /// A processor with the given sampling method; `seed` seeds its random numbers.
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
        match self.sampling.temperature() {
            None => logits.argmax(D::Minus1)?.to_scalar::<u32>(),
            Some(_) => self.sample_vec(logits.to_dtype(DType::F32)?.to_vec1()?, f),
        }
    }

    /// As [`LogitsProcessor::sample_f`], of logits that are on the host already, whose memory the probabilities take.
    ///
    /// # Errors
    /// As [`LogitsProcessor::sample_f`].
    pub fn sample_vec(&mut self, logits: Vec<f32>, f: impl FnOnce(&mut [f32])) -> Result<u32> {
        let Some(temperature) = self.sampling.temperature() else {
            let len = logits.len();
            return self.sample(&Tensor::from_vec(logits, len, &Device::Cpu)?);
        };
        if !temperature.is_finite() {
            bail!("sampling: temperature {temperature} is not a finite number")
        }
        if let Sampling::TopK { k: 0, .. } | Sampling::TopKThenTopP { k: 0, .. } = self.sampling {
            bail!("sampling: top-k with k = 0 leaves no token; k must be at least 1")
        }
        let max = check_logits(&logits)?;
        if let Sampling::GumbelSoftmax { .. } = self.sampling {
            return Ok(self.gumbel_argmax(&logits, temperature));
        }
        let mut probs = logits;
        softmax(&mut probs, max, temperature);
        f(&mut probs);
        match self.sampling {
            Sampling::TopK { k, .. } if k < probs.len() => {
                let (ids, probs) = top_k(&probs, k);
                self.draw(&probs).map(|index| ids[index] as u32)
            }
            Sampling::TopKThenTopP { k, p, .. } if k < probs.len() => {
                let (ids, mut probs) = top_k(&probs, k);
                let sum: f32 = probs.iter().sum();
                if (p as f32) < sum {
                    keep_top_p(&mut probs, p);
                }
                self.draw(&probs).map(|index| ids[index] as u32)
            }
            Sampling::TopP { p, .. } | Sampling::TopKThenTopP { p, .. } => {
                keep_top_p(&mut probs, p);
                self.draw(&probs).map(|index| index as u32)
            }
            _ => self.draw(&probs).map(|index| index as u32),
        }
    }

    /// An index into `probs`, by its share of their sum: one random number for each draw.
    ///
    /// The index is that of rand's `WeightedIndex`, which would keep all sums on the way: a fresh half megabyte for each token of a
    /// vocabulary of 128,000.
    fn draw(&mut self, probs: &[f32]) -> Result<usize> {
        let unusable = |what: &str| Error::msg(format!("sampling: no token can be drawn: {what}"));
        if !probs.iter().all(|p| *p >= 0.) {
            return Err(unusable("a probability is negative or NaN"));
        }
        let total = probs.iter().copied().reduce(|sum, p| sum + p);
        let total = total.filter(|total| *total > 0.);
        let total = total.ok_or_else(|| unusable("all probabilities are 0"))?;
        let uniform = Uniform::new(0., total).map_err(|err| unusable(&err.to_string()))?;
        let chosen = uniform.sample(&mut self.rng);
        let mut sum = 0.;
        let reaches = |p: &f32| {
            sum += p;
            sum > chosen
        };
        let last = probs.len() - 1;
        Ok(probs[..last].iter().position(reaches).unwrap_or(last))
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

/// The highest logit. All logits have to be usable.
fn check_logits(logits: &[f32]) -> Result<f32> {
    let unusable = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if let Some(id) = logits.iter().position(unusable) {
        let count = logits.iter().filter(|logit| unusable(logit)).count();
        bail!(
            "sampling: {count} of {} logits are NaN or +inf, first {} at token {id}; the model's arithmetic \
             overflowed or its weights are damaged",
            logits.len(),
            logits[id]
        )
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        bail!(
            "sampling: all {} logits are -inf; no token is allowed",
            logits.len()
        )
    }
    Ok(max)
}

/// Makes probabilities of the logits. In f32 from end to end, in the order in which Candle computes it, so that a random number meets the
/// same sums.
fn softmax(logits: &mut [f32], max: f32, temperature: f64) {
    let inverse = (1. / temperature) as f32;
    let max = max * inverse;
    for logit in &mut *logits {
        *logit = (*logit * inverse - max).exp();
    }
    // At least 1, the term of the highest logit.
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|p| *p /= sum);
}

/// The ids of the `k` highest of more than `k` probabilities, and these.
///
/// They come in the order in which the standard library's selection leaves them, which also settles which of equal ones stay: a draw
/// goes through them in this order, and Candle's goes through the same one.
fn top_k(probs: &[f32], k: usize) -> (Vec<usize>, Vec<f32>) {
    let mut ids: Vec<usize> = (0..probs.len()).collect();
    ids.select_nth_unstable_by(k, |&a, &b| probs[b].total_cmp(&probs[a]));
    ids.truncate(k);
    let kept = ids.iter().map(|&id| probs[id]).collect();
    (ids, kept)
}

/// Sets all probabilities to 0 but the highest ones that together reach `p`; of equal ones the first stay.
fn keep_top_p(probs: &mut [f32], p: f64) {
    if !(p > 0. && p < 1.) {
        return;
    }
    let total: f64 = probs.iter().map(|&p| f64::from(p)).sum();
    // All below this sum to less than `total - p`: but for rounding they are not among those kept and need no sorting, which leaves
    // a handful out of a vocabulary of 100,000.
    let cutoff = (total - p) / probs.len() as f64;
    let mut nucleus = nucleus(probs, p as f32, |prob| f64::from(prob) >= cutoff);
    if nucleus.is_none() {
        nucleus = self::nucleus(probs, p as f32, |_| true);
    }
    if let Some(ids) = nucleus {
        let mut kept = vec![0f32; probs.len()];
        for id in ids {
            kept[id] = probs[id];
        }
        probs.copy_from_slice(&kept);
    }
}

/// The indices of the fewest, highest probabilities with a sum of at least `p`, among those of `is_candidate`; `None` if the sum of all is
/// less.
fn nucleus(probs: &[f32], p: f32, is_candidate: impl Fn(f32) -> bool) -> Option<Vec<usize>> {
    let mut ids: Vec<usize> = (0..probs.len())
        .filter(|&id| is_candidate(probs[id]))
        .collect();
    ids.sort_unstable_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
    let mut sum = 0f32;
    let last = ids.iter().position(|&id| {
        sum += probs[id];
        sum >= p
    })?;
    ids.truncate(last + 1);
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::distr::weighted::WeightedIndex;

    #[test]
    fn indices_are_those_of_a_weighted_index() {
        let mut rng = StdRng::seed_from_u64(7);
        for len in [1, 2, 3, 100, 5000] {
            let weight = |_| {
                if rng.random_bool(0.3) {
                    0.
                } else {
                    rng.random::<f32>().powi(20)
                }
            };
            let mut weights: Vec<f32> = (0..len).map(weight).collect();
            weights[len / 2] = 0.25;
            let mut processor = LogitsProcessor::new(len as u64, Some(1.), None);
            let mut expected = StdRng::seed_from_u64(len as u64);
            let index = WeightedIndex::new(&weights).unwrap();
            for _ in 0..200 {
                let found = processor.draw(&weights).unwrap();
                assert_eq!(found, index.sample(&mut expected), "{len}");
            }
        }
        let mut processor = LogitsProcessor::new(0, Some(1.), None);
        for bad in [
            &[0f32, 0.][..],
            &[1., -1.],
            &[f32::NAN],
            &[1., f32::NAN],
            &[f32::INFINITY],
        ] {
            assert!(processor.draw(bad).is_err(), "{bad:?}");
        }
    }
}
