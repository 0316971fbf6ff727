//! Logits changed before a token is drawn: biases, penalties, and tokens that are not allowed.

use candle_core::{bail, DType, Result, Tensor};

/// One token's change: `offset` is added to the logit, and the sum is divided by `penalty`, or multiplied with it if it is below 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The token.
    pub token: u32,
    /// Added first; 0 adds nothing.
    pub offset: f32,
    /// Above 1 the token becomes less likely; 1 leaves it.
    pub penalty: f32,
}

impl Change {
    fn of(&self, logit: f32) -> f32 {
        let sum = logit + self.offset;
        if sum >= 0. {
            sum / self.penalty
        } else {
            sum * self.penalty
        }
    }
}

/// Changes of a row of logits. Not in upstream's interface.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Logits that change, each token once. Tokens beyond the row are ignored.
    pub tokens: Vec<Change>,
    /// Whether each token may be drawn, as 1 or 0; `None` allows all. The logits of the others become -inf.
    pub allowed: Option<Vec<u8>>,
}

impl Changes {
    /// Changes a row that is on the host.
    pub fn apply(&self, logits: &mut [f32]) {
        for change in &self.tokens {
            if let Some(logit) = logits.get_mut(change.token as usize) {
                *logit = change.of(*logit);
            }
        }
        if let Some(allowed) = &self.allowed {
            for (logit, allowed) in logits.iter_mut().zip(allowed) {
                if *allowed == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// `logits`, `(rows, vocab)` of any float dtype, with each row changed by its own of `rows`, in f32 on the same device. Does not wait for the
/// device. Not in upstream's interface.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_nn::sampling::{changed, Change, Changes};
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::new(&[[4f32, -1., 2.], [0., 1., 2.]], &Device::Cpu)?;
/// let penalised = Changes {
///     tokens: vec![Change { token: 0, offset: 0., penalty: 2. }, Change { token: 1, offset: -1., penalty: 2. }],
///     allowed: None,
/// };
/// let only_last = Changes { allowed: Some(vec![0, 0, 1]), ..Changes::default() };
/// let rows = changed(&logits, &[penalised, only_last])?.to_vec2::<f32>()?;
/// assert_eq!(rows[0], [2., -4., 2.]);
/// assert_eq!(rows[1], [f32::NEG_INFINITY, f32::NEG_INFINITY, 2.]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Another shape, a dtype that is not a float, a number of `rows` that differs, or an `allowed` of another length than `vocab`.
pub fn changed(logits: &Tensor, rows: &[Changes]) -> Result<Tensor> {
    let (count, vocab) = logits.dims2()?;
    let is_short = |row: &Changes| row.allowed.as_ref().is_some_and(|it| it.len() != vocab);
    if count != rows.len() || !logits.dtype().is_float() || rows.iter().any(is_short) {
        bail!(
            "changed: logits of {:?} {:?} for {} rows of changes; expected (rows, vocab) of a float dtype, changes for each row, and as many \
             numbers of `allowed` as tokens",
            logits.dtype(),
            logits.shape(),
            rows.len()
        )
    }
    let logits = logits.to_dtype(DType::F32)?.contiguous()?;
    with_allowed(&with_tokens(&logits, rows)?, rows)
}

fn with_tokens(logits: &Tensor, rows: &[Changes]) -> Result<Tensor> {
    let (_, vocab) = logits.dims2()?;
    let known = |change: &&Change| (change.token as usize) < vocab;
    let all = rows.iter().enumerate();
    let all = all.flat_map(|(row, it)| it.tokens.iter().filter(known).map(move |it| (row, it)));
    let all: Vec<(usize, &Change)> = all.collect();
    if all.is_empty() {
        return Ok(logits.clone());
    }
    let device = logits.device();
    let numbers = |of: fn(&Change) -> f32| {
        let numbers = all.iter().map(|(_, change)| of(change));
        Tensor::from_iter(numbers, device)
    };
    let (offset, penalty) = (numbers(|it| it.offset)?, numbers(|it| it.penalty)?);
    let places = all
        .iter()
        .map(|(row, change)| (row * vocab) as u32 + change.token);
    let places = Tensor::from_iter(places, device)?;
    let flat = logits.flatten_all()?;
    let sums = (flat.index_select(&places, 0)? + offset)?;
    let lowered = (&sums / &penalty)?;
    let raised = (&sums * &penalty)?;
    let new = sums.ge(0f32)?.where_cond(&lowered, &raised)?;
    flat.scatter(&places, &new, 0)?.reshape(logits.shape())
}

fn with_allowed(logits: &Tensor, rows: &[Changes]) -> Result<Tensor> {
    let (_, vocab) = logits.dims2()?;
    let limited = |(row, it): (usize, &Changes)| it.allowed.as_ref().map(|_| row as u32);
    let limited: Vec<u32> = rows.iter().enumerate().filter_map(limited).collect();
    if limited.is_empty() {
        return Ok(logits.clone());
    }
    let device = logits.device();
    let allowed: Vec<u8> = rows
        .iter()
        .filter_map(|it| it.allowed.as_ref())
        .flatten()
        .copied()
        .collect();
    let allowed = Tensor::from_vec(allowed, (limited.len(), vocab), device)?;
    let none = Tensor::full(f32::NEG_INFINITY, (), device)?.broadcast_as(allowed.shape())?;
    let at = Tensor::new(limited.as_slice(), device)?;
    let rows = allowed.where_cond(&logits.index_select(&at, 0)?, &none)?;
    let places = at.unsqueeze(1)?.broadcast_as(rows.shape())?;
    logits.scatter(&places.contiguous()?, &rows, 0)
}
