//! The sizes of attention and its mask rules, for every backend's kernels.

use super::{Operand, SdpaParams};
use crate::backend::BackendStorage;
use crate::{DType, Error, Layout, Result};

const OP: &str = "sdpa";

/// Maximum distance and position that kernels distinguish, so that sums of them fit an i32.
pub(crate) const FAR: usize = 0x1fff_ffff;

/// The sizes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) head_dim: usize,
    pub(crate) v_dim: usize,
}

impl Sizes {
    /// Computes the sizes from q `(batch, heads, queries, dim)`, k `(batch, kv_heads, keys, dim)` and v `(batch, kv_heads, keys, v_dim)`.
    pub(crate) fn new(q_l: &Layout, k_l: &Layout, v_l: &Layout) -> Result<Self> {
        let (batch, heads, queries, head_dim) = q_l.shape().dims4()?;
        let (k_batch, kv_heads, keys, k_dim) = k_l.shape().dims4()?;
        let (_, _, _, v_dim) = v_l.shape().dims4()?;
        if v_l.dims()[..3] != k_l.dims()[..3]
            || (k_batch, k_dim) != (batch, head_dim)
            || kv_heads == 0
            || !heads.is_multiple_of(kv_heads)
        {
            crate::bail!(
                "sdpa expects q (batch, heads, queries, dim), k (batch, kv_heads, keys, dim) and v (batch, kv_heads, keys, v_dim), \
                 heads a multiple of kv_heads; got {:?}, {:?} and {:?}",
                q_l.shape(),
                k_l.shape(),
                v_l.shape()
            );
        }
        if keys == 0 && queries * batch * heads > 0 {
            return Err(Error::EmptyTensor { op: OP }.bt());
        }
        Ok(Self {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            v_dim,
        })
    }

    /// Query heads that share keys and values.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Queries that share keys and values: the rows that are divided into tiles.
    pub(crate) fn sharing(&self) -> usize {
        self.group() * self.queries
    }

    /// Number of blocks that each process `tile` of those rows.
    pub(crate) fn blocks(&self, tile: usize) -> usize {
        self.batch * self.kv_heads * self.sharing().div_ceil(tile)
    }

    /// Queries over all heads.
    pub(crate) fn rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }
}

/// The keys that a query sees and the terms added to their scores: the values that kernels are specialised for. `E` is a backend's element
/// type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rules<E> {
    pub(crate) softcap: bool,
    /// The last query is at the last key, and keys after a query are hidden.
    pub(crate) causal: bool,
    /// Keys too far back are hidden.
    pub(crate) left: bool,
    /// Keys too far ahead are hidden, by another rule than `causal`.
    pub(crate) right: bool,
    pub(crate) starts: bool,
    pub(crate) lens: bool,
    /// Positions of a page, where keys are in pages.
    pub(crate) page: Option<u32>,
    pub(crate) slopes: bool,
    pub(crate) sinks: bool,
    /// The element type of the bias.
    pub(crate) bias: Option<E>,
    /// A row may have all keys hidden.
    pub(crate) blind: bool,
}

