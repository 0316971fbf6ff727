//! Ways to run past the context of a model's training, as `rope_scaling` of a checkpoint's configuration names them. The formulas are
//! those of Hugging Face Transformers.

use std::f64::consts::PI;

use candle_core::{bail, Result};
use serde::Deserialize;

use super::{inverse_frequencies, Dynamic, Rotary, RotaryPairs};

/// `rope_scaling` of a `config.json`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct RopeScaling {
    /// `default`, `linear`, `dynamic`, `llama3`, `yarn` or `longrope` (in older files `su`).
    #[serde(alias = "type", default = "unscaled")]
    pub rope_type: String,
    /// Factor by which the context is extended.
    #[serde(default)]
    pub factor: Option<f64>,
    /// Positions seen in training.
    #[serde(default)]
    pub original_max_position_embeddings: Option<usize>,
    /// llama3: frequencies that rotate fewer times than this within the original context are low.
    #[serde(default)]
    pub low_freq_factor: Option<f64>,
    /// llama3: frequencies that rotate more often than this within the original context stay as they are.
    #[serde(default)]
    pub high_freq_factor: Option<f64>,
    /// yarn: as `high_freq_factor`; default: 32.
    #[serde(default)]
    pub beta_fast: Option<f64>,
    /// yarn: as `low_freq_factor`; default: 1.
    #[serde(default)]
    pub beta_slow: Option<f64>,
    /// yarn: of the factor on cosines and sines.
    #[serde(default)]
    pub mscale: Option<f64>,
    /// yarn: of what the factor is divided by.
    #[serde(default)]
    pub mscale_all_dim: Option<f64>,
    /// yarn: whether the ramp begins and ends at whole pairs; default: `true`.
    #[serde(default)]
    pub truncate: Option<bool>,
    /// yarn and longrope: the factor on cosines and sines, where it is not the formula's.
    #[serde(default)]
    pub attention_factor: Option<f64>,
    /// longrope: what frequencies are divided by within the original context.
    #[serde(default)]
    pub short_factor: Option<Vec<f32>>,
    /// longrope: what frequencies are divided by in longer sequences.
    #[serde(default)]
    pub long_factor: Option<Vec<f32>>,
}

fn unscaled() -> String {
    "default".to_string()
}

impl RopeScaling {
    /// No scaling.
    pub fn none() -> Self {
        Self {
            rope_type: "none".to_string(),
            ..Self::default()
        }
    }

    /// The rotation of the first `dim` elements of a head, scaled; `positions` is the model's whole context.
    ///
    /// # Errors
    /// A kind that is not known, or a field that its formula needs and that is missing or does not fit.
    pub fn rotary(
        &self,
        pairs: RotaryPairs,
        theta: f64,
        dim: usize,
        positions: usize,
    ) -> Result<Rotary> {
        let mut rotary = Rotary::new(pairs, theta, dim);
        match self.rope_type.as_str() {
            // Qwen2-VL's: three axes, along which positions of texts are the same.
            "default" | "none" | "mrope" => {}
            "linear" => {
                let factor = self.needed("factor", self.factor)? as f32;
                rotary.frequencies.iter_mut().for_each(|f| *f /= factor);
            }
            "dynamic" => {
                let factor = self.needed("factor", self.factor)?;
                rotary.dynamic = Some(Dynamic {
                    theta,
                    factor,
                    positions,
                });
            }
            "llama3" => self.llama3(&mut rotary)?,
            "yarn" => self.yarn(&mut rotary, theta, dim, positions)?,
            "longrope" | "su" => self.longrope(&mut rotary, theta, dim, positions)?,
            other => bail!(
                "rope_scaling: rope_type {other:?} is not supported; supported: default, linear, dynamic, llama3, yarn and longrope"
            ),
        }
        Ok(rotary)
    }

    fn needed<T>(&self, field: &str, value: Option<T>) -> Result<T> {
        match value {
            Some(value) => Ok(value),
            None => bail!(
                "rope_scaling: {field} is missing; {:?} requires it",
                self.rope_type
            ),
        }
    }

