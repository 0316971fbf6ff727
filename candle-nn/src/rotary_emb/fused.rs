//! The kernel of all rotations, on the CPU and on the devices that have it.

use super::{HeadNorms, Kind};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use crate::ops::{on_devices, same_backend};
use candle_core::fused::{Fused, Operand, RopeKind, Rotation};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Storage, WithDType};

/// A rotation of (x, cos, sin). Without a rotation (`rotary` is 0), cos and sin are not read.
pub(super) struct Rope<'a> {
    pub(super) kind: Kind,
    /// The first elements of a head that are rotated; those after them stay.
    pub(super) rotary: usize,
    /// The first heads.
    pub(super) queries: usize,
    /// The heads after those. All others are copied.
    pub(super) keys: usize,
    /// The norms of queries and keys, before the rotation.
    pub(super) norms: Option<&'a HeadNorms>,
}

impl CustomOp3 for Rope<'_> {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        cos: &CpuStorage,
        cos_l: &Layout,
        sin: &CpuStorage,
        sin_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let weights = self.norms.map(HeadNorms::fused).transpose()?;
        let weights = weights.map(candle_core::Tensor::storage_and_layout);
        let dst = with_float!(self.name(), x, T => {
            let norms = match (&weights, self.norms) {
                (Some((storage, layout)), Some(norms)) => {
                    let Storage::Cpu(storage) = &**storage else {
                        candle_core::bail!("{}: the heads are on the CPU, but their norm weights are not", self.name())
                    };
                    let weights = StridedRows::new(storage.as_slice::<T>()?, layout);
                    Some(Norms::new(&weights, norms.eps()))
                }
                _ => None,
            };
            let x = StridedRows::new(x.as_slice::<T>()?, x_l);
            let cos = StridedRows::new(cos.as_slice::<T>()?, cos_l);
            let sin = StridedRows::new(sin.as_slice::<T>()?, sin_l);
            let angles = Angles { cos: &cos, sin: &sin, batched: cos_l.dims().len() == 3 };
            let rows = self.rotate_rows(&x, x_l.dims(), angles, norms.as_ref());
            Ok(T::to_cpu_storage_owned(rows))
        })?;
        Ok((dst, x_l.shape().clone()))
    }

    on_devices!(x x_l, cos cos_l, sin sin_l);
}

/// The norms' weights in the dtype of the computation.
struct Norms<A> {
    query: Vec<A>,
    key: Vec<A>,
    eps: A,
}

impl<A: Acc> Norms<A> {
    fn new<T: Float<Acc = A>>(weights: &StridedRows<'_, T>, eps: f32) -> Self {
        let row = |index| {
            let mut scratch = fused_cpu::scratch(weights.len());
            weights.get(index, &mut scratch).to_vec()
        };
        Self {
            query: row(0),
            key: row(1),
            eps: A::from_f64(f64::from(eps)),
        }
    }
}

#[derive(Clone, Copy)]
struct Angles<'a, T> {
    cos: &'a StridedRows<'a, T>,
    sin: &'a StridedRows<'a, T>,
    /// Whether each sequence of a batch has its own.
    batched: bool,
}

