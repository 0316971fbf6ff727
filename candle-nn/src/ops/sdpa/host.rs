//! The rules of a call for the CPU's kernels.

use super::pages::Paged;
use super::{Dims, Rules, NAME};
use crate::fused_cpu::{Acc, StridedRows};
use candle_core::{bail, Error, Result, Storage, Tensor};
use std::ops::Range;

/// [`Rules`] with their small tensors as slices, in the dtype of the computation.
pub(super) struct HostRules<A> {
    scale: A,
    softcap: Option<A>,
    left: Option<i64>,
    right: Option<i64>,
    slopes: Option<Vec<A>>,
    sinks: Option<Vec<A>>,
    starts: Option<Vec<u32>>,
    lens: Option<Vec<u32>>,
    table: Option<Table>,
    /// (batch, heads, queries, keys)
    bias: Option<Tensor>,
    queries: usize,
    keys: usize,
}

/// The pages of all rows of the batch.
struct Table {
    pages: Vec<u32>,
    columns: usize,
    /// The logarithm of a page's positions.
    shift: u32,
}

impl Table {
    fn new(paged: &Paged<'_>) -> Result<Self> {
        let pages = paged.pages.table.flatten_all()?.to_vec1::<u32>()?;
        let count = paged.count()?;
        if let Some(page) = pages.iter().find(|page| **page as usize >= count) {
            return Err(Error::InvalidIndex {
                op: NAME,
                index: *page as usize,
                size: count,
            }
            .bt());
        }
        Ok(Self {
            pages,
            columns: paged.pages.table.dim(1)?,
            shift: paged.pages.page.trailing_zeros(),
        })
    }
}

/// A query of a head of a row of the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) query: usize,
}

impl<A: Acc> HostRules<A> {
    pub(super) fn new(rules: &Rules<'_>, dims: &Dims) -> Result<Self> {
        let acc = |x: f32| A::from_f64(f64::from(x));
        let floats = |t: Option<&Tensor>| {
            let floats = |t: &Tensor| t.to_dtype(A::DTYPE)?.to_vec1::<A>();
            t.map(floats).transpose()
        };
        let numbers = |t: Option<&Tensor>| t.map(|t| t.to_vec1::<u32>()).transpose();
        // Distances beyond all keys are the same as this one.
        let distance =
            |n: Option<usize>| n.map(|n| i64::try_from(n).unwrap_or(i64::MAX).min(1 << 40));
        let scores = (dims.batch, dims.heads, dims.queries, dims.keys);
        let bias = match rules.bias {
            Some(bias) => Some(bias.to_dtype(A::DTYPE)?.broadcast_as(scores)?),
            None => None,
        };
        Ok(Self {
            scale: acc(rules.scale),
            softcap: rules.softcap.map(acc),
            left: distance(rules.left),
            right: distance(rules.right),
            slopes: floats(rules.slopes)?,
            sinks: floats(rules.sinks)?,
            starts: numbers(rules.starts)?,
            lens: numbers(rules.lens)?,
            table: rules.paged.as_ref().map(Table::new).transpose()?,
            bias,
            queries: dims.queries,
            keys: dims.keys,
        })
    }

    /// Whether rows of the batch see different keys.
    pub(super) fn ragged(&self) -> bool {
        self.starts.is_some() || self.lens.is_some()
    }

    /// Where key `key` of a row is among the keys of a head.
    pub(super) fn place(&self, batch: usize, key: usize) -> usize {
        match &self.table {
            None => key,
            Some(table) => {
                let page = table.pages[batch * table.columns + (key >> table.shift)] as usize;
                (page << table.shift) + (key & ((1 << table.shift) - 1))
            }
        }
    }

    fn position(&self, batch: usize, query: usize) -> i64 {
        let start = match &self.starts {
            Some(starts) => i64::from(starts[batch]),
            None => self.keys as i64 - self.queries as i64,
        };
        start + query as i64
    }

    /// The keys that a query sees, but for its bias.
    pub(super) fn seen(&self, batch: usize, query: usize) -> Range<usize> {
        let position = self.position(batch, query);
        let mut end = self.keys as i64;
        if let Some(lens) = &self.lens {
            end = end.min(i64::from(lens[batch]));
        }
        if let Some(right) = self.right {
            end = end.min((position + right + 1).max(0));
        }
        let begin = self.left.map_or(0, |left| (position - left).clamp(0, end));
        begin as usize..end as usize
    }

    /// The keys that some of these queries see.
    pub(super) fn seen_by(&self, batch: usize, queries: Range<usize>) -> Range<usize> {
        // Positions grow with queries.
        let last = queries.end - 1;
        self.seen(batch, queries.start).start..self.seen(batch, last).end
    }

    /// Calls `f` with the bias' rows: one for each query of each head of each row of the batch.
    pub(super) fn with_bias<R>(
        &self,
        f: impl FnOnce(Option<&StridedRows<'_, A>>) -> Result<R>,
    ) -> Result<R> {
        let Some(bias) = &self.bias else {
            return f(None);
        };
        let (storage, layout) = bias.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => f(Some(&StridedRows::new(storage.as_slice::<A>()?, layout))),
            _ => bail!("sdpa: the bias must be on the CPU like the queries"),
        }
    }

    /// Makes exponentials of the products of a query with the keys `seen`, and gives what their weighted sum is to be multiplied by.
    /// `bias` has all keys.
    pub(super) fn weigh(
        &self,
        place: Place,
        seen: Range<usize>,
        bias: Option<&[A]>,
        scores: &mut [A],
        weights: &mut [A],
    ) -> A {
        for score in scores.iter_mut() {
            *score *= self.scale;
        }
        if let Some(cap) = self.softcap {
            A::soft_cap(cap, scores);
        }
        if let Some(bias) = bias {
            A::add_scaled(A::one(), &bias[seen.clone()], scores);
        }
        if let Some(slopes) = &self.slopes {
            let slope = slopes[place.head];
            let ahead = seen.start as i64 - self.position(place.batch, place.query);
            for (i, score) in scores.iter_mut().enumerate() {
                let distance = (ahead + i as i64).unsigned_abs();
                *score -= slope * A::from_f64(distance as f64);
            }
        }
        let sink = self.sinks.as_ref().map(|sinks| sinks[place.head]);
        let mut most = A::greatest(scores);
        if let Some(sink) = sink.filter(|sink| *sink > most) {
            most = sink;
        }
        if most == A::neg_infinity() {
            // All keys are hidden. NaN scores are excluded: they have to reach the result.
            if !scores.iter().any(|score| score.is_nan()) {
                weights.fill(A::zero());
                return A::zero();
            }
            most = A::zero();
        }
        A::exp_less(most, scores, weights);
        let sum = A::sum(weights) + sink.map_or(A::zero(), |sink| (sink - most).exp());
        sum.recip()
    }
}
