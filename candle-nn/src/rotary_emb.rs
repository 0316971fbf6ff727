//! Rotary position embeddings, see <https://arxiv.org/abs/2104.09864>.
//!
//! Each pair of elements of a head is rotated by an angle that depends on the token's position. `cos` and `sin` hold
//! the angles' cosines and sines: (seq, head_dim / 2), or (batch, seq, head_dim / 2) for separate positions per
//! sequence of a batch. They may cover more positions than the input has tokens; the first ones are used.
//!
//! The forms differ in which elements make a pair: [`rope`] and [`rope_thd`] pair element `i` with `i + head_dim / 2` (Llama as
//! Hugging Face stores it), [`rope_i`] pairs `2 i` with `2 i + 1` (GPT-J, original Llama weights).

mod append;

pub use append::{rope_append, rope_append_slow, Pairs};

use crate::fused_cpu::{self, with_float, Float, StridedRows};
use crate::ops::{check_dtypes, in_graph};
use candle_core::{CpuStorage, CustomOp3, Error, Layout, Result, Shape, Tensor, WithDType, D};

/// Rotates `xs` (batch, heads, seq, head_dim), pairing element `i` with `i + head_dim / 2`, in one kernel. Any layouts.
///
/// # Errors
/// `cos` or `sin` does not fit `xs` (see the [module](self)), `head_dim` is odd, the dtypes differ or are not floats.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply(Kind::HalfSplit, xs, cos, sin, None)
}

/// Rotates `xs` (batch, heads, seq, head_dim), pairing element `2 i` with `2 i + 1`, in one kernel. Any layouts.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply(Kind::Interleaved, xs, cos, sin, None)
}

/// [`rope`] for `xs` of shape (batch, seq, heads, head_dim).
///
/// # Errors
/// Those of [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply(Kind::Thd, xs, cos, sin, None)
}

/// [`rope`] on the first `rotated` heads of `xs`; the others are copied as they are. So one kernel handles packed
/// queries, keys and values. Not in upstream's interface.
///
/// # Errors
/// Those of [`rope`], or `xs` has fewer heads.
pub fn rope_heads(xs: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    apply(Kind::HalfSplit, xs, cos, sin, Some(rotated))
}

/// [`rope_i`] on the first `rotated` heads of `xs`, as [`rope_heads`] is [`rope`] on them. Not in upstream's interface.
///
/// # Errors
/// Those of [`rope`], or `xs` has fewer heads.
pub fn rope_i_heads(xs: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    apply(Kind::Interleaved, xs, cos, sin, Some(rotated))
}

/// The plain form of [`rope_heads`].
///
/// # Errors
/// Those of [`rope_heads`].
pub fn rope_heads_slow(x: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    heads_slow(Kind::HalfSplit, x, cos, sin, rotated)
}

/// The plain form of [`rope_i_heads`].
///
/// # Errors
/// Those of [`rope_i_heads`].
pub fn rope_i_heads_slow(x: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    heads_slow(Kind::Interleaved, x, cos, sin, rotated)
}

/// The plain form of [`rope`].
///
/// # Errors
/// Those of [`rope`].
pub fn rope_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply_slow(Kind::HalfSplit, x, cos, sin)
}

/// The plain form of [`rope_i`].
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply_slow(Kind::Interleaved, x, cos, sin)
}

/// The plain form of [`rope_thd`]. Not in upstream's interface.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_thd_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply_slow(Kind::Thd, x, cos, sin)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    HalfSplit,
    Interleaved,
    Thd,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::HalfSplit => "rope",
            Self::Interleaved => "rope-i",
            Self::Thd => "rope-thd",
        }
    }

    /// The dimension of the sequence; the other one of 1 and 2 is the heads'.
    fn seq_dim(self) -> usize {
        match self {
            Self::HalfSplit | Self::Interleaved => 2,
            Self::Thd => 1,
        }
    }
}

