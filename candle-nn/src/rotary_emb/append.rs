//! Rotates queries and keys and appends keys and values to a cache.

use super::heads::Checked;
use super::{Pairs, Rotation};
use crate::ops::{check_dtypes, in_graph, on_devices, same_backend, with_fused, zeros_of};
use candle_core::fused::{Fused, Operand, RopeCache, RopePosition};
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor};

/// The index of new keys and values in a cache. Not in upstream's interface.
#[derive(Clone, Copy, Debug)]
pub enum CachePosition<'a> {
    /// The same first index for all sequences of the batch.
    Same(usize),
    /// A first index per sequence: (batch), u32, on the cache's device. Sequences of different lengths can form one batch.
    PerRow(&'a Tensor),
    /// Each new position to a separate place: (batch, seq), u32, on the cache's device. All sequences share one cache, whose batch is 1.
    Each(&'a Tensor),
}

impl From<usize> for CachePosition<'_> {
    fn from(position: usize) -> Self {
        Self::Same(position)
    }
}

impl<'a> From<&'a Tensor> for CachePosition<'a> {
    fn from(positions: &'a Tensor) -> Self {
        Self::PerRow(positions)
    }
}

/// [`rope_append_with`] for a rotation without norms, to one position.
///
/// # Errors
/// Those of [`rope_append_with`].
pub fn rope_append(
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    pairs: Pairs,
    cache: &Tensor,
    position: usize,
) -> Result<Tensor> {
    rope_append_with(xs, &Rotation::new(cos, sin, pairs), cache, position)
}

/// The plain form of [`rope_append`].
///
/// # Errors
/// Those of [`rope_append`].
pub fn rope_append_slow(
    xs: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    pairs: Pairs,
    cache: &Tensor,
    position: usize,
) -> Result<Tensor> {
    rope_append_with_slow(xs, &Rotation::new(cos, sin, pairs), cache, position)
}

/// Applies `rotation` to the queries and keys of `xs`, (batch, queries + 2 * kv_heads, seq, head_dim): first the heads of the queries, then
/// those of the keys, then those of the values. Writes keys and values to `cache`, (batch, 2 * kv_heads, capacity, head_dim), in place,
/// starting at `position`. Returns the queries, (batch, queries, seq, head_dim).
///
/// The cache may have another float dtype than `xs`, such as f16 for `xs` in f32; keys and values are rounded to it. One kernel on a WebGPU
/// device. Not in upstream's interface.
///
/// # Errors
/// Those of [`super::rope_heads_with`], or `cache` is not contiguous, does not fit `xs`, or ends before. Positions that are on a
/// GPU are checked there: one that is too large is not written, and the error comes with the next value that is read back.
pub fn rope_append_with<'a>(
    xs: &Tensor,
    rotation: &Rotation<'_>,
    cache: &Tensor,
    position: impl Into<CachePosition<'a>>,
) -> Result<Tensor> {
    let append = Append::new(xs, rotation, cache, position.into())?;
    if xs.elem_count() == 0 {
        return zeros_of(append.queries_shape(xs)?, xs, &append.heads.tensors(xs));
    }
    if append.heads.takes_plain_form(xs) || in_graph(&[cache]) {
        return append.plain(xs);
    }
    let (cos, sin) = append.heads.cos_sin(xs);
    if append.has_kernel([xs, cos, sin]) {
        return xs.apply_op3_no_bwd(cos, sin, &append);
    }
    append.finish(xs.apply_op3_no_bwd(cos, sin, &append.heads.rope())?)
}

/// The plain form of [`rope_append_with`].
///
/// # Errors
/// Those of [`rope_append_with`].
pub fn rope_append_with_slow<'a>(
    xs: &Tensor,
    rotation: &Rotation<'_>,
    cache: &Tensor,
    position: impl Into<CachePosition<'a>>,
) -> Result<Tensor> {
    Append::new(xs, rotation, cache, position.into())?.plain(xs)
}

/// A call whose arguments fit each other.
struct Append<'a> {
    heads: Checked<'a>,
    queries: usize,
    cache: &'a Tensor,
    position: CachePosition<'a>,
}

