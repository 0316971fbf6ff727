//! A KV cache that grows with the sequence and can be cloned.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_nn::kv_cache::KvCache;

/// The dimension of the sequence in `(b, kv_heads, seq, head_dim)`.
const SEQ_DIM: usize = 2;
/// Room made at first. A model's whole context can be gigabytes, most conversations are short.
const INITIAL_LEN: usize = 512;

/// The keys and values of one layer, in one buffer each that doubles when it is full.
///
/// Appending writes into the buffers in place, so a clone, which starts with the same buffers, takes its own on the
/// first append to either.
#[derive(Debug, Clone)]
pub struct GrowingKvCache {
    limit: usize,
    cache: Option<KvCache>,
    /// Cloned with the cache: a count above 1 says that another cache writes to the same buffers.
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
        self.cache.as_ref().map_or(0, KvCache::current_seq_len)
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many positions fit before the buffers grow.
    pub fn capacity(&self) -> usize {
        self.cache
            .as_ref()
            .map_or(0, |cache| cache.k_cache().max_seq_len())
    }

    /// Forgets everything. A sequence of another batch size may follow.
    pub fn reset(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Adds keys and values of shape `(b, kv_heads, t, head_dim)`, in any layout, and returns all that are held as
    /// views of shape `(b, kv_heads, len, head_dim)`.
    ///
    /// # Errors
    /// If the shapes do not fit each other or what is held, or there is no memory.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let needed = self.len() + k.dim(SEQ_DIM)?;
        let fits = needed <= self.capacity() && !self.is_shared();
        let cache = match &mut self.cache {
            Some(cache) if fits => cache,
            old => {
                let rehoused = rehouse(old.as_ref(), needed, self.limit)?;
                self.owner = Arc::new(());
                old.insert(rehoused)
            }
        };
        cache.append(&k.contiguous()?, &v.contiguous()?)
    }

    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.owner) > 1
    }
}

/// The contents of `old` in new buffers with room for `needed` positions.
fn rehouse(old: Option<&KvCache>, needed: usize, limit: usize) -> Result<KvCache> {
    let doubled = needed.next_power_of_two().max(INITIAL_LEN);
    let mut cache = KvCache::new(SEQ_DIM, doubled.min(limit).max(needed));
    if let Some(old) = old {
        if let (Some(k), Some(v)) = (old.k()?, old.v()?) {
            cache.append(&k.contiguous()?, &v.contiguous()?)?;
        }
    }
    Ok(cache)
}
