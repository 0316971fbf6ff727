//! The fused op, on the CPU one query at a time.

use super::host::{HostRules, Place};
use super::{kernels, Dims, Rules, NAME};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use crate::ops::{last_dim_contiguous, with_fused};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use half::{bf16, f16};
use num_traits::Zero;

pub(super) fn fused(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rules: &Rules<'_>,
    dims: &Dims,
) -> Result<Tensor> {
    // Heads whose elements are contiguous, as the kernels need them.
    let (q, k, v) = (
        &last_dim_contiguous(q)?,
        &last_dim_contiguous(k)?,
        &last_dim_contiguous(v)?,
    );
    with_fused!(q.device(), S => kernels::fused::<S>(q, k, v, rules, dims), else {
        q.apply_op3_no_bwd(k, v, &Sdpa { rules, dims })
    })
}

struct Sdpa<'a> {
    rules: &'a Rules<'a>,
    dims: &'a Dims,
}

impl CustomOp3 for Sdpa<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let inputs = [(q, q_l), (k, k_l), (v, v_l)];
        let dst = match (q, k) {
            (CpuStorage::F32(_), CpuStorage::F16(_)) => self.rows::<f32, f16>(inputs),
            (CpuStorage::F32(_), CpuStorage::BF16(_)) => self.rows::<f32, bf16>(inputs),
            (CpuStorage::BF16(_), CpuStorage::F16(_)) => self.rows::<bf16, f16>(inputs),
            _ => with_float!(NAME, q, T => self.rows::<T, T>(inputs)),
        }?;
        Ok((dst, Shape::from(self.dims.output())))
    }
}

impl Sdpa<'_> {
    /// One query at a time: all of its scores, their softmax, the weighted sum of the values.
    fn rows<T: Float, K: Float<Acc = T::Acc>>(
        &self,
        [q, k, v]: [(&CpuStorage, &Layout); 3],
    ) -> Result<CpuStorage> {
        let Dims {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            v_dim,
            ..
        } = *self.dims;
        let host = HostRules::<T::Acc>::new(self.rules, self.dims)?;
        let q = StridedRows::new(q.0.as_slice::<T>()?, q.1);
        let (k_step, v_step) = (k.1.stride()[2], v.1.stride()[2]);
        let k = StridedRows::new(k.0.as_slice::<K>()?, k.1);
        let v = StridedRows::new(v.0.as_slice::<K>()?, v.1);
        let dst = host.with_bias(|bias| {
            let scratch = || Scratch {
                query: fused_cpu::scratch(head_dim),
                key: fused_cpu::scratch(head_dim),
                value: fused_cpu::scratch(v_dim),
                scores: fused_cpu::scratch(keys),
                weights: fused_cpu::scratch(keys),
                bias: fused_cpu::scratch(bias.map_or(0, |bias| bias.len())),
                sum: fused_cpu::scratch(v_dim),
            };
            let row = |s: &mut Scratch<T::Acc>, index: usize, dst: &mut [T]| {
                let place = Place {
                    batch: index / queries / heads,
                    head: index / queries % heads,
                    query: index % queries,
                };
                let seen = host.seen(place.batch, place.query);
                let kv_head = place.batch * kv_heads + place.head / (heads / kv_heads);
                let (key, value) = (k.offset(kv_head * keys), v.offset(kv_head * keys));
                let at = |j: usize| host.place(place.batch, seen.start + j);
                let query = q.get(index, &mut s.query);
                let scores = &mut s.scores[..seen.len()];
                for (j, score) in scores.iter_mut().enumerate() {
                    *score = T::Acc::dot(query, k.row_at(key + at(j) * k_step, &mut s.key));
                }
                let bias = bias.map(|bias| bias.get(index, &mut s.bias));
                let weights = &mut s.weights[..seen.len()];
                let factor = host.weigh(place, seen.clone(), bias, scores, weights);
                s.sum.fill(T::Acc::zero());
                for (j, &weight) in weights.iter().enumerate() {
                    let value = v.row_at(value + at(j) * v_step, &mut s.value);
                    T::Acc::add_scaled(weight, value, &mut s.sum);
                }
                for (dst, &sum) in dst.iter_mut().zip(&s.sum) {
                    *dst = T::narrow(sum * factor);
                }
            };
            let steps = keys * (head_dim + v_dim);
            let count = batch * heads * queries;
            Ok(fused_cpu::map_rows(count, v_dim, steps, scratch, row))
        })?;
        Ok(T::to_cpu_storage_owned(dst))
    }
}

/// The buffers of a thread in [`Sdpa::rows`].
struct Scratch<A> {
    query: Vec<A>,
    key: Vec<A>,
    value: Vec<A>,
    scores: Vec<A>,
    weights: Vec<A>,
    bias: Vec<A>,
    sum: Vec<A>,
}