impl<'a> Append<'a> {
    fn new(
        xs: &Tensor,
        rotation: &Rotation<'a>,
        cache: &'a Tensor,
        position: CachePosition<'a>,
    ) -> Result<Self> {
        let (batch, heads, seq, dim) = xs.dims4()?;
        let (cache_batch, kv_heads, capacity, cache_dim) = cache.dims4()?;
        let from = match position {
            CachePosition::Same(position) => position,
            CachePosition::PerRow(_) | CachePosition::Each(_) => 0,
        };
        let (batches, longest) = match position {
            CachePosition::Each(_) => (1, 0),
            _ => (batch, seq),
        };
        let fits = (batches, dim) == (cache_batch, cache_dim)
            && kv_heads <= heads
            && kv_heads.is_multiple_of(2)
            && longest <= capacity
            && from <= capacity - longest
            && cache.is_contiguous();
        if !fits {
            candle_core::bail!(
                "{NAME}: keys and values of {:?} do not fit into a cache of {:?} (batch, 2 * kv_heads, capacity, head_dim), \
                 contiguous: {}, from {from} on",
                xs.dims(),
                cache.dims(),
                cache.is_contiguous()
            )
        }
        if let CachePosition::PerRow(positions) = position {
            if positions.dims() != [batch] || positions.dtype() != DType::U32 {
                candle_core::bail!(
                    "{NAME}: positions are {:?} {:?}; for a batch of {batch} they must be ({batch}) of U32",
                    positions.dtype(),
                    positions.dims()
                )
            }
        }
        if let CachePosition::Each(places) = position {
            if places.dims() != [batch, seq] || places.dtype() != DType::U32 {
                candle_core::bail!(
                    "{NAME}: places are {:?} {:?}; for {seq} positions of a batch of {batch} they must be ({batch}, {seq}) of U32",
                    places.dtype(),
                    places.dims()
                )
            }
        }
        check_dtypes(NAME, &[cache])?;
        let queries = heads - kv_heads;
        Ok(Self {
            heads: Checked::new(xs, rotation, queries, kv_heads / 2)?,
            queries,
            cache,
            position,
        })
    }

    fn queries_shape(&self, xs: &Tensor) -> Result<Shape> {
        let (batch, _, seq, dim) = xs.dims4()?;
        Ok(Shape::from((batch, self.queries, seq, dim)))
    }

    fn plain(&self, xs: &Tensor) -> Result<Tensor> {
        self.finish(self.heads.plain(xs)?)
    }

    /// Writes the keys and values of all heads to the cache; returns the queries.
    fn finish(&self, heads: Tensor) -> Result<Tensor> {
        let new = heads.narrow(1, self.queries, heads.dim(1)? - self.queries)?;
        if new.elem_count() > 0 {
            self.write(&new.to_dtype(self.cache.dtype())?.contiguous()?)?;
        }
        heads.narrow(1, 0, self.queries)?.contiguous()
    }

    fn write(&self, new: &Tensor) -> Result<()> {
        let (batch, _, seq, _) = new.dims4()?;
        let positions = match self.position {
            CachePosition::Same(position) => return self.cache.slice_set(new, 2, position),
            CachePosition::PerRow(positions) => positions,
            CachePosition::Each(places) => return self.write_each(new, places),
        };
        let last = self.cache.dim(2)? - seq;
        if new.device().is_cpu() {
            let positions = positions.to_vec1::<u32>()?;
            // All positions are checked before the first write: an error leaves the cache unchanged.
            if let Some(position) = positions.iter().find(|&&position| position as usize > last) {
                return Err(candle_core::Error::InvalidIndex {
                    op: NAME,
                    index: *position as usize,
                    size: last + 1,
                }
                .bt());
            }
            for (row, position) in positions.into_iter().enumerate() {
                let cache = self.cache.narrow(0, row, 1)?;
                cache.slice_set(&new.narrow(0, row, 1)?, 2, position as usize)?;
            }
            return Ok(());
        }
        // Past the end, but not so far that the sum would start over: scatter_set reports it.
        let end = Tensor::new(last as u32 + 1, new.device())?;
        let steps = Tensor::arange(0, seq as u32, new.device())?.reshape((1, 1, seq, 1))?;
        let first = positions
            .broadcast_minimum(&end)?
            .reshape((batch, 1, 1, 1))?;
        let places = first.broadcast_add(&steps)?.broadcast_as(new.shape())?;
        self.cache.scatter_set(&places.contiguous()?, new, 2)
    }

