//! Steps that do not wait for each other's ids.

use candle_core::{bail, PendingVec1, Result, Tensor, D};
use candle_nn::sampling::{draw, Draw};

/// The next token, chosen on the logits' device, while its id may still be in transit to the host.
///
/// The model's next step needs the id on the device alone. If that step is queued before the host waits for the id, the device continues
/// without a pause: a generated token does not wait for a readback and the recording of the next step. If the id ends the text, the extra
/// step was wasted.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use candle_transformers::generation::NextToken;
/// # fn main() -> Result<()> {
/// // A model of 4 tokens in which each is followed by the next one.
/// let next = Tensor::new(&[[0f32, 9., 0., 0.], [0., 0., 9., 0.], [0., 0., 0., 9.], [9., 0., 0., 0.]], &Device::Cpu)?;
/// let forward = |ids: &Tensor| next.index_select(&ids.flatten_all()?, 0)?.get(0);
/// let mut token = NextToken::choose(&forward(&Tensor::new(&[[0u32]], &Device::Cpu)?)?)?;
/// let mut text = vec![];
/// while text.len() < 3 {
///     let following = NextToken::choose(&forward(token.ids())?)?;
///     text.push(std::mem::replace(&mut token, following).wait()?);
/// }
/// assert_eq!(text, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
pub struct NextToken {
    ids: Tensor,
    read: PendingVec1<u32>,
}

impl NextToken {
    /// Chooses the token with the highest of `logits`, `(vocab)` of any floating-point dtype on any device. Does not wait.
    ///
    /// # Errors
    /// If `logits` has another shape or no element.
    pub fn choose(logits: &Tensor) -> Result<Self> {
        check_shape(logits)?;
        Self::of(logits.argmax_keepdim(D::Minus1)?.unsqueeze(0)?)
    }

    /// Draws from `logits`, `(vocab)` of any floating-point dtype on any device. Does not wait.
    ///
    /// # Errors
    /// If `logits` has another shape or no element, or the settings name no distribution. Unusable logits are an error of
    /// [`wait`](Self::wait).
    pub fn draw(logits: &Tensor, with: &Draw) -> Result<Self> {
        check_shape(logits)?;
        if with.is_greedy() {
            Self::choose(logits)
        } else {
            Self::drawn(&draw(&logits.unsqueeze(0)?, &[*with])?)
        }
    }

    /// The token of what [`draw`] gives for one row, `(2, 1)`.
    fn drawn(both: &Tensor) -> Result<Self> {
        Ok(Self {
            ids: both.narrow(0, 0, 1)?,
            read: both.flatten_all()?.begin_to_vec1()?,
        })
    }

    /// The token with the id in `ids`, `(1, 1)`, of what [`draw`] gives for one row.
    #[cfg(feature = "cuda")]
    pub(crate) fn drawn_into(ids: &Tensor, both: &Tensor) -> Result<Self> {
        Ok(Self {
            ids: ids.clone(),
            ..Self::drawn(both)?
        })
    }

    /// The token with this id, `(1, 1)` u32.
    pub(crate) fn of(ids: Tensor) -> Result<Self> {
        let read = ids.flatten_all()?.begin_to_vec1()?;
        Ok(Self { ids, read })
    }

    /// The id as a model takes it: `(1, 1)`, u32, on the logits' device.
    pub fn ids(&self) -> &Tensor {
        &self.ids
    }

    /// The id, for which this thread waits.
    ///
    /// # Errors
    /// What went wrong on the device until the choice.
    pub fn wait(self) -> Result<u32> {
        only(self.read.wait()?)
    }

    /// The id, without blocking the thread: the form for browsers.
    ///
    /// # Errors
    /// What went wrong on the device until the choice.
    pub async fn finish(self) -> Result<u32> {
        only(self.read.finish().await?)
    }
}

/// Refuses logits of anything but one position of one sequence.
pub(super) fn check_shape(logits: &Tensor) -> Result<()> {
    match logits.dims() {
        [0] => bail!("sampling: no logits to sample from"),
        [_] => Ok(()),
        dims => bail!(
            "sampling: the logits have shape {dims:?}; expected (vocab), one position of one sequence"
        ),
    }
}

fn only(read: Vec<u32>) -> Result<u32> {
    match read.as_slice() {
        [id] | [id, 0] => Ok(*id),
        [_, unusable] => bail!(
            "sampling: no token can be drawn: {unusable} logits are NaN or +inf, or all are -inf; the model's arithmetic overflowed or its \
             weights are damaged"
        ),
        read => bail!("sampling: {} ids instead of one", read.len()),
    }
}
