//! Norms and rotations of the heads of an attention layer.

use super::fused::Rope;
use super::{both_angles, check_heads, rotate_slow, Extent, Kind};
use crate::ops::{check_dtypes, in_graph, rms_norm_slow, zeros_of};
use candle_core::{Result, Tensor};

/// The elements of a head that form a pair; see the [module above](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `i` and `i + n` for `n` columns of angles, as [`super::rope`] has them.
    Halves,
    /// `2 i` and `2 i + 1`, as [`super::rope_i`] has them.
    Neighbours,
}

impl Pairs {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Halves => Kind::HalfSplit,
            Self::Neighbours => Kind::Interleaved,
        }
    }
}

/// The RMS norms that some models (Qwen3, Gemma 3) apply to each head of the queries and to each of the keys, with weights of
/// size `head_dim`. Not in upstream's interface.
#[derive(Clone, Debug)]
pub struct HeadNorms {
    query: Tensor,
    key: Tensor,
    eps: f32,
    /// Both weights, (2, head_dim), so that a kernel has one binding for them. A copy, so there is none of variables, which change.
    both: Option<Tensor>,
}

impl HeadNorms {
    /// From the weights, both (head_dim), and what is added to the mean square. Heads are multiplied with the weights as they are:
    /// a model that stores `weight - 1` adds the 1 first.
    ///
    /// # Errors
    /// The weights are not vectors of one length and dtype on one device.
    pub fn new(query: &Tensor, key: &Tensor, eps: f64) -> Result<Self> {
        if query.rank() != 1 || query.shape() != key.shape() {
            candle_core::bail!(
                "head norms: the weights of queries and keys are {:?} and {:?}; both must be (head_dim)",
                query.dims(),
                key.dims()
            )
        }
        check_dtypes("head norms", &[query, key])?;
        let both = if in_graph(&[query, key]) {
            None
        } else {
            Some(Tensor::stack(&[query, key], 0)?)
        };
        Ok(Self {
            query: query.clone(),
            key: key.clone(),
            eps: eps as f32,
            both,
        })
    }

    /// The weight of the queries' norm.
    pub fn query(&self) -> &Tensor {
        &self.query
    }

    /// The weight of the keys' norm.
    pub fn key(&self) -> &Tensor {
        &self.key
    }

    /// The value added to the mean square.
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// Both weights as the kernels read them.
    pub(super) fn fused(&self) -> Result<&Tensor> {
        match &self.both {
            Some(both) => Ok(both),
            None => candle_core::bail!("head norms: no kernel for weights with gradients"),
        }
    }
}

/// The transformation of an attention layer's queries and keys before their product. Not in upstream's interface.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Cosines and sines, (seq, n) or (batch, seq, n) with `n` of at most `head_dim / 2`, of which `2 n` elements of each head are
    /// rotated; see the [module above](super). `None` rotates nothing.
    pub angles: Option<(&'a Tensor, &'a Tensor)>,
    /// The pairs of elements that are rotated together.
    pub pairs: Pairs,
    /// Applied to each head before it is rotated.
    pub norms: Option<&'a HeadNorms>,
}

impl<'a> Rotation<'a> {
    /// A rotation without norms.
    pub fn new(cos: &'a Tensor, sin: &'a Tensor, pairs: Pairs) -> Self {
        Self {
            angles: Some((cos, sin)),
            pairs,
            norms: None,
        }
    }
}

/// Applies `rotation` to `xs`, (batch, heads, seq, head_dim): the first `queries` heads are queries, the next `keys` are keys, the
/// others are copied as they are. The result has the shape of `xs`. One kernel, any layout. Not in upstream's interface.
///
/// # Errors
/// Angles do not fit `xs`, `head_dim` is odd or not the norms', `xs` has fewer heads, the dtypes differ or are not floats.
pub fn rope_heads_with(
    xs: &Tensor,
    rotation: &Rotation<'_>,
    queries: usize,
    keys: usize,
) -> Result<Tensor> {
    let checked = Checked::new(xs, rotation, queries, keys)?;
    if xs.elem_count() == 0 {
        return zeros_of(xs.shape(), xs, &checked.tensors(xs));
    }
    if checked.takes_plain_form(xs) {
        return checked.plain(xs);
    }
    let (cos, sin) = checked.cos_sin(xs);
    xs.apply_op3_no_bwd(cos, sin, &checked.rope())
}

