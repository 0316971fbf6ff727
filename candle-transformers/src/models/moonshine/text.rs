//! The text of a sound: the most probable token after each other.

use candle_core::{bail, Device, IndexOp, Result, Tensor};

use super::{Moonshine, FAMILY, MIN_SAMPLES, SAMPLE_RATE};
use crate::blocks::at_once;
use crate::models::reading::Reading;

/// The most tokens of a second of sound, by the models' authors: people do not speak faster, and a text that repeats itself ends there.
pub const TOKENS_PER_SECOND: f64 = 6.5;

/// The text of the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Text {
    /// Tokens without the first and the end.
    pub tokens: Vec<u32>,
    /// The mean log-probability of the tokens and the end.
    pub avg_logprob: f64,
    /// Whether the text ended by itself, not at the limit.
    pub ended: bool,
}

impl Moonshine {
    /// The text of `samples` at 16 kHz, from -1 to 1, mono: at most [`TOKENS_PER_SECOND`] of their length, and no more than the decoder
    /// has positions. The model was trained with up to 30 seconds. Fewer than [`MIN_SAMPLES`] are followed by silence.
    ///
    /// # Errors
    /// `samples` are empty or not all finite, the weights are damaged, or the device fails.
    pub fn transcribe(&mut self, samples: &[f32]) -> Result<Text> {
        self.transcribe_while(samples, |_| Ok(()))
    }

    /// As [`transcribe`](Self::transcribe); `heard` gets all tokens after each of them, and ends the text with an error.
    ///
    /// # Errors
    /// As [`transcribe`](Self::transcribe), or `heard` fails.
    pub fn transcribe_while(
        &mut self,
        samples: &[f32],
        mut heard: impl FnMut(&[u32]) -> Result<()>,
    ) -> Result<Text> {
        let reading = Reading::Blocking;
        at_once(self.write(samples, reading, &mut async |tokens: &[u32]| heard(tokens)))
    }

    /// As [`transcribe_while`](Self::transcribe_while), without blocking the thread while the device works: the form for browsers.
    ///
    /// # Errors
    /// As [`transcribe_while`](Self::transcribe_while).
    pub async fn transcribe_async(
        &mut self,
        samples: &[f32],
        mut heard: impl AsyncFnMut(&[u32]) -> Result<()>,
    ) -> Result<Text> {
        self.write(samples, Reading::Async, &mut heard).await
    }

    async fn write<H: AsyncFnMut(&[u32]) -> Result<()>>(
        &mut self,
        samples: &[f32],
        reading: Reading,
        heard: &mut H,
    ) -> Result<Text> {
        match samples.iter().position(|sample| !sample.is_finite()) {
            Some(bad) => bail!(
                "{FAMILY}: sample {bad} is {}; samples are from -1 to 1",
                samples[bad]
            ),
            None if samples.is_empty() => bail!("{FAMILY}: no samples; at least one is needed"),
            None => {}
        }
        let most = most_tokens(samples.len(), self.config.max_position_embeddings);
        let mut padded = samples.to_vec();
        padded.resize(samples.len().max(MIN_SAMPLES), 0.);
        let len = padded.len();
        let sound = Tensor::from_vec(padded, (1, len), &Device::Cpu)?;
        let encoded = self.encode(&sound)?;
        self.reset_kv_cache();

        let mut text = Text::default();
        let mut sum = 0f64;
        let mut last = self.config.decoder_start_token_id;
        for position in 0..most {
            let ids = Tensor::new(&[[last]], encoded.device())?;
            let logits = self.decode(&ids, &encoded, position)?.i((0, 0))?;
            let logits = reading.vector(&logits).await?;
            let (best, probability) = most_probable(&logits)?;
            sum += probability;
            if best == self.config.eos_token_id {
                text.ended = true;
                break;
            }
            text.tokens.push(best);
            heard(&text.tokens).await?;
            last = best;
        }
        let chosen = text.tokens.len() + usize::from(text.ended);
        text.avg_logprob = sum / chosen.max(1) as f64;
        Ok(text)
    }
}

/// The most tokens that are written of this many samples. The authors count the first token, which is not written; at least one is.
fn most_tokens(samples: usize, positions: usize) -> usize {
    let seconds = samples as f64 / SAMPLE_RATE as f64;
    let most = (seconds * TOKENS_PER_SECOND) as usize;
    most.min(positions).saturating_sub(1).max(1)
}

/// The token with the largest logit, and the logarithm of its probability.
fn most_probable(logits: &[f32]) -> Result<(u32, f64)> {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let Some(best) = best.filter(|_| logits.iter().all(|logit| logit.is_finite())) else {
        bail!("{FAMILY}: the logits are not finite; the weights may be damaged")
    };
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - logits[best]).exp())
        .sum();
    Ok((best as u32, -sum.ln()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        // 65 with the first; the longest text; a word however short the sound is.
        assert_eq!(most_tokens(160_000, 194), 64);
        assert_eq!(most_tokens(30 * 16_000, 194), 193);
        assert_eq!(most_tokens(100, 194), 1);
    }

    #[test]
    fn choices() -> Result<()> {
        let (best, probability) = most_probable(&[0., 3f32.ln(), 0.])?;
        assert_eq!(best, 1);
        assert!((probability - 0.6f64.ln()).abs() < 1e-6, "{probability}");
        for damaged in [&[0., f32::NAN][..], &[f32::INFINITY, 0.], &[]] {
            assert!(most_probable(damaged).is_err(), "{damaged:?}");
        }
        Ok(())
    }
}
