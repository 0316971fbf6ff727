//! Tokens drawn by top-k, top-p, min-p and temperature, many rows at once, the same on every device.

use crate::ops::on_devices;
use candle_core::cpu::threads;
use candle_core::fused::{Fused, Operand, DRAW_WORDS};
use candle_core::{bail, CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};

/// The lowest logarithm of a weight, of the greatest weight's, at which a token may be drawn: e⁻⁸⁰ of a share is none.
const LOWEST: f32 = -80.;

/// The settings with which a row's token is drawn. Not in upstream's interface.
///
/// A token's weight is `exp((logit - greatest logit) / temperature)`. A token stays if fewer than `top_k` tokens weigh more, if those that weigh
/// more have less than `top_p` of the sum of all weights, and if its weight is at least `min_p`. Of those that stay, one is drawn with a
/// probability in proportion to its weight. `seed` and `position` name the random numbers: equal logits and settings give the same token, up
/// to the rounding of weights on different devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits; 0 chooses the token with the greatest logit, the first of equal ones.
    pub temperature: f32,
    /// At least 1; `None` keeps all.
    pub top_k: Option<usize>,
    /// A share; 1 and more, and `None`, keep all.
    pub top_p: Option<f32>,
    /// A share of the greatest weight, 0 to 1; `None` keeps all.
    pub min_p: Option<f32>,
    /// Names a text.
    pub seed: u64,
    /// Names a token of the text, by its number for example.
    pub position: u32,
}

impl Draw {
    /// The token with the greatest logit, the first of equal ones.
    pub const GREEDY: Self = Self {
        temperature: 0.,
        top_k: None,
        top_p: None,
        min_p: None,
        seed: 0,
        position: 0,
    };

    /// Whether the token is the one with the greatest logit.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.
    }

    /// Refuses settings that name no distribution.
    ///
    /// # Errors
    /// Names the setting.
    pub fn check(&self) -> Result<()> {
        let Self {
            temperature, top_p, ..
        } = *self;
        // A temperature whose inverse is infinite would make NaN of the greatest logit's weight.
        let is_warm = temperature.is_finite() && temperature.recip().is_finite();
        if temperature != 0. && !(is_warm && temperature > 0.) {
            bail!("draw: temperature {temperature}; expected 0 or a finite number above, of which the inverse is finite")
        }
        if self.top_k == Some(0) {
            bail!("draw: top_k 0 leaves no token; expected at least 1")
        }
        if top_p.is_some_and(|p| p.is_nan() || p <= 0.) {
            bail!("draw: top_p {top_p:?}; expected a share above 0")
        }
        if self.min_p.is_some_and(|p| !(0. ..=1.).contains(&p)) {
            bail!("draw: min_p {:?}; expected a share from 0 to 1", self.min_p)
        }
        Ok(())
    }

    /// The numbers that kernels read: a row of what [`draw_with`] takes. The position is the third.
    pub fn words(&self) -> [u32; DRAW_WORDS] {
        let inverse = match self.temperature {
            0. => 1.,
            temperature => temperature.recip(),
        };
        [
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.position,
            u32::from(self.temperature == 0.),
            // More than a vocabulary has, and a number of f32.
            self.top_k.map_or(1 << 24, |k| k.min(1 << 24) as u32),
            self.top_p.unwrap_or(1.).to_bits(),
            self.min_p.unwrap_or(0.).to_bits(),
            inverse.to_bits(),
        ]
    }
}

