//! Texts of many lengths, some at once: what [`embed`](super) and [`rerank`](crate::rerank) share.

use candle_core::{bail, Device, Result, Tensor};

use super::EncoderConfig;

/// The rows that `run` makes of some texts at once, in the order of the texts: it has the places of at most `batch` of them and gives a row for each.
/// They are put together by their length, so that little is filled up.
pub(crate) fn by_length(
    lens: &[usize],
    batch: usize,
    device: &Device,
    mut run: impl FnMut(&[usize]) -> Result<Tensor>,
) -> Result<Tensor> {
    // The longest first: if memory is short, it is so at once.
    let mut order: Vec<usize> = (0..lens.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(lens[*i]));
    let parts = order.chunks(batch).map(&mut run);
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let mut places = vec![0u32; lens.len()];
    for (place, text) in order.into_iter().enumerate() {
        places[text] = place as u32;
    }
    let places = Tensor::new(places, device)?;
    Tensor::cat(&parts, 0)?.index_select(&places, 0)
}

/// Rows of one length, (rows, longest): the shorter ones end with `filling`.
pub(crate) fn filled(rows: &[&[u32]], filling: u32, device: &Device) -> Result<Tensor> {
    let value = |row: &[u32], i: usize| row.get(i).copied().unwrap_or(filling);
    of_places(rows, value, device)
}

/// A mask of the same shape: 1 where `shown` says so of a place and the row's length, else 0.
pub(crate) fn mask(
    rows: &[&[u32]],
    shown: impl Fn(usize, usize) -> bool,
    device: &Device,
) -> Result<Tensor> {
    of_places(rows, |row, i| u32::from(shown(i, row.len())), device)
}

fn of_places(
    rows: &[&[u32]],
    value: impl Fn(&[u32], usize) -> u32,
    device: &Device,
) -> Result<Tensor> {
    let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let mut values = Vec::with_capacity(rows.len() * longest);
    for row in rows {
        values.extend((0..longest).map(|i| value(row, i)));
    }
    Tensor::from_vec(values, (rows.len(), longest), device)
}

impl EncoderConfig {
    /// Refuses tokens that the model cannot take; `what` stands for their text in messages.
    pub(crate) fn check(&self, what: std::fmt::Arguments, ids: &[u32]) -> Result<()> {
        let (max_tokens, vocab) = (self.max_tokens, self.vocab);
        if ids.is_empty() {
            bail!("{what} has no tokens; give at least one")
        }
        if ids.len() > max_tokens {
            bail!(
                "{what} has {} tokens, but the model's limit is {max_tokens}; truncate it",
                ids.len()
            )
        }
        // A GPU does not say so.
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => bail!("{what} has token {id}, but the model's vocabulary has {vocab} tokens; does the tokenizer belong to another model?"),
            None => Ok(()),
        }
    }
}