    fn llama3(&self, rotary: &mut Rotary) -> Result<()> {
        let factor = self.needed("factor", self.factor)?;
        let low = self.needed("low_freq_factor", self.low_freq_factor)?;
        let high = self.needed("high_freq_factor", self.high_freq_factor)?;
        let context = self.needed(
            "original_max_position_embeddings",
            self.original_max_position_embeddings,
        )? as f64;
        for frequency in &mut rotary.frequencies {
            let unscaled = f64::from(*frequency);
            let rotations = context * unscaled / (2. * PI);
            let kept = ((rotations - low) / (high - low)).clamp(0., 1.);
            *frequency = (unscaled * kept + unscaled / factor * (1. - kept)) as f32;
        }
        Ok(())
    }

    /// [arXiv 2309.00071](https://arxiv.org/abs/2309.00071).
    fn yarn(&self, rotary: &mut Rotary, theta: f64, dim: usize, positions: usize) -> Result<()> {
        let context = self.original_max_position_embeddings.unwrap_or(positions) as f64;
        let factor = match (self.factor, self.original_max_position_embeddings) {
            (None, Some(_)) => positions as f64 / context,
            (factor, _) => self.needed("factor", factor)?,
        };
        // The pair that rotates `rotations` times within the original context.
        let pair = |rotations: f64| {
            dim as f64 * (context / (rotations * 2. * PI)).ln() / (2. * theta.ln())
        };
        let (mut first, mut last) = (
            pair(self.beta_fast.unwrap_or(32.)),
            pair(self.beta_slow.unwrap_or(1.)),
        );
        if self.truncate.unwrap_or(true) {
            (first, last) = (first.floor(), last.ceil());
        }
        (first, last) = (first.max(0.), last.min(dim as f64 - 1.));
        if first == last {
            last += 0.001;
        }
        for (i, frequency) in rotary.frequencies.iter_mut().enumerate() {
            let unscaled = f64::from(*frequency);
            let divided = ((i as f64 - first) / (last - first)).clamp(0., 1.);
            *frequency = (unscaled / factor * divided + unscaled * (1. - divided)) as f32;
        }
        let scale = |by: f64| {
            if factor > 1. {
                0.1 * by * factor.ln() + 1.
            } else {
                1.
            }
        };
        let formula = match (self.mscale, self.mscale_all_dim) {
            (Some(one), Some(all)) if one != 0. && all != 0. => scale(one) / scale(all),
            _ => scale(1.),
        };
        rotary.factor = self.attention_factor.unwrap_or(formula) as f32;
        Ok(())
    }

    /// [arXiv 2402.13753](https://arxiv.org/abs/2402.13753).
    fn longrope(
        &self,
        rotary: &mut Rotary,
        theta: f64,
        dim: usize,
        positions: usize,
    ) -> Result<()> {
        let context = self.original_max_position_embeddings.unwrap_or(positions);
        let divided = |field: &str, factors: &Option<Vec<f32>>| -> Result<Vec<f32>> {
            let factors = self.needed(field, factors.as_ref())?;
            if factors.len() != dim / 2 {
                bail!(
                    "rope_scaling: {field} has {} values; expected one for each of {} pairs",
                    factors.len(),
                    dim / 2
                )
            }
            let frequencies = inverse_frequencies(theta, dim).into_iter();
            Ok(frequencies.zip(factors).map(|(f, by)| f / by).collect())
        };
        rotary.frequencies = divided("short_factor", &self.short_factor)?;
        rotary.long = Some((context, divided("long_factor", &self.long_factor)?));
        let longer = match self.factor {
            Some(factor) => factor,
            None => positions as f64 / context.max(1) as f64,
        };
        let formula = if longer > 1. {
            (1. + longer.ln() / (context as f64).ln()).sqrt()
        } else {
            1.
        };
        rotary.factor = self.attention_factor.unwrap_or(formula) as f32;
        Ok(())
    }
}