/// The plain form of [`rope_heads_with`].
///
/// # Errors
/// Those of [`rope_heads_with`].
pub fn rope_heads_with_slow(
    xs: &Tensor,
    rotation: &Rotation<'_>,
    queries: usize,
    keys: usize,
) -> Result<Tensor> {
    Checked::new(xs, rotation, queries, keys)?.plain(xs)
}

/// A [`Rotation`] that fits its input.
pub(super) struct Checked<'a> {
    kind: Kind,
    /// As long as the input; `None` also where they have no columns.
    angles: Option<(Tensor, Tensor)>,
    norms: Option<&'a HeadNorms>,
    queries: usize,
    keys: usize,
}

impl<'a> Checked<'a> {
    pub(super) fn new(
        xs: &Tensor,
        rotation: &Rotation<'a>,
        queries: usize,
        keys: usize,
    ) -> Result<Self> {
        let kind = rotation.pairs.kind();
        check_heads(kind, xs)?;
        let name = kind.name();
        let angles = match rotation.angles {
            Some((cos, sin)) => Some(both_angles(kind, xs, cos, sin, Extent::Part)?),
            None => None,
        };
        let (heads, dim) = (xs.dim(1)?, xs.dim(3)?);
        if queries.saturating_add(keys) > heads {
            candle_core::bail!(
                "{name}: {queries} query heads and {keys} key heads to rotate, but the input {:?} has {heads}",
                xs.dims()
            )
        }
        let mut tensors = vec![xs];
        tensors.extend(angles.iter().flat_map(|(cos, sin)| [cos, sin]));
        if let Some(norms) = rotation.norms {
            if norms.query.dims() != [dim] {
                candle_core::bail!(
                    "{name}: the norm weights are {:?}; for heads of {:?} they must be ({dim})",
                    norms.query.dims(),
                    xs.dims()
                )
            }
            tensors.push(&norms.query);
        }
        check_dtypes(name, &tensors)?;
        Ok(Self {
            kind,
            angles: angles.filter(|(cos, _)| cos.dims().last() != Some(&0)),
            norms: rotation.norms,
            queries,
            keys,
        })
    }

    /// The inputs of the result.
    pub(super) fn tensors<'b>(&'b self, xs: &'b Tensor) -> Vec<&'b Tensor> {
        let (cos, sin) = self.cos_sin(xs);
        let norms = self.norms.map(|norms| [&norms.query, &norms.key]);
        [xs, cos, sin]
            .into_iter()
            .chain(norms.into_iter().flatten())
            .collect()
    }

    /// Whether gradients are wanted, which the kernels do not have.
    pub(super) fn takes_plain_form(&self, xs: &Tensor) -> bool {
        let (cos, sin) = self.cos_sin(xs);
        let tracked = self.norms.is_some_and(|norms| norms.both.is_none());
        tracked || in_graph(&[xs, cos, sin])
    }

    /// The kernel's arguments after `xs`; `xs` itself stands in for absent ones.
    pub(super) fn cos_sin<'b>(&'b self, xs: &'b Tensor) -> (&'b Tensor, &'b Tensor) {
        match &self.angles {
            Some((cos, sin)) => (cos, sin),
            None => (xs, xs),
        }
    }

    pub(super) fn rope(&self) -> Rope<'a> {
        let columns = self.angles.as_ref().and_then(|(cos, _)| cos.dims().last());
        Rope {
            kind: self.kind,
            rotary: 2 * columns.copied().unwrap_or(0),
            queries: self.queries,
            keys: self.keys,
            norms: self.norms,
        }
    }

    pub(super) fn plain(&self, xs: &Tensor) -> Result<Tensor> {
        let rotated = self.queries + self.keys;
        let mut turned = xs.narrow(1, 0, rotated)?;
        if let Some(norms) = self.norms {
            let queries = xs.narrow(1, 0, self.queries)?;
            let keys = xs.narrow(1, self.queries, self.keys)?;
            let queries = rms_norm_slow(&queries, &norms.query, norms.eps)?;
            let keys = rms_norm_slow(&keys, &norms.key, norms.eps)?;
            turned = Tensor::cat(&[queries, keys], 1)?;
        }
        if let Some((cos, sin)) = &self.angles {
            turned = rotate_slow(self.kind, &turned, cos, sin)?;
        }
        let others = xs.narrow(1, rotated, xs.dim(1)? - rotated)?;
        Tensor::cat(&[turned, others], 1)
    }
}