    /// Writes each position of `new` to its place in the one cache of all sequences.
    fn write_each(&self, new: &Tensor, places: &Tensor) -> Result<()> {
        let (batch, heads, seq, dim) = new.dims4()?;
        if !new.device().is_cpu() {
            let new = new.transpose(0, 1)?.reshape((1, heads, batch * seq, dim))?;
            let places = places.reshape((1, 1, batch * seq, 1))?;
            let places = places.broadcast_as(new.shape())?.contiguous()?;
            return self.cache.scatter_set(&places, &new.contiguous()?, 2);
        }
        let capacity = self.cache.dim(2)?;
        let places = places.to_vec2::<u32>()?;
        if let Some(place) = places.iter().flatten().find(|it| **it as usize >= capacity) {
            return Err(candle_core::Error::InvalidIndex {
                op: NAME,
                index: *place as usize,
                size: capacity,
            }
            .bt());
        }
        for (row, places) in places.iter().enumerate() {
            let new = new.narrow(0, row, 1)?;
            let mut first = 0;
            // Neighbours are written at once.
            for run in places.chunk_by(|a, b| a + 1 == *b) {
                let part = new.narrow(2, first, run.len())?.contiguous()?;
                self.cache.slice_set(&part, 2, run[0] as usize)?;
                first += run.len();
            }
        }
        Ok(())
    }

    /// Whether one kernel does all of it: on a device that has it, where it takes the arguments and reads nothing that it writes.
    fn has_kernel(&self, [xs, cos, sin]: [&Tensor; 3]) -> bool {
        with_fused!(xs.device(), S => self.fits::<S>([xs, cos, sin]), else false)
    }

    fn fits<S: Fused>(&self, inputs: [&Tensor; 3]) -> bool {
        let inputs = inputs.map(|tensor| tensor.storage_and_layout().0);
        let (cache, _) = self.cache.storage_and_layout();
        let [x, cos, sin] = inputs.each_ref().map(|input| S::of(input));
        let apart = !inputs.iter().any(|input| std::ptr::eq(&**input, &*cache));
        match (x, cos, sin, S::of(&cache)) {
            (Some(x), Some(cos), Some(sin), Some(cache)) => {
                apart && S::rope_append_fits([x, cos, sin, cache])
            }
            _ => false,
        }
    }
}

const NAME: &str = "rope-append";

impl CustomOp3 for Append<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("{NAME}: the CPU composes this from other ops")
    }

    on_devices!(x x_l, cos cos_l, sin sin_l);
}

impl Append<'_> {
    fn on_device<S: Fused>(&self, inputs: [Operand<'_, S>; 3]) -> Result<(S, Shape)> {
        let (batch, _, seq, dim) = inputs[0].1.shape().dims4()?;
        let (cache, cache_l) = self.cache.storage_and_layout();
        let cache = same_backend::<S>(&cache, NAME, "cache")?;
        let positions = match self.position {
            CachePosition::Same(_) => None,
            CachePosition::PerRow(positions) | CachePosition::Each(positions) => {
                Some(positions.storage_and_layout())
            }
        };
        let position = match (self.position, &positions) {
            (CachePosition::Same(position), _) => RopePosition::Same(position),
            (position, Some((positions, layout))) => {
                let positions = (same_backend::<S>(positions, NAME, "positions")?, *layout);
                match position {
                    CachePosition::Each(_) => RopePosition::Each(positions),
                    _ => RopePosition::PerRow(positions),
                }
            }
            _ => candle_core::bail!("{NAME}: no positions"),
        };
        let into = RopeCache {
            cache: (cache, cache_l),
            position,
        };
        let rope = self.heads.rope();
        let dst = rope.with_rotation(|rotation| S::rope_append(inputs, rotation, into))?;
        Ok((dst, Shape::from((batch, self.queries, seq, dim))))
    }
}
