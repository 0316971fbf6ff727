//! A KV cache that grows with the sequence and can be cloned.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::kv_cache::Cache;
use candle_nn::rotary_emb::{rope_append_with, Rotation};

use super::paged::PageRows;

/// The dimension of the sequence in `(b, heads, seq, head_dim)`.
const SEQ_DIM: usize = 2;
/// The initial capacity. A model's whole context can be gigabytes, but most conversations are short.
const INITIAL_LEN: usize = 512;

/// The positions of a batch's sequences, shared by all layers of a call.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The position of each sequence's first new token: `(b)`, u32.
    pub starts: Tensor,
    /// The largest of them.
    pub longest: usize,
    /// Their indices among the cache's sequences; `None` for all.
    pub part: Option<Part>,
    /// Where their positions are, if the cache is a pool of pages.
    pub pages: Option<PageRows>,
    /// Each of them.
    pub each: Vec<Row>,
}

/// One sequence of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The position of its first new token.
    pub start: usize,
    /// Number of its new tokens; 0 where the row is only between others.
    pub count: usize,
}

impl Row {
    /// The sequences that begin at `starts` and have `counts` new tokens.
    pub fn each(starts: &[usize], counts: &[usize]) -> Vec<Self> {
        let rows = starts.iter().zip(counts);
        rows.map(|(&start, &count)| Self { start, count }).collect()
    }
}

/// Neighbours among the sequences of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The first of them.
    pub first: usize,
    /// Number of sequences of the cache.
    pub of: usize,
}

/// The keys and values of one layer, in one buffer that doubles when it is full. For a layer with a window, growing also drops the entries
/// that no later position sees.
///
/// The heads of the keys come first, then those of the values, so that a step adds both in one copy. Appending writes
/// into the buffer in place, so a clone, which shares the buffer, copies it on the first append to either.
#[derive(Debug, Clone)]
pub struct GrowingKvCache {
    limit: usize,
    window: Option<usize>,
    dtype: Option<DType>,
    /// Positions that were forgotten.
    forgotten: usize,
    cache: Option<Cache>,
    /// The keys and values of sequences in pages, which have no `cache`: `(1, 2 * kv_heads, positions, head_dim)`.
    pub(super) pool: Option<Tensor>,
    /// Cloned with the cache: a count above 1 means that another cache shares the buffer.
    owner: Arc<()>,
}

