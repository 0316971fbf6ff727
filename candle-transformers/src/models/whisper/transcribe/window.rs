//! The text of one window of 30 seconds.

use candle_core::{bail, IndexOp, Result, Tensor};
use rand::distr::weighted::WeightedIndex;
use rand::prelude::Distribution;
use rand::rngs::StdRng;

use super::rules::{log_sum_exp, Rules};
use crate::models::reading::Reading;
use crate::models::whisper::parts::TextDecoder;

/// The request for one decoding.
pub(super) struct Question<'a> {
    pub(super) rules: Rules<'a>,
    /// Tokens before the text, with [`Special::start`] at `start`.
    pub(super) prompt: Vec<u32>,
    pub(super) start: usize,
    /// The most tokens of text.
    pub(super) most: usize,
}

/// The result of a decoding.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    /// Text and times, without the end.
    pub(super) tokens: Vec<u32>,
    /// The mean log-probability of the tokens and the end.
    pub(super) mean_log_probability: f64,
    /// The probability that the window has no speech.
    pub(super) no_speech: f64,
}

impl Question<'_> {
    /// Chooses token after token: the most probable at temperature 0, otherwise by chance. `drafts` gets all tokens after each of them.
    pub(super) async fn ask(
        &self,
        decoder: &mut TextDecoder,
        sound: &Tensor,
        temperature: f64,
        rng: &mut StdRng,
        reading: Reading,
        drafts: &mut impl AsyncFnMut(&[u32]) -> Result<()>,
    ) -> Result<Answer> {
        let special = self.rules.special;
        let mut answer = Answer::default();
        let mut sum = 0f64;
        let mut input = self.prompt.clone();
        let mut first = 0;
        while answer.tokens.len() < self.most {
            let ids = Tensor::from_slice(&input, (1, input.len()), sound.device())?;
            let hidden = decoder.forward_next(&ids, sound, first)?;
            if first == 0 {
                if let Some(no_speech) = special.no_speech {
                    let logits = logits_at(decoder, &hidden, self.start, reading).await?;
                    answer.no_speech = probability(&logits, no_speech);
                }
            }
            first += input.len();
            let mut logits = logits_at(decoder, &hidden, input.len() - 1, reading).await?;
            self.rules.apply(&mut logits, &answer.tokens);
            let next = choose(&logits, temperature, rng)?;
            // The probability at temperature 1, given the rules, independently of the temperature used.
            sum += probability(&logits, next).max(f64::MIN_POSITIVE).ln();
            if next == special.end {
                break;
            }
            answer.tokens.push(next);
            drafts(&answer.tokens).await?;
            input = vec![next];
        }
        answer.mean_log_probability = sum / (answer.tokens.len() + 1) as f64;
        Ok(answer)
    }
}

/// The logits after position `at` of a text of one row, (1, seq, d_model).
async fn logits_at(
    decoder: &TextDecoder,
    hidden: &Tensor,
    at: usize,
    reading: Reading,
) -> Result<Vec<f32>> {
    let logits = decoder.final_linear(&hidden.narrow(1, at, 1)?)?;
    reading.vector(&logits.i((0, 0))?).await
}

/// The probability of a token.
pub(super) fn probability(logits: &[f32], token: u32) -> f64 {
    let logit = logits.get(token as usize).copied();
    f64::from(logit.unwrap_or(f32::NEG_INFINITY) - log_sum_exp(logits)).exp()
}

fn choose(logits: &[f32], temperature: f64, rng: &mut StdRng) -> Result<u32> {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let Some(best) = best.filter(|best| logits[*best].is_finite()) else {
        bail!("whisper: no token is allowed, or the logits are not finite; the weights may be damaged")
    };
    if temperature <= 0. {
        return Ok(best as u32);
    }
    let weight = |logit: &f32| (f64::from(logit - logits[best]) / temperature).exp();
    let weights =
        WeightedIndex::new(logits.iter().map(weight)).map_err(candle_core::Error::wrap)?;
    Ok(weights.sample(rng) as u32)
}
