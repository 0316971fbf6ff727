//! A KV cache that grows with the sequence and can be cloned.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_nn::kv_cache::Cache;
use candle_nn::rotary_emb::rope_append;

use super::RotaryPairs;

/// The dimension of the sequence in `(b, heads, seq, head_dim)`.
const SEQ_DIM: usize = 2;
/// The initial capacity. A model's whole context can be gigabytes, but most conversations are short.
const INITIAL_LEN: usize = 512;

/// The keys and values of one layer, in one buffer that doubles when it is full.
///
/// The heads of the keys come first, then those of the values, so that a step adds both in one copy. Appending writes
/// into the buffer in place, so a clone, which shares the buffer, copies it on the first append to either.
#[derive(Debug, Clone)]
pub struct GrowingKvCache {
    limit: usize,
    cache: Option<Cache>,
    /// Cloned with the cache: a count above 1 means that another cache shares the buffer.
    owner: Arc<()>,
}

impl GrowingKvCache {
    /// An empty cache, which allocates nothing yet. `limit` is the longest sequence expected: doubling stops there.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            cache: None,
            owner: Arc::new(()),
        }
    }

    /// How many positions are held.
    pub fn len(&self) -> usize {
        self.cache.as_ref().map_or(0, Cache::current_seq_len)
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many positions fit before the buffer grows.
    pub fn capacity(&self) -> usize {
        self.cache.as_ref().map_or(0, Cache::max_seq_len)
    }

    /// Forgets everything. A sequence of another batch size may follow.
    pub fn reset(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Adds keys and values, side by side in `kv` of shape `(b, 2 * kv_heads, t, head_dim)`, in any layout. Returns all that are
    /// held as a view of shape `(b, 2 * kv_heads, len, head_dim)`.
    ///
    /// # Errors
    /// If the shape does not fit what is held, or there is no memory.
    pub fn append(&mut self, kv: &Tensor) -> Result<Tensor> {
        self.with_room(kv)?.append(&kv.contiguous()?)?;
        self.held()
    }

    /// Rotates the queries and keys of `qkv`, `(b, heads + 2 * kv_heads, t, head_dim)` with the heads of the queries, the keys and
    /// the values one after another, in any layout, and adds the keys and values: one kernel, where the device has one for it.
    /// `cos` and `sin`, `(t, head_dim / 2)`, are the positions' rotary rows. Returns the queries, and all that are held as [`GrowingKvCache::append`] does.
    ///
    /// # Errors
    /// If the shapes do not fit each other or what is held, or there is no memory.
    pub fn append_rotated(
        &mut self,
        qkv: &Tensor,
        kv_heads: usize,
        (cos, sin): (&Tensor, &Tensor),
        pairs: RotaryPairs,
    ) -> Result<(Tensor, Tensor)> {
        let heads = qkv.dim(1)?;
        let kv = qkv.narrow(1, heads.saturating_sub(2 * kv_heads), 2 * kv_heads)?;
        let q = self.with_room(&kv)?.append_with(&kv, |buffer, start| {
            rope_append(qkv, cos, sin, pairs.into(), buffer, start)
        })?;
        Ok((q, self.held()?))
    }

    /// The buffer, with capacity for `kv` after the current contents.
    fn with_room(&mut self, kv: &Tensor) -> Result<&mut Cache> {
        let needed = self.len() + kv.dim(SEQ_DIM)?;
        let fits = self.cache.is_some() && needed <= self.capacity() && !self.is_shared();
        if !fits {
            let rehoused = rehouse(self.cache.as_ref(), needed, self.limit)?;
            self.owner = Arc::new(());
            self.cache = Some(rehoused);
        }
        match &mut self.cache {
            Some(cache) => Ok(cache),
            None => candle_core::bail!("the KV cache has no buffer"),
        }
    }

    fn held(&self) -> Result<Tensor> {
        match self.cache.as_ref().map(Cache::current_data).transpose()? {
            Some(Some(held)) => Ok(held),
            _ => candle_core::bail!("the KV cache is empty"),
        }
    }

    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.owner) > 1
    }
}

/// The contents of `old` in a new buffer with capacity for `needed` positions.
fn rehouse(old: Option<&Cache>, needed: usize, limit: usize) -> Result<Cache> {
    let doubled = needed.next_power_of_two().max(INITIAL_LEN);
    let mut cache = Cache::new(SEQ_DIM, doubled.min(limit).max(needed));
    if let Some(held) = old.map(Cache::current_data).transpose()?.flatten() {
        cache.append(&held.contiguous()?)?;
    }
    Ok(cache)
}