impl GrowingKvCache {
    /// An empty cache, which allocates nothing yet. `limit` is the longest sequence expected: doubling stops there.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            window: None,
            dtype: None,
            forgotten: 0,
            cache: None,
            pool: None,
            owner: Arc::new(()),
        }
    }

    /// As [`new`](Self::new), for a layer in which a position sees `window` positions, itself among them.
    pub fn with_window(limit: usize, window: Option<usize>) -> Self {
        Self {
            window,
            ..Self::new(limit)
        }
    }

    /// Stores new entries as `dtype` from now on, such as f16 for activations of f32; `None` means the dtype of the entries. Existing
    /// entries are converted when the buffer grows.
    pub fn set_dtype(&mut self, dtype: Option<DType>) {
        self.dtype = dtype;
    }

    /// Number of positions added since the last reset; without a window, all of them are held.
    pub fn seen(&self) -> usize {
        self.forgotten + self.len()
    }

    /// Number of held positions.
    pub fn len(&self) -> usize {
        self.cache.as_ref().map_or(0, Cache::current_seq_len)
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of positions that fit before the buffer grows.
    pub fn capacity(&self) -> usize {
        self.cache.as_ref().map_or(0, Cache::max_seq_len)
    }

    /// The capacity that is taken for `needed` positions, of at most `limit`.
    pub(super) fn capacity_for(needed: usize, limit: usize, window: Option<usize>) -> usize {
        let doubled = needed.next_power_of_two().max(INITIAL_LEN);
        // Twice the window, so that keeping costs no more than adding.
        let limit = match window {
            Some(window) => limit.min(window.saturating_mul(2).max(INITIAL_LEN)),
            None => limit,
        };
        doubled.min(limit).max(needed)
    }

    /// Forgets everything. A sequence of another batch size may follow.
    pub fn reset(&mut self) {
        let dtype = self.dtype;
        *self = Self {
            dtype,
            ..Self::with_window(self.limit, self.window)
        };
    }

    /// Whether the positions after the first `seen` can be forgotten: what the next one sees in its window has to be held still.
    pub(crate) fn can_truncate(&self, seen: usize) -> bool {
        let visible = self
            .window
            .map_or(seen, |window| seen.min(window.saturating_sub(1)));
        let held = seen.checked_sub(self.forgotten);
        seen <= self.seen() && held.is_some_and(|held| held >= visible)
    }

    /// Forgets the positions after the first `seen`.
    ///
    /// # Errors
    /// If it has seen fewer, or no longer holds what the next position sees in its window.
    pub fn truncate(&mut self, seen: usize) -> Result<()> {
        if !self.can_truncate(seen) {
            candle_core::bail!(
                "cannot truncate a KV cache with a window of {:?} to {seen} positions; it holds {} to {}",
                self.window,
                self.forgotten,
                self.seen()
            )
        }
        match &mut self.cache {
            Some(cache) => cache.set_seq_len(seen - self.forgotten),
            None => Ok(()),
        }
    }

    /// Appends keys and values, concatenated in `kv` of shape `(b, 2 * kv_heads, t, head_dim)`, in any layout. Returns all held keys and
    /// values as a view of shape `(b, 2 * kv_heads, len, head_dim)`.
    ///
    /// # Errors
    /// If the shape does not fit what is held, or there is no memory.
    pub fn append(&mut self, kv: &Tensor) -> Result<Tensor> {
        self.with_capacity(kv)?.append(&kv.contiguous()?)?;
        self.held()
    }

    /// Applies `rotation` to the queries and keys of `qkv`, `(b, heads + 2 * kv_heads, t, head_dim)`, with the heads of the queries first,
    /// then the keys', then the values', in any layout; and appends keys and values. One kernel, if the device has one for it. Returns the
    /// queries, and all held keys and values as [`GrowingKvCache::append`] does.
    ///
    /// With `rows`, each sequence's keys and values go to their own place. Positions of shorter sequences that are held and were not
    /// written are 0. With pages what is returned is the whole pool.
    ///
    /// # Errors
    /// If the shapes do not fit each other or what is held, or there is no memory.
    pub fn append_rotated(
        &mut self,
        qkv: &Tensor,
        kv_heads: usize,
        rotation: &Rotation<'_>,
        rows: Option<&Rows>,
    ) -> Result<(Tensor, Tensor)> {
        let heads = qkv.dim(1)?;
        let kv = qkv.narrow(1, heads.saturating_sub(2 * kv_heads), 2 * kv_heads)?;
        let Some(rows) = rows else {
            let q = self.with_capacity(&kv)?.append_with(&kv, |buffer, start| {
                rope_append_with(qkv, rotation, buffer, start)
            })?;
            return Ok((q, self.held()?));
        };
        if let Some(pages) = &rows.pages {
            return self.append_to_pool(qkv, rotation, pages);
        }
        let (b, _, t, _) = kv.dims4()?;
        let Part { first, of } = rows.part.unwrap_or(Part { first: 0, of: b });
        let needed = rows.longest + t;
        let q = self.write_rows(&kv, of, needed, |buffer| {
            let part = buffer.narrow(0, first, b)?;
            rope_append_with(qkv, rotation, &part, &rows.starts)
        })?;
        Ok((q, self.held_rows(first, b, needed)?))
    }

    /// Appends entries of shape `(b, heads, t, head_dim)`, those of each sequence behind its own. Returns what the sequences of `rows` hold, `(b, heads,
    /// positions, head_dim)`; what is behind a sequence's own positions has no meaning.
    ///
    /// # Errors
    /// If the shape does not fit what is held, the cache has pages, or there is no memory.
    pub fn append_rows(&mut self, kv: &Tensor, rows: &Rows) -> Result<Tensor> {
        if rows.pages.is_some() {
            candle_core::bail!("entries other than keys and values cannot be in pages")
        }
        let (b, _, t, _) = kv.dims4()?;
        let Part { first, of } = rows.part.unwrap_or(Part { first: 0, of: b });
        let needed = rows.longest + t;
        self.write_rows(kv, of, needed, |buffer| {
            for (i, row) in rows.each.iter().enumerate() {
                let new = kv.narrow(0, i, 1)?.contiguous()?;
                write_row(buffer, first + i, &new, row.start)?;
            }
            Ok(())
        })?;
        self.held_rows(first, b, needed)
    }

    /// The first positions of neighbouring sequences. What others have beyond these is hidden from them.
    fn held_rows(&self, first: usize, count: usize, positions: usize) -> Result<Tensor> {
        let held = self.held()?.narrow(0, first, count)?;
        held.narrow(SEQ_DIM, 0, positions)
    }

    /// Calls `write` with the buffer of `of` sequences, which has capacity for `needed` positions of each. `kv` is like their entries.
    fn write_rows<T>(
        &mut self,
        kv: &Tensor,
        of: usize,
        needed: usize,
        write: impl FnOnce(&Tensor) -> Result<T>,
    ) -> Result<T> {
        let held = self.len();
        let end = held.max(needed);
        if end > self.capacity() || self.is_shared() {
            // No window: what one sequence no longer needs, another one may.
            self.move_to_new_buffer(held, end - held)?;
        }
        // The keys and values of all sequences; only their shape is read.
        let (_, heads, t, head_dim) = kv.dims4()?;
        let all = kv.narrow(0, 0, 1)?.expand((of, heads, t, head_dim))?;
        self.buffer()?.write_until(&all, end, write)
    }

    /// Gives the sequence `to` the first `len` positions of the sequence `from`.
    ///
    /// # Errors
    /// If there are no such sequences, fewer positions, or no memory.
    pub fn copy_sequence(&mut self, from: usize, to: usize, len: usize) -> Result<()> {
        let held = self.len();
        if len > held {
            candle_core::bail!("cannot copy {len} positions of a sequence that holds {held}")
        }
        if len == 0 || from == to {
            return Ok(());
        }
        if self.is_shared() {
            self.move_to_new_buffer(held, 0)?;
        }
        let cache = self.buffer()?;
        let Some(buffer) = cache.all_data() else {
            candle_core::bail!("the KV cache has no buffer")
        };
        // The whole buffer: a part of the positions is not contiguous.
        buffer.slice_set(&buffer.narrow(0, from, 1)?.copy()?, 0, to)
    }

    /// The buffer, with capacity for `kv` after the current contents.
    fn with_capacity(&mut self, kv: &Tensor) -> Result<&mut Cache> {
        let added = kv.dim(SEQ_DIM)?;
        if self.len() + added > self.capacity() || self.is_shared() {
            // The first of the new positions sees those before it within the window.
            let kept = match self.window {
                Some(window) => self.len().min(window.saturating_sub(1)),
                None => self.len(),
            };
            self.move_to_new_buffer(kept, added)?;
        }
        self.buffer()
    }

    fn buffer(&mut self) -> Result<&mut Cache> {
        match &mut self.cache {
            Some(cache) => Ok(cache),
            None => candle_core::bail!("the KV cache has no buffer"),
        }
    }

    /// Keeps the last `kept` positions, in a new buffer with capacity for `added` more.
    fn move_to_new_buffer(&mut self, kept: usize, added: usize) -> Result<()> {
        let capacity = Self::capacity_for(kept + added, self.limit, self.window);
        let cache = Cache::new(SEQ_DIM, capacity);
        let mut cache = cache.with_dtype(self.dtype);
        if let Some(held) = self.contents()?.filter(|_| kept > 0) {
            let first = held.dim(SEQ_DIM)? - kept;
            cache.append(&held.narrow(SEQ_DIM, first, kept)?.contiguous()?)?;
        }
        self.forgotten += self.len() - kept;
        self.owner = Arc::new(());
        self.cache = Some(cache);
        Ok(())
    }

    /// A copy on `device` with room for `added` more positions. Entries are of `dtype` there. With `rows`, of the sequences and positions
    /// that they name.
    pub(super) fn copied_to(
        &self,
        device: &Device,
        dtype: DType,
        added: usize,
        rows: Option<&Rows>,
    ) -> Result<Self> {
        let held = match (self.contents()?, rows) {
            (_, Some(Rows { longest: 0, .. })) => None,
            (Some(held), Some(rows)) => {
                let b = rows.starts.elem_count();
                let first = rows.part.map_or(0, |part| part.first);
                Some(held.narrow(0, first, b)?.narrow(SEQ_DIM, 0, rows.longest)?)
            }
            (held, _) => held,
        };
        let held = held.filter(|held| held.elem_count() > 0);
        let len = held.as_ref().map_or(Ok(0), |held| held.dim(SEQ_DIM))?;
        let mut copy = Self {
            dtype: Some(dtype),
            forgotten: self.forgotten,
            ..Self::with_window(self.limit, self.window)
        };
        copy.move_to_new_buffer(0, len + added)?;
        if let Some(held) = held {
            let held = held.contiguous()?.to_device(device)?.to_dtype(dtype)?;
            copy.buffer()?.append(&held)?;
        }
        Ok(copy)
    }

    /// Takes `added` positions of each sequence from a copy that was made with these `rows`, which are on the host. `moved` brings them to
    /// the device and dtype of this cache's entries.
    pub(super) fn take_rows(
        &mut self,
        from: &Self,
        rows: &Rows,
        added: usize,
        moved: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let starts = rows.starts.to_vec1::<u32>()?;
        let first = starts.iter().copied().min().unwrap_or(0) as usize;
        let end = rows.longest + added;
        let new = from.held()?.narrow(SEQ_DIM, first, end - first)?;
        let new = moved(&new.contiguous()?)?;
        let of = new.dim(0)?;
        let part = rows.part.unwrap_or(Part { first: 0, of });
        self.write_rows(&new, part.of, end, |buffer| {
            for (row, start) in starts.iter().map(|start| *start as usize).enumerate() {
                let new = new.narrow(0, row, 1)?;
                let new = new.narrow(SEQ_DIM, start - first, added)?.contiguous()?;
                write_row(buffer, part.first + row, &new, start)?;
            }
            Ok(())
        })
    }

    /// The last `count` of the held positions; `None` if nothing is held.
    pub(super) fn last(&self, count: usize) -> Result<Option<Tensor>> {
        let Some(held) = self.contents()? else {
            return Ok(None);
        };
        let first = held.dim(SEQ_DIM)?.saturating_sub(count);
        Ok(Some(held.narrow(SEQ_DIM, first, count)?.contiguous()?))
    }

    /// All that are held, as [`append`](Self::append) returns them; `None` if nothing is.
    ///
    /// # Errors
    /// If the device fails.
    pub fn contents(&self) -> Result<Option<Tensor>> {
        let held = self.cache.as_ref().map(Cache::current_data).transpose()?;
        Ok(held.flatten())
    }

    fn held(&self) -> Result<Tensor> {
        match self.contents()? {
            Some(held) => Ok(held),
            None => candle_core::bail!("the KV cache is empty"),
        }
    }

    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.owner) > 1
    }
}

