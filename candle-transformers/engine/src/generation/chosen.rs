//! Tokens that the device chose from rows of logits.

use super::Wait;
use crate::error::Doing;
use crate::Result;
use candle_core::{IndexOp, PendingVec1, Tensor, D};
#[cfg(not(target_arch = "wasm32"))]
use candle_nn::sampling::{changed, Changes};
use candle_nn::sampling::{draw, Draw};

const CHOOSING: &str = "choosing the next token";

/// A token of each row, on the device and being copied to the host.
pub(crate) struct Chosen {
    /// `(rows)` in u32, on the device.
    ids: Tensor,
    /// Ids of drawn tokens, followed by the number of unusable logits of each row.
    read: PendingVec1<u32>,
}

impl Chosen {
    /// A token of each row of logits, `(rows, vocab)`, by its row of `draws`, without waiting for them.
    ///
    /// # Errors
    /// Settings that name no distribution, and failures of the device.
    pub(crate) fn begin(logits: &Tensor, draws: &[Draw]) -> Result<Self> {
        let chosen = if draws.iter().all(Draw::is_greedy) {
            logits.argmax(D::Minus1).and_then(|ids| {
                let read = ids.begin_to_vec1()?;
                Ok(Self { ids, read })
            })
        } else {
            draw(logits, draws).and_then(|both| {
                let read = both.flatten_all()?.begin_to_vec1()?;
                let ids = both.i(0)?;
                Ok(Self { ids, read })
            })
        };
        chosen.doing(CHOOSING)
    }

    /// As [`begin`](Self::begin), from logits with changes.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn begin_changed(
        logits: &Tensor,
        draws: &[Draw],
        changes: &[Changes],
    ) -> Result<Self> {
        Self::begin(&changed(logits, changes).doing(CHOOSING)?, draws)
    }

    /// The tokens on the device, `(rows)` in u32.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn ids(&self) -> &Tensor {
        &self.ids
    }

    /// As [`tokens`](Self::tokens), by blocking the thread.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn wait(self) -> Result<Vec<u32>> {
        crate::turn::at_once(self.tokens(Wait::Blocking))
    }

    /// The tokens.
    ///
    /// # Errors
    /// Failures of the device, and logits that do not define a distribution.
    pub(crate) async fn tokens(self, wait: Wait) -> Result<Vec<u32>> {
        let rows = self.ids.elem_count();
        let read = match wait {
            Wait::Blocking => self.read.wait(),
            Wait::Async => self.read.finish().await,
        };
        let mut tokens = read.doing(CHOOSING)?;
        let unusable = tokens.split_off(rows);
        match unusable.iter().position(|count| *count > 0) {
            None => Ok(tokens),
            Some(row) => Err(candle_core::Error::Msg(format!(
                "{} logits of row {row} are NaN or +inf, or all are -inf: the model's arithmetic overflowed or its weights are damaged",
                unusable[row]
            )))
            .doing(CHOOSING),
        }
    }
}
