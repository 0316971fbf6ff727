//! Many queries on the CPU: matrix products over blocks of queries, each with only the keys that it needs.

use super::host::{HostRules, Place};
use super::{Dims, Rules, NAME};
use crate::fused_cpu::{self, Acc};
use crate::ops::compute_dtype;
use candle_core::cpu::threads;
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Tensor};
use std::ops::Range;

/// Queries in a block. It bounds the memory of the scores: heads * block * keys.
const BLOCK: usize = 256;
/// Minimum number of queries in a block with small windows: a block loads the keys of all its windows.
const LEAST_BLOCK: usize = 64;
/// Below this many elementary steps a task is not worth handing to another thread.
const TASK_STEPS: usize = 16 * 1024;

pub(super) fn blocks(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rules: &Rules<'_>,
    dims: &Dims,
) -> Result<Tensor> {
    match compute_dtype(dims.dtype) {
        DType::F64 => blocks_in::<f64>(q, k, v, rules, dims),
        _ => blocks_in::<f32>(q, k, v, rules, dims),
    }
}

fn blocks_in<A: Acc>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rules: &Rules<'_>,
    dims: &Dims,
) -> Result<Tensor> {
    let host = HostRules::<A>::new(rules, dims)?;
    let (k, v) = match rules.left {
        None => (k.to_dtype(A::DTYPE)?, v.to_dtype(A::DTYPE)?),
        // A block converts its keys, which may be a small part of all.
        Some(_) => (k.clone(), v.clone()),
    };
    let block = rules
        .left
        .map_or(BLOCK, |left| left.clamp(LEAST_BLOCK, BLOCK));
    // Rows that see different keys are computed one at a time.
    let together = if host.ragged() { 1 } else { dims.batch };
    let mut rows = Vec::with_capacity(dims.batch / together);
    for first in (0..dims.batch).step_by(together) {
        let row = |t: &Tensor| t.narrow(0, first, together);
        let (q, k, v) = (row(q)?, row(&k)?, row(&v)?);
        let mut done = Vec::with_capacity(dims.queries.div_ceil(block));
        for start in (0..dims.queries).step_by(block) {
            let queries = start..dims.queries.min(start + block);
            let part = Part {
                host: &host,
                dims,
                batch: first,
                rows: together,
                seen: host.seen_by(first, queries.clone()),
                queries,
            };
            done.push(part.attend(&q, &k, &v)?);
        }
        rows.push(joined(done, 2)?);
    }
    joined(rows, 0)
}

fn joined(parts: Vec<Tensor>, dim: usize) -> Result<Tensor> {
    match parts.as_slice() {
        [part] => Ok(part.clone()),
        parts => Tensor::cat(parts, dim),
    }
}

/// A block of queries of some rows of the batch, all of whose heads see the same keys.
struct Part<'a, A> {
    host: &'a HostRules<A>,
    dims: &'a Dims,
    batch: usize,
    rows: usize,
    queries: Range<usize>,
    seen: Range<usize>,
}

impl<A: Acc> Part<'_, A> {
    /// `q`, `k` and `v` of the rows, with all queries and keys.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let Dims {
            heads,
            kv_heads,
            head_dim,
            v_dim,
            dtype,
            ..
        } = *self.dims;
        let (count, keys) = (self.queries.len(), self.seen.len());
        let out = (self.rows, heads, count, v_dim);
        if keys == 0 {
            return Tensor::zeros(out, dtype, q.device());
        }
        let needed = |t: &Tensor| t.narrow(2, self.seen.start, keys)?.to_dtype(A::DTYPE);
        let (k, v) = (needed(k)?, needed(v)?);
        // The heads of a group share their keys, so their queries are rows of one product, and keys are not repeated.
        let q = q.narrow(2, self.queries.start, count)?.to_dtype(A::DTYPE)?;
        let q = q.reshape((self.rows, kv_heads, heads / kv_heads * count, head_dim))?;
        let weights = q.matmul(&k.transpose(2, 3)?)?;
        weights.inplace_op1(self)?;
        weights.matmul(&v)?.reshape(out)?.to_dtype(dtype)
    }

    /// Makes weights of `scores`: a row for each query of each head.
    fn softmax(&self, scores: &mut [A]) -> Result<()> {
        let keys = self.seen.len();
        let rows_per_task = (TASK_STEPS / (8 * keys)).max(1);
        self.host.with_bias(|bias| {
            threads::chunks_mut(scores, rows_per_task * keys, |task, chunk| {
                let mut scratch = fused_cpu::scratch(keys);
                let mut bias_scratch = fused_cpu::scratch(bias.map_or(0, |bias| bias.len()));
                for (i, row) in chunk.chunks_mut(keys).enumerate() {
                    let index = task * rows_per_task + i;
                    let place = Place {
                        batch: self.batch + index / self.queries.len() / self.dims.heads,
                        head: index / self.queries.len() % self.dims.heads,
                        query: self.queries.start + index % self.queries.len(),
                    };
                    let bias = bias.map(|bias| {
                        let before = place.batch * self.dims.heads + place.head;
                        bias.get(before * self.dims.queries + place.query, &mut bias_scratch)
                    });
                    let seen = self.host.seen(place.batch, place.query);
                    let own = seen.start - self.seen.start..seen.end - self.seen.start;
                    let scores = &mut scratch[own.clone()];
                    scores.copy_from_slice(&row[own.clone()]);
                    row[..own.start].fill(A::zero());
                    row[own.end..].fill(A::zero());
                    let row = &mut row[own];
                    let factor = self.host.weigh(place, seen, bias, scores, row);
                    for weight in row {
                        *weight *= factor;
                    }
                }
            });
            Ok(())
        })
    }
}

impl<A: Acc> InplaceOp1 for Part<'_, A> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("sdpa: the scores of a product are not contiguous")
        };
        self.softmax(&mut A::slice_mut(storage)?[start..end])
    }
}