/// Writes entries, `(1, heads, t, head_dim)`, to a sequence of a buffer, from position `start` on.
fn write_row(buffer: &Tensor, sequence: usize, new: &Tensor, start: usize) -> Result<()> {
    let to = buffer.narrow(0, sequence, 1)?;
    to.slice_set(&new.to_dtype(buffer.dtype())?, SEQ_DIM, start)
}

/// For steps that a device has recorded.
#[cfg(feature = "cuda")]
impl GrowingKvCache {
    /// The pool; or the buffer, if positions are where their numbers say and no other cache has it.
    pub(crate) fn owned_buffer(&self) -> Option<&Tensor> {
        if self.pool.is_some() {
            return self.pool.as_ref();
        }
        let whole = self.forgotten == 0 && !self.is_shared();
        self.cache.as_ref().filter(|_| whole)?.all_data().as_ref()
    }

    /// Whether no position was forgotten.
    pub(crate) fn is_whole(&self) -> bool {
        self.forgotten == 0
    }

    /// Counts the first `len` positions as held; the device alone wrote the later ones. A pool has no count.
    pub(crate) fn set_len(&mut self, len: usize) -> Result<()> {
        match self.pool {
            Some(_) => Ok(()),
            None => self.buffer()?.set_seq_len(len),
        }
    }
}