impl<E: Copy> Rules<E> {
    /// The rules of a call; `elem` maps a float dtype to the backend's element type.
    pub(crate) fn new<S: BackendStorage>(
        params: &SdpaParams<'_, S>,
        sizes: &Sizes,
        elem: impl Fn(DType) -> Result<E>,
    ) -> Result<Self> {
        let at_the_end = params.starts.is_none() && sizes.queries <= sizes.keys;
        let causal = at_the_end && params.right == Some(0);
        let dims = [sizes.batch, sizes.heads, sizes.queries, sizes.keys];
        let bias = match params.bias {
            Some((bias, layout)) if layout.dims() == dims => Some(elem(bias.dtype())?),
            Some((_, layout)) => crate::bail!(
                "sdpa: a bias of shape {:?} does not match {dims:?}",
                layout.shape()
            ),
            None => None,
        };
        for (name, vector, len, dtype) in [
            ("slopes", params.slopes, sizes.heads, DType::F32),
            ("sinks", params.sinks, sizes.heads, DType::F32),
            ("starts", params.starts, sizes.batch, DType::U32),
            ("lens", params.lens, sizes.batch, DType::U32),
        ] {
            let Some((storage, layout)) = vector else {
                continue;
            };
            let fits = layout.dims() == [len] && layout.is_contiguous();
            if !fits || storage.dtype() != dtype {
                crate::bail!(
                    "sdpa: {name} are {:?} of {:?}; expected {len} contiguous elements of {dtype:?}",
                    layout.shape(),
                    storage.dtype()
                )
            }
        }
        if let Some(pages) = params.pages {
            let (table, layout) = pages.table;
            let fits = matches!(layout.dims(), [batch, columns]
                if *batch == sizes.batch && columns.saturating_mul(pages.page) >= sizes.keys);
            let whole = pages.page.is_power_of_two() && pages.count > 0;
            if !(fits && whole && layout.is_contiguous()) || table.dtype() != DType::U32 {
                crate::bail!(
                    "sdpa: a table of {} pages of {} keys is {:?} of {:?}; expected contiguous u32 with a row for each of {} and columns \
                     for {} keys",
                    pages.count,
                    pages.page,
                    layout.shape(),
                    table.dtype(),
                    sizes.batch,
                    sizes.keys
                )
            }
        }
        if let (Some((slopes, _)), Some((sinks, _))) = (params.slopes, params.sinks) {
            if !std::ptr::eq(slopes, sinks) {
                crate::bail!("sdpa: slopes and sinks must be parts of one storage")
            }
        }
        // A single query at the last key sees all earlier keys.
        let to_the_end = at_the_end && sizes.queries == 1 && params.right.is_some();
        let by_distance = params.left.is_some() || params.right.is_some();
        Ok(Self {
            softcap: params.softcap.is_some(),
            causal,
            left: params.left.is_some(),
            right: params.right.is_some() && !causal && !to_the_end,
            starts: params.starts.is_some(),
            lens: params.lens.is_some(),
            page: params.pages.map(|pages| pages.page as u32),
            slopes: params.slopes.is_some(),
            sinks: params.sinks.is_some(),
            bias,
            blind: bias.is_some() || params.lens.is_some() || by_distance && !at_the_end,
        })
    }
}

/// A call whose arguments fit each other. `E` is a backend's element type.
pub(crate) struct Call<'a, S, E> {
    /// q, k, v.
    pub(crate) inputs: [Operand<'a, S>; 3],
    pub(crate) sizes: Sizes,
    pub(crate) params: SdpaParams<'a, S>,
    pub(crate) rules: Rules<E>,
    /// Element types of the queries and the result, and of keys and values.
    pub(crate) elems: [E; 2],
}

impl<'a, S: BackendStorage, E: Copy> Call<'a, S, E> {
    /// `elem` maps a float dtype to the backend's element type.
    pub(crate) fn new(
        inputs: [Operand<'a, S>; 3],
        params: SdpaParams<'a, S>,
        elem: impl Fn(DType) -> Result<E>,
    ) -> Result<Self> {
        let [(q, q_l), (k, k_l), (v, v_l)] = inputs;
        let sizes = Sizes::new(q_l, k_l, v_l)?;
        let elems = [elem(q.dtype())?, elem(k.dtype())?];
        if v.dtype() != k.dtype() {
            let (lhs, rhs) = (k.dtype(), v.dtype());
            return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op: OP }.bt());
        }
        Ok(Self {
            inputs,
            sizes,
            params,
            rules: Rules::new(&params, &sizes, elem)?,
            elems,
        })
    }

    /// `run` of this call, after a copy of each input whose elements are not contiguous in a head, which kernels require.
    pub(crate) fn with_contiguous_heads(
        self,
        copied: impl Fn(&S, &Layout) -> Result<S>,
        run: impl FnOnce(&Call<'_, S, E>) -> Result<S>,
    ) -> Result<S> {
        let mut copies = [const { None }; 3];
        for (copy, (storage, layout)) in copies.iter_mut().zip(self.inputs) {
            if layout.stride()[3] != 1 && layout.dims()[3] != 1 {
                let copy_l = Layout::contiguous(layout.shape());
                *copy = Some((copied(storage, layout)?, copy_l));
            }
        }
        let input = |i: usize| copies[i].as_ref().map_or(self.inputs[i], |(s, l)| (s, l));
        run(&Call {
            inputs: [input(0), input(1), input(2)],
            ..self
        })
    }

    /// Maximum number of keys that `queries` neighbours see.
    pub(crate) fn span(&self, queries: usize) -> usize {
        let keys = self.sizes.keys;
        match (self.params.left, self.params.right) {
            (Some(left), Some(right)) => {
                keys.min(left.saturating_add(right).saturating_add(queries))
            }
            _ => keys,
        }
    }

    /// `params.left` or `params.right` for kernels.
    pub(crate) fn distance(limit: Option<usize>) -> u32 {
        limit.unwrap_or(0).min(FAR) as u32
    }
}
