//! Rotary position embeddings, see <https://arxiv.org/abs/2104.09864>.
//!
//! Each pair of elements of a head is rotated by an angle that depends on the token's position. `cos` and `sin` hold
//! the angles' cosines and sines: (seq, head_dim / 2), or (batch, seq, head_dim / 2) for separate positions per
//! sequence of a batch. They may cover more positions than the input has tokens; the first ones are used.
//!
//! The forms differ in which elements make a pair: [`rope`] and [`rope_thd`] pair element `i` with `i + head_dim / 2` (Llama as
//! Hugging Face stores it), [`rope_i`] pairs `2 i` with `2 i + 1` (GPT-J, original Llama weights).
//!
//! Those that are not in upstream's interface also rotate a part of a head: with `cos` and `sin` of `n < head_dim / 2` columns, its
//! first `2 n` elements as if they were the whole head (`i` is paired with `i + n`, or `2 i` with `2 i + 1`); the others stay. An
//! attention layer's queries, keys and values together are the subject of [`Rotation`].

mod append;
mod fused;
mod heads;

pub use append::{
    rope_append, rope_append_slow, rope_append_with, rope_append_with_slow, CachePosition,
};
pub use heads::{rope_heads_with, rope_heads_with_slow, HeadNorms, Pairs, Rotation};

use crate::ops::{check_dtypes, in_graph, zeros_of};
use candle_core::{Error, Result, Shape, Tensor};
use fused::Rope;

/// Rotates `xs` (batch, heads, seq, head_dim), pairing element `i` with `i + head_dim / 2`, in one kernel. Any layouts.
///
/// # Errors
/// `cos` or `sin` does not fit `xs` (see the [module](self)), `head_dim` is odd, the dtypes differ or are not floats.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply(Kind::HalfSplit, xs, cos, sin)
}

/// Rotates `xs` (batch, heads, seq, head_dim), pairing element `2 i` with `2 i + 1`, in one kernel. Any layouts.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply(Kind::Interleaved, xs, cos, sin)
}

/// [`rope`] for `xs` of shape (batch, seq, heads, head_dim).
///
/// # Errors
/// Those of [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply(Kind::Thd, xs, cos, sin)
}

/// [`rope`] on the first `rotated` heads of `xs`; the others are copied as they are. So one kernel handles packed
/// queries, keys and values. May rotate a part of each head, see the [module](self). Not in upstream's interface.
///
/// # Errors
/// Those of [`rope`], or `xs` has fewer heads.
pub fn rope_heads(xs: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    rope_heads_with(xs, &Rotation::new(cos, sin, Pairs::Halves), rotated, 0)
}

/// [`rope_i`] on the first `rotated` heads of `xs`, as [`rope_heads`] is [`rope`] on them. Not in upstream's interface.
///
/// # Errors
/// Those of [`rope`], or `xs` has fewer heads.
pub fn rope_i_heads(xs: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    rope_heads_with(xs, &Rotation::new(cos, sin, Pairs::Neighbours), rotated, 0)
}

/// The plain form of [`rope_heads`].
///
/// # Errors
/// Those of [`rope_heads`].
pub fn rope_heads_slow(x: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    rope_heads_with_slow(x, &Rotation::new(cos, sin, Pairs::Halves), rotated, 0)
}

/// The plain form of [`rope_i_heads`].
///
/// # Errors
/// Those of [`rope_i_heads`].
pub fn rope_i_heads_slow(x: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
    rope_heads_with_slow(x, &Rotation::new(cos, sin, Pairs::Neighbours), rotated, 0)
}

/// The plain form of [`rope`].
///
/// # Errors
/// Those of [`rope`].
pub fn rope_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    plain(Kind::HalfSplit, x, cos, sin)
}

/// The plain form of [`rope_i`].
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    plain(Kind::Interleaved, x, cos, sin)
}

/// The plain form of [`rope_thd`]. Not in upstream's interface.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_thd_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    plain(Kind::Thd, x, cos, sin)
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

    fn heads_dim(self) -> usize {
        3 - self.seq_dim()
    }
}

fn apply(kind: Kind, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (cos, sin) = both_angles(kind, xs, cos, sin, Extent::Whole)?;
    check_dtypes(kind.name(), &[xs, &cos, &sin])?;
    if xs.elem_count() == 0 {
        return zeros_of(xs.shape(), xs, &[xs, &cos, &sin]);
    }
    if in_graph(&[xs, &cos, &sin]) {
        return rotate_slow(kind, xs, &cos, &sin);
    }
    let rope = Rope {
        kind,
        rotary: xs.dim(3)?,
        queries: xs.dim(kind.heads_dim())?,
        keys: 0,
        norms: None,
    };
    xs.apply_op3_no_bwd(&cos, &sin, &rope)
}

