//! Caches that keep the last tokens and overwrite older ones.

use super::buffer;
use candle_core::{Device, Result, Tensor};

/// One tensor that keeps the last `max_seq_len` entries along a dimension, in a ring.
///
/// The entries are not in order after the ring has wrapped around: [`RotatingCache::positions`] gives their positions,
/// and [`RotatingCache::attn_mask`] what a query may see. Clones share the buffer: append to one of them only.
#[derive(Clone, Debug)]
pub struct RotatingCache {
    all_data: Option<Tensor>,
    dim: usize,
    /// The index of the next entry.
    offset: usize,
    current_seq_len: usize,
    max_seq_len: usize,
}

impl RotatingCache {
    /// An empty cache for the last `max_seq_len` entries along `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            all_data: None,
            dim,
            offset: 0,
            current_seq_len: 0,
            max_seq_len,
        }
    }

    /// The slot that the next entry goes to.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The dimension along which entries are appended.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of appended entries, overwritten ones included.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Maximum number of entries.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The whole ring, including the unused part.
    pub fn all_data(&self) -> &Option<Tensor> {
        &self.all_data
    }

    /// The contents, as a view of the ring; `None` if nothing was appended yet.
    ///
    /// # Errors
    /// None that appended data could cause.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let len = self.current_seq_len.min(self.max_seq_len);
        self.all_data
            .as_ref()
            .map(|data| data.narrow(self.dim, 0, len))
            .transpose()
    }

    /// Empties the cache and drops its buffer.
    pub fn reset(&mut self) {
        self.offset = 0;
        self.current_seq_len = 0;
        self.all_data = None;
    }

    /// Appends `src`, and returns what its tokens attend to: the ring, or `src` itself if it fills the ring, since its first
    /// tokens see others of it that are then no longer kept.
    ///
    /// # Errors
    /// The other dimensions, the dtype or the device of `src` are not those of what is there, or the cache keeps nothing.
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        let seq_len = src.dim(self.dim)?;
        let max = self.max_seq_len;
        if max == 0 {
            candle_core::bail!(
                "kv-cache: cannot append {seq_len} positions to a rotating cache of size 0"
            )
        }
        let ring = match &self.all_data {
            Some(ring) => ring,
            None => self.all_data.insert(buffer(src, self.dim, max)?),
        };
        if seq_len >= max {
            let kept = src.narrow(self.dim, seq_len - max, max)?;
            ring.slice_set(&kept.contiguous()?, self.dim, 0)?;
            self.offset = 0;
            self.current_seq_len += seq_len;
            return Ok(src.clone());
        }
        // The rest wraps around to the start of the ring.
        let head = seq_len.min(max - self.offset);
        for (start, len, slot) in [(0, head, self.offset), (head, seq_len - head, 0)] {
            if len > 0 {
                let part = src.narrow(self.dim, start, len)?;
                ring.slice_set(&part.contiguous()?, self.dim, slot)?;
            }
        }
        self.offset = (self.offset + seq_len) % max;
        self.current_seq_len += seq_len;
        ring.narrow(self.dim, 0, self.current_seq_len.min(max))
    }

    /// The positions, counted from the first token ever appended, of what [`RotatingCache::append`] will return for `seq_len`
    /// tokens, in its order.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let total = self.current_seq_len + seq_len;
        let max = self.max_seq_len;
        if seq_len >= max {
            return (self.current_seq_len..total).collect();
        }
        // The newest token is in the slot before `end`; going back from there, tokens get older by one.
        let end = self.offset + seq_len;
        let age = |slot: usize| (end + max - 1 - slot) % max;
        (0..total.min(max))
            .map(|slot| total - 1 - age(slot))
            .collect()
    }

    /// The mask for `seq_len` tokens over what [`RotatingCache::append`] will return for them, to be asked for before it is
    /// called: of dtype u8 and shape (seq_len, entries), 1 where an entry is hidden because it is younger than the token or
    /// more than `max_seq_len` older. `None` for a single token, which sees everything.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        if seq_len == 1 {
            return Ok(None);
        }
        let entries = self.positions(seq_len);
        let mut mask = Vec::with_capacity(seq_len * entries.len());
        for token in self.current_seq_len..self.current_seq_len + seq_len {
            let hidden = |&entry: &usize| entry > token || entry + self.max_seq_len < token;
            mask.extend(entries.iter().map(|entry| u8::from(hidden(entry))));
        }
        Tensor::from_vec(mask, (seq_len, entries.len()), device).map(Some)
    }
}

/// The [`RotatingCache`] of the keys and that of the values.
#[derive(Clone, Debug)]
pub struct RotatingKvCache {
    k: RotatingCache,
    v: RotatingCache,
}

impl RotatingKvCache {
    /// An empty cache for the last `max_seq_len` tokens along `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        let cache = RotatingCache::new(dim, max_seq_len);
        Self {
            k: cache.clone(),
            v: cache,
        }
    }

    /// The cache of the keys.
    pub fn k_cache(&self) -> &RotatingCache {
        &self.k
    }

    /// The cache of the values.
    pub fn v_cache(&self) -> &RotatingCache {
        &self.v
    }

    /// The cache of the keys.
    pub fn k_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.k
    }

    /// The cache of the values.
    pub fn v_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.v
    }

    /// The keys; `None` if nothing was appended yet.
    ///
    /// # Errors
    /// None that appended data could cause.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// The values; `None` if nothing was appended yet.
    ///
    /// # Errors
    /// None that appended data could cause.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// Appends to both, and returns the keys and values that these tokens attend to.
    ///
    /// # Errors
    /// Those of [`RotatingCache::append`].
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.k.append(k)?, self.v.append(v)?))
    }

    /// The slot that the next token goes to.
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// Number of appended tokens, overwritten ones included.
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// [`RotatingCache::attn_mask`] of the keys.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// [`RotatingCache::positions`] of the keys.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }

    /// Empties the cache and drops its buffers.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}
