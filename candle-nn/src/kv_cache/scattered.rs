//! Caches for batches of sequences of different lengths, with a ring for each.

use candle_core::{bail, DType, Device, Result, Tensor};

/// The slots of a step's tokens and their mask: computed once by [`ScatteredCacheBuilder::indices_and_mask`] for the
/// caches of all layers.
#[derive(Clone, Debug)]
pub struct IndicesAndMask {
    /// The slot of each token, u32 (batch, seq).
    indices: Tensor,
    mask: Tensor,
}

impl IndicesAndMask {
    /// The mask to add to the scores: 0 where a token may see an entry, -infinity elsewhere; of shape (batch, 1, seq, context), or (seq,
    /// seq) for steps that fill the whole ring.
    pub fn mask(&self) -> &Tensor {
        &self.mask
    }
}

/// The keys and values of one layer: for each sequence of a batch a ring of its last entries.
#[derive(Clone, Debug)]
pub struct ScatteredKvCache {
    k: Tensor,
    v: Tensor,
    context: usize,
}

impl ScatteredKvCache {
    /// Puts keys and values (batch, heads, seq, head_dim) where `iam` says, and returns what their tokens attend to: the rings, or `k`
    /// and `v` themselves if they fill the rings.
    ///
    /// # Errors
    /// The shapes, dtypes or devices are not those of the cache and of `iam`.
    pub fn append(
        &mut self,
        k: &Tensor,
        v: &Tensor,
        iam: &IndicesAndMask,
    ) -> Result<(Tensor, Tensor)> {
        let seq_len = k.dim(2)?;
        if iam.indices.dim(1)? != seq_len {
            bail!(
                "kv-cache: {seq_len} tokens but indices for {}",
                iam.indices.dim(1)?
            )
        }
        // If several entries share a slot, the last one is kept.
        let kept = seq_len.min(self.context);
        let slots = iam.indices.narrow(1, seq_len - kept, kept)?;
        let slots = slots.unsqueeze(2)?.unsqueeze(1)?;
        for (ring, new) in [(&self.k, k), (&self.v, v)] {
            let new = new.narrow(2, seq_len - kept, kept)?.contiguous()?;
            let slots = slots.broadcast_as(new.shape())?.contiguous()?;
            ring.scatter_set(&slots, &new, 2)?;
        }
        if seq_len >= self.context {
            return Ok((k.clone(), v.clone()));
        }
        Ok((self.k.clone(), self.v.clone()))
    }

    /// The ring of the keys, (batch, heads, context, head_dim).
    pub fn k(&self) -> &Tensor {
        &self.k
    }

    /// The ring of the values, (batch, heads, context, head_dim).
    pub fn v(&self) -> &Tensor {
        &self.v
    }
}

/// Makes the [`ScatteredKvCache`] of each layer, and keeps track of how far each sequence of the batch is.
#[derive(Clone, Debug)]
pub struct ScatteredCacheBuilder {
    context: usize,
    /// Number of tokens of each sequence so far.
    positions: Vec<usize>,
    /// The slot of each sequence's next token.
    indices: Vec<usize>,
    dtype: DType,
    device: Device,
}

impl ScatteredCacheBuilder {
    /// A cache for `batch_size` sequences, which keeps the last `context` tokens of each.
    ///
    /// # Errors
    /// None.
    pub fn new(batch_size: usize, context: usize, dtype: DType, device: &Device) -> Result<Self> {
        Ok(Self {
            context,
            positions: vec![0; batch_size],
            indices: vec![0; batch_size],
            dtype,
            device: device.clone(),
        })
    }

    /// The cache of a layer, filled with zeros.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn make_cache(&self, num_heads: usize, head_dim: usize) -> Result<ScatteredKvCache> {
        let dims = (self.batch_size(), num_heads, self.context, head_dim);
        let ring = || Tensor::zeros(dims, self.dtype, &self.device);
        Ok(ScatteredKvCache {
            k: ring()?,
            v: ring()?,
            context: self.context,
        })
    }

    /// Number of tokens of each sequence so far.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// The device of caches and masks.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of sequences.
    pub fn batch_size(&self) -> usize {
        self.positions.len()
    }

    /// Resets all sequences. The contents of the caches are masked until they are overwritten.
    pub fn reset(&mut self) {
        self.positions.fill(0);
        self.indices.fill(0);
    }

    /// Resets the sequence `batch_index`.
    ///
    /// # Panics
    /// `batch_index` is out of range.
    pub fn reset_batch_index(&mut self, batch_index: usize) {
        self.positions[batch_index] = 0;
        self.indices[batch_index] = 0;
    }

    /// Slots and mask for a step of `seq_len` tokens, and moves on by as many in each sequence that `batch_mask` holds `true` for. The
    /// tokens of the others go to a slot that their next token overwrites, and may see everything.
    ///
    /// # Errors
    /// `batch_mask` is not as long as the batch, the caches keep nothing, or the device is out of memory.
    pub fn indices_and_mask(
        &mut self,
        seq_len: usize,
        batch_mask: &[bool],
    ) -> Result<IndicesAndMask> {
        let (batch, context) = (self.batch_size(), self.context);
        if batch_mask.len() != batch {
            bail!(
                "kv-cache: a batch mask of {} for {batch} sequences",
                batch_mask.len()
            )
        }
        if context == 0 {
            bail!("kv-cache: the caches have size 0")
        }
        let mut mask = Vec::with_capacity(batch * seq_len * context);
        let mut indices = Vec::with_capacity(batch * seq_len);
        for (b, &active) in batch_mask.iter().enumerate() {
            let (start, slot) = (self.positions[b], self.indices[b]);
            if !active {
                mask.resize(mask.len() + seq_len * context, 0f32);
                indices.resize(indices.len() + seq_len, slot as u32);
                continue;
            }
            indices.extend((0..seq_len).map(|i| ((slot + i) % context) as u32));
            self.positions[b] += seq_len;
            self.indices[b] = (slot + seq_len) % context;
            // The position of what each slot holds after this step, none for one that is still empty.
            let total = self.positions[b];
            let newest = (slot + seq_len + context - 1) % context;
            let position =
                |slot: usize| (total - 1).checked_sub((newest + context - slot) % context);
            for token in start..total {
                let seen = |slot| position(slot).is_some_and(|at| at <= token);
                mask.extend((0..context).map(|slot| additive(seen(slot))));
            }
        }
        let device = &self.device;
        // Tokens that fill the rings attend to each other, in all sequences alike.
        let mask = if seq_len >= context {
            let seen = |token, entry| entry <= token && entry + context >= token;
            let row = |token| (0..seq_len).map(move |entry| additive(seen(token, entry)));
            let mask: Vec<f32> = (0..seq_len).flat_map(row).collect();
            Tensor::from_vec(mask, (seq_len, seq_len), device)?
        } else {
            Tensor::from_vec(mask, (batch, 1, seq_len, context), device)?
        };
        Ok(IndicesAndMask {
            indices: Tensor::from_vec(indices, (batch, seq_len), device)?,
            mask: mask.to_dtype(self.dtype)?,
        })
    }
}

/// The bias of a visible or hidden score.
fn additive(seen: bool) -> f32 {
    if seen {
        0.
    } else {
        f32::NEG_INFINITY
    }
}