fn plain(kind: Kind, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (cos, sin) = both_angles(kind, x, cos, sin, Extent::Whole)?;
    rotate_slow(kind, x, &cos, &sin)
}

/// Rotates all heads of `x` by checked angles; elements beyond the angles are copied.
fn rotate_slow(kind: Kind, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    // The heads' dimension, along which the angles are the same, is the one that is not the sequence's.
    let spread = |t: &Tensor| {
        let t = if t.rank() == 2 {
            t.unsqueeze(0)?
        } else {
            t.clone()
        };
        t.unsqueeze(kind.heads_dim())
    };
    let (cos, sin) = (spread(cos)?, spread(sin)?);
    let (b, h, t, dim) = x.dims4()?;
    let half = cos.dim(3)?;
    if half == 0 {
        return Ok(x.clone());
    }
    let part = x.narrow(3, 0, 2 * half)?;
    let (x0, x1) = match kind {
        Kind::HalfSplit | Kind::Thd => (part.narrow(3, 0, half)?, part.narrow(3, half, half)?),
        Kind::Interleaved => {
            let pairs = part.reshape((b, h, t, half, 2))?;
            (
                pairs.narrow(4, 0, 1)?.squeeze(4)?,
                pairs.narrow(4, 1, 1)?.squeeze(4)?,
            )
        }
    };
    let y0 = (x0.broadcast_mul(&cos)? - x1.broadcast_mul(&sin)?)?;
    let y1 = (x0.broadcast_mul(&sin)? + x1.broadcast_mul(&cos)?)?;
    let rotated = match kind {
        Kind::HalfSplit | Kind::Thd => Tensor::cat(&[&y0, &y1], 3)?,
        Kind::Interleaved => Tensor::stack(&[&y0, &y1], 4)?.flatten_from(3)?,
    };
    match dim - 2 * half {
        0 => Ok(rotated),
        rest => Tensor::cat(&[&rotated, &x.narrow(3, 2 * half, rest)?], 3),
    }
}

/// The part of a head that is rotated.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    Whole,
    /// As much as there are angles for.
    Part,
}

/// Checks `cos` and `sin` against `xs` and each other, and cuts them to the positions that `xs` has.
fn both_angles(
    kind: Kind,
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    extent: Extent,
) -> Result<(Tensor, Tensor)> {
    let (cos, sin) = (
        angles(kind, xs, cos, extent)?,
        angles(kind, xs, sin, extent)?,
    );
    if cos.shape() != sin.shape() {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: cos.shape().clone(),
            rhs: sin.shape().clone(),
            op: kind.name(),
        }
        .bt());
    }
    Ok((cos, sin))
}

fn angles(kind: Kind, xs: &Tensor, t: &Tensor, extent: Extent) -> Result<Tensor> {
    check_heads(kind, xs)?;
    let dims = xs.dims();
    let (batch, seq, half) = (dims[0], dims[kind.seq_dim()], dims[3] / 2);
    let fits = |len: usize| len == half || len < half && extent == Extent::Part;
    let seq_dim = match *t.dims() {
        [positions, len] if positions >= seq && fits(len) => 0,
        [b, positions, len] if b == batch && positions >= seq && fits(len) => 1,
        _ => {
            let columns = match extent {
                Extent::Whole => format!("{half}"),
                Extent::Part => format!("up to {half}"),
            };
            return Err(Error::UnexpectedShape {
                msg: format!(
                    "{}: for an input of shape {dims:?}, cos and sin must be (seq, {columns}) or ({batch}, seq, {columns}), with a \
                     seq of at least {seq}",
                    kind.name()
                ),
                expected: Shape::from((seq, half)),
                got: t.shape().clone(),
            }
            .bt());
        }
    };
    t.narrow(seq_dim, 0, seq)
}

/// An error unless `xs` is heads of an even size.
fn check_heads(kind: Kind, xs: &Tensor) -> Result<()> {
    match xs.dims() {
        [_, _, _, dim] if dim.is_multiple_of(2) => Ok(()),
        dims => candle_core::bail!(
            "{}: the input is {dims:?}; it must have 4 dimensions with an even last one",
            kind.name()
        ),
    }
}
