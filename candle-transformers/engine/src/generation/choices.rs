//! Choices of a model after several tokens that it has seen in one step.

use super::{Chosen, Wait, Writer};
use crate::error::Doing;
use crate::Result;
use candle_core::{Device, IndexOp, Tensor};
use candle_transformers::generation::Draw;

const CHOOSING: &str = "choosing the next token";

/// Choices that the device is computing or copying to the host.
pub(crate) enum Queued {
    Ids(Chosen),
    Logits(Tensor),
}

/// A choice after each of several tokens.
pub(crate) enum Choices {
    /// The tokens themselves, where the choice needs no more than logits.
    Ids(Vec<u32>),
    /// Logits on the host, a row for each.
    Logits(Tensor),
}

impl Queued {
    /// Chooses on the device from `(rows, vocab)`, if the writer's settings allow it and `looks` is false: no caller reads the logits.
    ///
    /// # Errors
    /// Failures of the device.
    pub(crate) fn begin(logits: Tensor, writer: &Writer<'_>, looks: bool) -> Result<Self> {
        let rows = logits.dim(0).doing(CHOOSING)?;
        let draws = (0..rows).map(|row| writer.draw_after(row).filter(|_| !looks));
        Ok(match draws.collect::<Option<Vec<Draw>>>() {
            Some(draws) => Self::Ids(Chosen::begin(&logits, &draws)?),
            None => Self::Logits(logits),
        })
    }

    /// The choices.
    ///
    /// # Errors
    /// Failures of the device, and logits that do not define a distribution.
    pub(crate) async fn read(self, wait: Wait) -> Result<Choices> {
        Ok(match self {
            Self::Ids(chosen) => Choices::Ids(chosen.tokens(wait).await?),
            Self::Logits(logits) if wait == Wait::Blocking || logits.device().is_cpu() => {
                Choices::Logits(logits.to_device(&Device::Cpu).doing(CHOOSING)?)
            }
            Self::Logits(logits) => {
                let shape = logits.shape().clone();
                let flat = logits.flatten_all().doing(CHOOSING)?;
                let read = flat.to_vec1_async::<f32>().await.doing(CHOOSING)?;
                Choices::Logits(Tensor::from_vec(read, shape, &Device::Cpu).doing(CHOOSING)?)
            }
        })
    }
}

/// A choice.
pub(crate) enum Choice {
    /// The token.
    Id(u32),
    /// The logits to choose it from.
    Logits(Vec<f32>),
}

impl Choices {
    /// The choice after token `row`.
    ///
    /// # Errors
    /// The row is out of range.
    pub(crate) fn of(&self, row: usize) -> Result<Choice> {
        Ok(match self {
            Self::Ids(ids) => Choice::Id(ids[row]),
            Self::Logits(rows) => {
                let row = rows.i(row).and_then(|row| row.to_vec1());
                Choice::Logits(row.doing(CHOOSING)?)
            }
        })
    }
}