impl Rope<'_> {
    fn on_device<S: Fused>(&self, inputs: [Operand<'_, S>; 3]) -> Result<(S, Shape)> {
        let dst = self.with_rotation(|rotation| S::rope(inputs, rotation))?;
        Ok((dst, inputs[0].1.shape().clone()))
    }

    /// Calls `f` with the rotation in the kernels' terms.
    pub(super) fn with_rotation<S: Fused, R>(
        &self,
        f: impl FnOnce(Rotation<'_, S>) -> Result<R>,
    ) -> Result<R> {
        let weights = self.norms.map(HeadNorms::fused).transpose()?;
        let weights = weights.map(candle_core::Tensor::storage_and_layout);
        let norms = match (&weights, self.norms) {
            (Some((storage, layout)), Some(norms)) => {
                let storage = same_backend::<S>(storage, self.name(), "norms' weights")?;
                Some(((storage, *layout), norms.eps()))
            }
            _ => None,
        };
        f(Rotation {
            kind: match self.kind {
                Kind::HalfSplit => RopeKind::HalfSplit,
                Kind::Interleaved => RopeKind::Interleaved,
                Kind::Thd => RopeKind::Thd,
            },
            rotary: self.rotary,
            queries: self.queries,
            keys: self.keys,
            norms,
        })
    }

    fn rotate_rows<T: Float>(
        &self,
        x: &StridedRows<'_, T>,
        dims: &[usize],
        angles: Angles<'_, T>,
        norms: Option<&Norms<T::Acc>>,
    ) -> Vec<T> {
        let kind = self.kind;
        let (len, half) = (x.len(), self.rotary / 2);
        let (seq_dim, seq) = (kind.seq_dim(), dims[kind.seq_dim()]);
        let rows_per_batch = dims[1] * dims[2];
        let scratch = || {
            let row = || fused_cpu::scratch(len);
            (
                row(),
                fused_cpu::scratch(half),
                fused_cpu::scratch(half),
                row(),
                row(),
            )
        };
        fused_cpu::map_rows(
            dims[0] * rows_per_batch,
            len,
            4 * len,
            scratch,
            |(xs, coss, sins, normed, results), index, dst| {
                let in_batch = index % rows_per_batch;
                let (head, position) = if seq_dim == 2 {
                    (in_batch / seq, in_batch % seq)
                } else {
                    (in_batch % dims[2], in_batch / dims[2])
                };
                let angle = if angles.batched {
                    index / rows_per_batch * seq + position
                } else {
                    position
                };
                let mut x = x.get(index, xs);
                if head >= self.queries + self.keys {
                    return T::write_row(dst, results, |dst| dst.copy_from_slice(x));
                }
                if let Some(norms) = norms {
                    let weights = if head < self.queries {
                        &norms.query
                    } else {
                        &norms.key
                    };
                    norm_row(x, weights, norms.eps, normed);
                    x = normed;
                }
                if half == 0 {
                    return T::write_row(dst, results, |dst| dst.copy_from_slice(x));
                }
                let (cos, sin) = (angles.cos.get(angle, coss), angles.sin.get(angle, sins));
                T::write_row(dst, results, |dst| {
                    let (x, rest) = x.split_at(2 * half);
                    let (dst, others) = dst.split_at_mut(2 * half);
                    others.copy_from_slice(rest);
                    match kind {
                        Kind::HalfSplit | Kind::Thd => rotate_halves(x, cos, sin, dst),
                        Kind::Interleaved => rotate_neighbours(x, cos, sin, dst),
                    }
                });
            },
        )
    }
}

fn norm_row<A: Acc>(x: &[A], weights: &[A], eps: A, dst: &mut [A]) {
    let mean_square = A::dot(x, x) / A::from_f64(x.len() as f64);
    let scale = (mean_square + eps).sqrt().recip();
    for ((dst, &x), &weight) in dst.iter_mut().zip(x).zip(weights) {
        *dst = x * scale * weight;
    }
}

fn rotate_halves<A: Acc>(x: &[A], cos: &[A], sin: &[A], dst: &mut [A]) {
    let half = x.len() / 2;
    let ((x0, x1), (y0, y1)) = (x.split_at(half), dst.split_at_mut(half));
    for i in 0..half {
        y0[i] = x0[i] * cos[i] - x1[i] * sin[i];
        y1[i] = x0[i] * sin[i] + x1[i] * cos[i];
    }
}

fn rotate_neighbours<A: Acc>(x: &[A], cos: &[A], sin: &[A], dst: &mut [A]) {
    let pairs = x.as_chunks::<2>().0.iter().zip(cos.iter().zip(sin));
    for (y, (&[x0, x1], (&cos, &sin))) in dst.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        *y = [x0 * cos - x1 * sin, x0 * sin + x1 * cos];
    }
}
