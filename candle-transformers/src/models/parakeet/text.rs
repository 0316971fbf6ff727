//! The text of a sound: the most probable token of each vector, without repetitions and blanks.

use candle_core::{bail, Device, Result, Tensor};

use super::{features, Parakeet, FAMILY};
use crate::blocks::at_once;
use crate::models::reading::Reading;

/// Shorter sounds are followed by silence: 0.1 seconds, ten frames.
const SHORTEST: usize = 1600;

/// The text of the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Text {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The mean log-probability of what each vector was taken for, blanks too.
    pub avg_logprob: f64,
}

impl Parakeet {
    /// The text of `samples` at 16 kHz, from -1 to 1, mono.
    ///
    /// # Errors
    /// There is a sample that is not a number, the weights are damaged, or the device fails.
    pub fn transcribe(&self, samples: &[f32]) -> Result<Text> {
        at_once(self.write(samples, Reading::Blocking))
    }

    /// As [`transcribe`](Self::transcribe), without blocking the thread while the device works: the form for browsers.
    ///
    /// # Errors
    /// As [`transcribe`](Self::transcribe).
    pub async fn transcribe_async(&self, samples: &[f32]) -> Result<Text> {
        self.write(samples, Reading::Async).await
    }

    async fn write(&self, samples: &[f32], reading: Reading) -> Result<Text> {
        if let Some(bad) = samples.iter().position(|sample| !sample.is_finite()) {
            bail!(
                "{FAMILY}: sample {bad} is {}; samples are from -1 to 1",
                samples[bad]
            )
        }
        let mut padded = samples.to_vec();
        padded.resize(samples.len().max(SHORTEST), 0.);
        let values = features(&padded, self.bands);
        let shape = (1, values.len() / self.bands, self.bands);
        let features = Tensor::from_vec(values, shape, &Device::Cpu)?;
        let logits = self.forward(&features)?.squeeze(0)?;
        self.collapsed(&reading.matrix(&logits).await?)
    }

    /// The text of rows of logits.
    fn collapsed(&self, rows: &[Vec<f32>]) -> Result<Text> {
        let mut text = Text::default();
        let mut before = self.blank;
        for row in rows {
            let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
            let Some(best) = best.filter(|_| row.iter().all(|logit| logit.is_finite())) else {
                bail!("{FAMILY}: the logits are not finite; the weights may be damaged")
            };
            let others = row.iter().map(|logit| f64::from(logit - row[best]).exp());
            text.avg_logprob -= others.sum::<f64>().ln() / rows.len() as f64;
            let token = best as u32;
            if token != self.blank && token != before {
                text.tokens.push(token);
            }
            before = token;
        }
        Ok(text)
    }
}