fn apply(
    kind: Kind,
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    rotated: Option<usize>,
) -> Result<Tensor> {
    let (cos, sin) = (angles(kind, xs, cos)?, angles(kind, xs, sin)?);
    check_dtypes(kind.name(), &[xs, &cos, &sin])?;
    if cos.shape() != sin.shape() {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: cos.shape().clone(),
            rhs: sin.shape().clone(),
            op: kind.name(),
        }
        .bt());
    }
    let heads = xs.dim(3 - kind.seq_dim())?;
    let turned = rotated.unwrap_or(heads);
    if turned > heads {
        candle_core::bail!(
            "{}: {turned} heads are to be rotated, the input {:?} has {heads}",
            kind.name(),
            xs.dims()
        )
    }
    if xs.elem_count() == 0 {
        return xs.zeros_like();
    }
    if in_graph(&[xs, &cos, &sin]) {
        return match rotated {
            Some(rotated) => heads_slow(kind, xs, &cos, &sin, rotated),
            None => apply_slow(kind, xs, &cos, &sin),
        };
    }
    let rope = Rope {
        kind,
        rotated: turned,
    };
    xs.apply_op3_no_bwd(&cos, &sin, &rope)
}

fn heads_slow(
    kind: Kind,
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    rotated: usize,
) -> Result<Tensor> {
    let heads_dim = 3 - kind.seq_dim();
    let heads = x.dim(heads_dim)?;
    let turned = apply_slow(kind, &x.narrow(heads_dim, 0, rotated)?, cos, sin)?;
    let others = x.narrow(heads_dim, rotated, heads - rotated)?;
    Tensor::cat(&[&turned, &others], heads_dim)
}

fn apply_slow(kind: Kind, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    // The heads' dimension, along which the angles are the same, is the one that is not the sequence's.
    let heads_dim = 3 - kind.seq_dim();
    let spread = |t: &Tensor| {
        let t = angles(kind, x, t)?;
        let t = if t.rank() == 2 { t.unsqueeze(0)? } else { t };
        t.unsqueeze(heads_dim)
    };
    let (cos, sin) = (spread(cos)?, spread(sin)?);
    let half = x.dim(D::Minus1)? / 2;
    let (x0, x1) = match kind {
        Kind::HalfSplit | Kind::Thd => (x.narrow(3, 0, half)?, x.narrow(3, half, half)?),
        Kind::Interleaved => {
            let (b, h, t, _) = x.dims4()?;
            let pairs = x.reshape((b, h, t, half, 2))?;
            (
                pairs.narrow(4, 0, 1)?.squeeze(4)?,
                pairs.narrow(4, 1, 1)?.squeeze(4)?,
            )
        }
    };
    let y0 = (x0.broadcast_mul(&cos)? - x1.broadcast_mul(&sin)?)?;
    let y1 = (x0.broadcast_mul(&sin)? + x1.broadcast_mul(&cos)?)?;
    match kind {
        Kind::HalfSplit | Kind::Thd => Tensor::cat(&[&y0, &y1], 3),
        Kind::Interleaved => Tensor::stack(&[&y0, &y1], 4)?.flatten_from(3),
    }
}

/// Checks `cos` or `sin` against `xs`, and cuts it to the positions that `xs` has.
fn angles(kind: Kind, xs: &Tensor, t: &Tensor) -> Result<Tensor> {
    let dims = xs.dims();
    if dims.len() != 4 || !dims[3].is_multiple_of(2) {
        candle_core::bail!(
            "{}: the input is {dims:?}, it has to have 4 dimensions, the last of them even",
            kind.name()
        )
    }
    let (batch, seq, half) = (dims[0], dims[kind.seq_dim()], dims[3] / 2);
    let seq_dim = match *t.dims() {
        [positions, len] if positions >= seq && len == half => 0,
        [b, positions, len] if b == batch && positions >= seq && len == half => 1,
        _ => {
            return Err(Error::UnexpectedShape {
                msg: format!(
                    "{}: cos and sin for an input of shape {dims:?} are (seq, {half}) or ({batch}, seq, {half}), with a \
                     seq of at least {seq}",
                    kind.name()
                ),
                expected: Shape::from((seq, half)),
                got: t.shape().clone(),
            }
            .bt())
        }
    };
    t.narrow(seq_dim, 0, seq)
}

