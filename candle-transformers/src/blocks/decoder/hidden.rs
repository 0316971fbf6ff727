//! The stream after the last layer, and its logits.

use candle_core::{bail, Result, Tensor};

use super::Decoder;
use crate::blocks::Residual;

/// The stream after the last layer.
#[derive(Debug, Clone)]
pub struct Hidden<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) xs: Residual,
}

impl Hidden<'_> {
    /// The stream as the last layer leaves it, `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn stream(self) -> Result<Tensor> {
        Ok(self.xs.normed(None)?.1)
    }

    /// The stream after the final norm, `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn normed(self) -> Result<Tensor> {
        Ok(self.xs.normed(Some(&self.decoder.norm))?.1)
    }

    /// The logits of every position, `(b, t, vocab)`, in the model's dtype.
    ///
    /// # Errors
    /// If the model has no output layer.
    pub fn logits(self) -> Result<Tensor> {
        let decoder = self.decoder;
        let Some(head) = &decoder.head else {
            bail!("{}: the model has no output layer", decoder.spec.family)
        };
        let (_, mut logits) = self.xs.project(Some(&decoder.norm), head)?;
        if let Some(group) = &decoder.logits_group {
            logits = group.all_gather(&logits, logits.rank() - 1)?;
        }
        if let Some(scale) = decoder.spec.logit_scale {
            logits = (logits * scale)?;
        }
        match decoder.spec.logit_softcap {
            Some(cap) => (logits / cap)?.tanh()? * cap,
            None => Ok(logits),
        }
    }

    /// The tokens of these numbers, `(n)` in u32, counted row by row: `(1, n, hidden_size)`.
    ///
    /// # Errors
    /// If there is one that is not in the stream.
    pub fn of_tokens(self, tokens: &Tensor) -> Result<Self> {
        let xs = self.xs.of_tokens(tokens)?;
        Ok(Self { xs, ..self })
    }

    /// The last `count` positions.
    pub(super) fn of_last(self, count: usize) -> Result<Self> {
        let xs = self.xs.last_positions(count)?;
        Ok(Self { xs, ..self })
    }

    /// The logits of the last position, `(b, 1, vocab)`, in the model's dtype.
    ///
    /// # Errors
    /// If the device fails.
    pub fn last_logits(self) -> Result<Tensor> {
        // The norm goes row by row: only the last one is needed.
        let xs = self.xs.last_position()?;
        Self { xs, ..self }.logits()
    }
}