/// A token of each row of `logits`, `(rows, vocab)` of any float dtype, by its row of `draws`, without waiting for the device: `(2, rows)` in
/// u32 there. The first row has the tokens; the second says how many logits are unusable, which is 0 if all is well: NaN or +inf, or all
/// of them if each is -inf. The token is 0 then. Not in upstream's interface.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_nn::sampling::{draw, Draw};
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::new(&[[0f32, 3., 1.], [2., 2.5, 9.]], &Device::Cpu)?;
/// let greedy = Draw { temperature: 0., top_k: None, top_p: None, min_p: None, seed: 0, position: 0 };
/// let top_2 = Draw { temperature: 0.7, top_k: Some(2), ..greedy };
/// let drawn = draw(&logits, &[top_2, greedy])?.to_vec2::<u32>()?;
/// assert!([1, 2].contains(&drawn[0][0]));
/// assert_eq!((drawn[0][1], &drawn[1]), (2, &vec![0, 0]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Other shapes, zero tokens, 2²⁴ tokens or more, a dtype that is not a float, or settings that do not define a distribution.
pub fn draw(logits: &Tensor, draws: &[Draw]) -> Result<Tensor> {
    let (rows, vocab) = logits.dims2()?;
    if rows != draws.len() || vocab == 0 || vocab >= 1 << 24 || !logits.dtype().is_float() {
        bail!(
            "draw: logits of {:?} {:?} for {} settings; expected (rows, vocab) of a float dtype, a row for each, with 1 to 2^24 - 1 tokens",
            logits.dtype(),
            logits.shape(),
            draws.len()
        )
    }
    draws.iter().try_for_each(Draw::check)?;
    if rows == 0 {
        return Tensor::zeros((2, 0), DType::U32, logits.device());
    }
    let words: Vec<u32> = draws.iter().flat_map(Draw::words).collect();
    let words = Tensor::from_vec(words, (rows, DRAW_WORDS), logits.device())?;
    draw_with(logits, &words)
}

/// As [`draw`], with settings that are on the device already, `(rows, 8)` u32: [`Draw::words`] of each row. They are not checked. Not in
/// upstream's interface.
///
/// # Errors
/// As [`draw`], but for settings.
pub fn draw_with(logits: &Tensor, words: &Tensor) -> Result<Tensor> {
    let logits = logits.to_dtype(DType::F32)?.contiguous()?;
    logits.apply_op2_no_bwd(&words.contiguous()?, &DrawRows)
}

/// The token that [`draw`] gives for a row of logits that is on the host. Not in upstream's interface.
///
/// # Errors
/// No logits, settings that name no distribution, or unusable logits.
pub fn draw_row(logits: &[f32], draw: &Draw) -> Result<u32> {
    draw.check()?;
    let (token, unusable) = row(logits, &draw.words());
    if logits.is_empty() || unusable > 0 {
        bail!(
            "draw: no token can be drawn: {unusable} of {} logits are NaN or +inf, or all are -inf; the model's arithmetic overflowed, its \
             weights are damaged, or nothing is allowed",
            logits.len()
        )
    }
    Ok(token)
}

struct DrawRows;

impl CustomOp2 for DrawRows {
    fn name(&self) -> &'static str {
        "draw"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_l: &Layout,
        draws: &CpuStorage,
        draws_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, vocab) = logits_l.shape().dims2()?;
        let logits = &logits.as_slice::<f32>()?[logits_l.start_offset()..];
        let draws = &draws.as_slice::<u32>()?[draws_l.start_offset()..];
        let (draws, _) = draws.as_chunks::<DRAW_WORDS>();
        if draws.len() < rows || vocab == 0 {
            bail!(
                "draw: {} settings for {rows} rows of {vocab} logits",
                draws.len()
            )
        }
        let mut drawn = vec![[0; 2]; rows];
        threads::chunks_mut(&mut drawn, 1, |at, drawn| {
            let (token, unusable) = row(&logits[at * vocab..][..vocab], &draws[at]);
            drawn[0] = [token, unusable];
        });
        let tokens = [0, 1].iter().flat_map(|at| drawn.iter().map(|it| it[*at]));
        let tokens: Vec<u32> = tokens.collect();
        Ok((CpuStorage::U32(tokens), Shape::from((2, rows))))
    }

    on_devices!(logits logits_l, draws draws_l);
}