struct Rope {
    kind: Kind,
    /// Heads after these are copied.
    rotated: usize,
}

impl CustomOp3 for Rope {
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
        let batched = cos_l.dims().len() == 3;
        let dst = with_float!(self.name(), x, T => {
            let x = StridedRows::new(x.as_slice::<T>()?, x_l);
            let cos = StridedRows::new(cos.as_slice::<T>()?, cos_l);
            let sin = StridedRows::new(sin.as_slice::<T>()?, sin_l);
            Ok(T::to_cpu_storage_owned(self.rotate_rows(&x, x_l.dims(), &cos, &sin, batched)))
        })?;
        Ok((dst, x_l.shape().clone()))
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            x: &candle_core::WebGpuStorage,
            x_l: &Layout,
            cos: &candle_core::WebGpuStorage,
            cos_l: &Layout,
            sin: &candle_core::WebGpuStorage,
            sin_l: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            use candle_core::webgpu_backend::ops::fused::rope;
            let kind = self.webgpu_kind();
            let dst = rope(x, x_l, cos, cos_l, sin, sin_l, kind, self.rotated)?;
            Ok((dst, x_l.shape().clone()))
        }
    }
}

impl Rope {
    candle_core::with_webgpu! {
        fn webgpu_kind(&self) -> candle_core::webgpu_backend::ops::fused::RopeKind {
            use candle_core::webgpu_backend::ops::fused::RopeKind;
            match self.kind {
                Kind::HalfSplit => RopeKind::HalfSplit,
                Kind::Interleaved => RopeKind::Interleaved,
                Kind::Thd => RopeKind::Thd,
            }
        }
    }

    fn rotate_rows<T: Float>(
        &self,
        x: &StridedRows<'_, T>,
        dims: &[usize],
        cos: &StridedRows<'_, T>,
        sin: &StridedRows<'_, T>,
        batched: bool,
    ) -> Vec<T> {
        let kind = self.kind;
        let (len, half) = (x.len(), x.len() / 2);
        let (seq_dim, seq) = (kind.seq_dim(), dims[kind.seq_dim()]);
        let rows_per_batch = dims[1] * dims[2];
        let scratch = || {
            let row = || fused_cpu::scratch(len);
            (
                row(),
                fused_cpu::scratch(half),
                fused_cpu::scratch(half),
                row(),
            )
        };
        fused_cpu::map_rows(
            dims[0] * rows_per_batch,
            len,
            4 * len,
            scratch,
            |(xs, coss, sins, results), index, dst| {
                let in_batch = index % rows_per_batch;
                let (head, position) = if seq_dim == 2 {
                    (in_batch / seq, in_batch % seq)
                } else {
                    (in_batch % dims[2], in_batch / dims[2])
                };
                let angle = if batched {
                    index / rows_per_batch * seq + position
                } else {
                    position
                };
                let x = x.get(index, xs);
                if head >= self.rotated {
                    return T::write_row(dst, results, |dst| dst.copy_from_slice(x));
                }
                let (cos, sin) = (cos.get(angle, coss), sin.get(angle, sins));
                T::write_row(dst, results, |dst| match kind {
                    Kind::HalfSplit | Kind::Thd => {
                        let ((x0, x1), (y0, y1)) = (x.split_at(half), dst.split_at_mut(half));
                        for i in 0..half {
                            y0[i] = x0[i] * cos[i] - x1[i] * sin[i];
                            y1[i] = x0[i] * sin[i] + x1[i] * cos[i];
                        }
                    }
                    Kind::Interleaved => {
                        let pairs = x.as_chunks::<2>().0.iter().zip(cos.iter().zip(sin));
                        for (y, (&[x0, x1], (&cos, &sin))) in
                            dst.as_chunks_mut::<2>().0.iter_mut().zip(pairs)
                        {
                            *y = [x0 * cos - x1 * sin, x0 * sin + x1 * cos];
                        }
                    }
                });
            },
        )
    }
}