impl DrawRows {
    fn on_device<S: Fused>(&self, [logits, draws]: [Operand<'_, S>; 2]) -> Result<(S, Shape)> {
        let rows = logits.1.dims()[0];
        Ok((S::draw(logits, draws)?, Shape::from((2, rows))))
    }
}

/// A row's token, and how many of its logits are unusable.
fn row(logits: &[f32], words: &[u32; DRAW_WORDS]) -> (u32, u32) {
    let [low_seed, high_seed, position, greedy, top_k, top_p, min_p, inverse] = *words;
    let [top_p, min_p, inverse] = [top_p, min_p, inverse].map(f32::from_bits);
    let is_unusable = |logit: &&f32| logit.is_nan() || **logit == f32::INFINITY;
    let unusable = logits.iter().filter(is_unusable).count();
    if unusable > 0 {
        return (0, unusable as u32);
    }
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if most == f32::NEG_INFINITY {
        return (0, logits.len() as u32);
    }
    if greedy != 0 {
        let first = logits.iter().position(|logit| *logit == most);
        return (first.unwrap_or(0) as u32, 0);
    }
    let z = |logit: f32| (logit - most) * inverse;
    let bound = if (top_k as usize) < logits.len() || top_p < 1. {
        let z = logits.iter().map(|logit| z(*logit));
        least_kept(z.filter(|z| *z > LOWEST).collect(), top_k as usize, top_p)
    } else {
        LOWEST.next_up()
    };
    let mut best = (f32::INFINITY, 0);
    for (group, logits) in logits.chunks(4).enumerate() {
        if logits.iter().all(|logit| z(*logit) < bound) {
            continue;
        }
        let bits = philox([group as u32, position], [low_seed, high_seed]);
        for (at, (logit, bits)) in logits.iter().zip(bits).enumerate() {
            let z = z(*logit);
            let weight = z.exp();
            if z >= bound && weight >= min_p {
                let score = exponential(bits) / weight;
                if score < best.0 {
                    best = (score, 4 * group + at);
                }
            }
        }
    }
    (best.1 as u32, 0)
}

/// The least of `z` that top-k and top-p keep. The greatest is 0.
fn least_kept(mut z: Vec<f32>, top_k: usize, top_p: f32) -> f32 {
    let sum: f64 = z.iter().map(|z| f64::from(z.exp())).sum();
    let wanted = f64::from(top_p) * sum;
    if top_p < 1. {
        // All that weigh less than this together weigh less than what top-p leaves out: they need no sorting, which leaves a handful out of
        // a vocabulary of 100,000.
        let needless = ((sum - wanted) / z.len() as f64 * 0.99) as f32;
        z.retain(|z| z.exp() >= needless);
    }
    let descending = |a: &f32, b: &f32| b.total_cmp(a);
    if top_k < z.len() {
        let (_, last, _) = z.select_nth_unstable_by(top_k - 1, descending);
        let last = *last;
        z.retain(|z| *z >= last);
    }
    if top_p >= 1. {
        return z.into_iter().fold(0., f32::min);
    }
    z.sort_unstable_by(descending);
    let (mut heavier, mut least) = (0f64, 0f32);
    for equal in z.chunk_by(|a, b| a == b) {
        if heavier >= wanted {
            break;
        }
        least = equal[0];
        heavier += equal.len() as f64 * f64::from(least.exp());
    }
    least
}

/// From an exponential distribution: `-ln(1 - u)`, exact where `u` is small, and never infinite.
fn exponential(bits: u32) -> f32 {
    let u = (bits as f32 + 0.5) * f32::EPSILON / 512.;
    if u < 0.01 {
        u * (1. + u * (0.5 + u * (1. / 3. + u * 0.25)))
    } else {
        -(1. - u).max(1e-9).ln()
    }
}

/// Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
fn philox([x, y]: [u32; 2], seed: [u32; 2]) -> [u32; 4] {
    let wide = |a: u32, b: u32| u64::from(a) * u64::from(b);
    let mut counter = [x, y, 0, 0];
    let mut key = seed;
    for _ in 0..10 {
        let (a, b) = (wide(0xd251_1f53, counter[0]), wide(0xcd9e_8d57, counter[2]));
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9e37_79b9),
            key[1].wrapping_add(0xbb67_ae85),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first words of Random123's known answers for philox4x32-10 (`kat_vectors`).
    #[test]
    fn philox_as_published() {
        let zero = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(philox([0, 0], [0, 0]), zero);
    }

    /// The least numbers decide a draw. The greatest ones, which one word in 30 million gives, are only large.
    #[test]
    fn small_numbers_are_precise_and_none_is_infinite() {
        for bits in [0, 1, 77, 42_000_000, 43_000_000, 1 << 31, 0xffff_0000] {
            let u = (f64::from(bits) + 0.5) / 4_294_967_296.;
            let exact = -(-u).ln_1p();
            let error = (f64::from(exponential(bits)) - exact).abs() / exact;
            assert!(error < 1e-5, "{bits}: {error}");
        }
        assert!((16. ..30.).contains(&exponential(u32::MAX)));
    }
}
