//! Keys and values of past tokens, so that each token's are computed once.
//!
//! [`KvCache`] writes into a preallocated buffer, [`ConcatKvCache`] creates a new tensor at each step, and
//! [`RotatingKvCache`] keeps a window of the last tokens. Each of them holds two tensors, grown along the dimension
//! given to `new`: 2 for keys of shape (batch, heads, seq, head_dim).
//!
//! [`ScatteredKvCache`] keeps such a window for each sequence of a batch, all of them of different lengths.
//! [`InterleavedKvCache`] and [`RawInterleavedKvCache`] interleave keys and values. [`PageCache`] hands out the pages of a cache that texts
//! share.

mod interleaved;
mod pages;
mod rotating;
mod scattered;

pub use interleaved::{rope_i_inplace, InterleavedKvCache, RawInterleavedKvCache};
pub use pages::{PageCache, PageList, PAGE_SIZES};
pub use rotating::{RotatingCache, RotatingKvCache};
pub use scattered::{IndicesAndMask, ScatteredCacheBuilder, ScatteredKvCache};

use candle_core::{DType, Result, Tensor};

/// One tensor that grows along a dimension, in a preallocated buffer.
///
/// The buffer is allocated by the first [`Cache::append`], with the capacity given to [`Cache::new`]. When it is full
/// it is copied into one that is larger by that capacity.
///
/// Clones share the buffer: append to one of them only.
#[derive(Clone, Debug)]
pub struct Cache {
    all_data: Option<Tensor>,
    dim: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
    dtype: Option<DType>,
}

impl Cache {
    /// An empty cache that grows along `dim`, with an initial capacity of `max_seq_len`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            all_data: None,
            dim,
            current_seq_len: 0,
            grow_by: max_seq_len,
            max_seq_len,
            dtype: None,
        }
    }

    /// As it is, with a buffer of `dtype`, to which what is appended is rounded; `None` is the dtype of what is appended first. A buffer
    /// that is there already stays. Not in upstream's interface.
    pub fn with_dtype(self, dtype: Option<DType>) -> Self {
        Self { dtype, ..self }
    }

    /// The dimension along which it grows.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The length in use.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// The capacity.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The whole buffer, including the unused part.
    pub fn all_data(&self) -> &Option<Tensor> {
        &self.all_data
    }

    /// The contents, as a view of the buffer; `None` if nothing was appended yet.
    ///
    /// # Errors
    /// None that appended data could cause.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        self.all_data
            .as_ref()
            .map(|data| data.narrow(self.dim, 0, self.current_seq_len))
            .transpose()
    }

    /// Empties the cache and drops its buffer.
    pub fn reset(&mut self) {
        self.current_seq_len = 0;
        self.all_data = None;
    }

    /// Sets the number of held positions to `len`: fewer than now, or more if the caller wrote them into the buffer. Not in upstream's
    /// interface.
    ///
    /// # Errors
    /// The buffer has fewer.
    pub fn set_seq_len(&mut self, len: usize) -> Result<()> {
        let room = self
            .all_data
            .as_ref()
            .map_or(Ok(0), |data| data.dim(self.dim))?;
        if len > room {
            candle_core::bail!("kv-cache: {len} positions exceed the buffer of {room}")
        }
        self.current_seq_len = len;
        Ok(())
    }

    /// Appends `src`, whose other dimensions and dtype are those of what is there; but see [`Cache::with_dtype`].
    ///
    /// # Errors
    /// They are not, or the device is out of memory, or the cache was created with a capacity of 0.
    pub fn append(&mut self, src: &Tensor) -> Result<()> {
        let dim = self.dim;
        let src = match self.dtype {
            Some(dtype) => &src.to_dtype(dtype)?,
            None => src,
        };
        self.append_with(src, |data, start| {
            data.slice_set(&src.contiguous()?, dim, start)
        })
    }

    /// As [`Cache::append`] for something of the shape of `like`, and of its dtype unless the cache has one, which `write` writes into the buffer from
    /// the given index on. Not in upstream's interface.
    ///
    /// # Errors
    /// Those of [`Cache::append`] and of `write`.
    pub fn append_with<T>(
        &mut self,
        like: &Tensor,
        write: impl FnOnce(&Tensor, usize) -> Result<T>,
    ) -> Result<T> {
        let start = self.current_seq_len;
        let end = start + like.dim(self.dim)?;
        self.write_until(like, end, |data| write(data, start))
    }

    /// Gives `write` the buffer, with room for at least `end` positions, and counts what is there up to `end` as held: for positions
    /// that differ between the sequences of a batch. `like` is of the buffer's shape but for the number of positions, and of its
    /// dtype unless [`Cache::with_dtype`] gave one. Not in upstream's interface.
    ///
    /// # Errors
    /// Those of [`Cache::append`] and of `write`.
    pub fn write_until<T>(
        &mut self,
        like: &Tensor,
        end: usize,
        write: impl FnOnce(&Tensor) -> Result<T>,
    ) -> Result<T> {
        if end > self.max_seq_len {
            if self.grow_by == 0 {
                candle_core::bail!("kv-cache: {end} positions exceed the cache's capacity of 0")
            }
            let room = end.next_multiple_of(self.grow_by);
            if let Some(data) = self.current_data()? {
                let grown = buffer(&data, self.dim, room)?;
                grown.slice_set(&data.contiguous()?, self.dim, 0)?;
                self.all_data = Some(grown);
            }
            self.max_seq_len = room;
        }
        let data = match &self.all_data {
            Some(data) => data,
            None => self.all_data.insert({
                let dtype = self.dtype.unwrap_or(like.dtype());
                buffer_of(like, dtype, self.dim, self.max_seq_len)?
            }),
        };
        let written = write(data)?;
        self.current_seq_len = self.current_seq_len.max(end);
        Ok(written)
    }
}

/// Zeros in the shape of `like`, except for `len` along `dim`.
fn buffer(like: &Tensor, dim: usize, len: usize) -> Result<Tensor> {
    buffer_of(like, like.dtype(), dim, len)
}

fn buffer_of(like: &Tensor, dtype: DType, dim: usize, len: usize) -> Result<Tensor> {
    let mut dims = like.dims().to_vec();
    dims[dim] = len;
    Tensor::zeros(dims, dtype, like.device())
}

/// The [`Cache`] of the keys and that of the values.
#[derive(Clone, Debug)]
pub struct KvCache {
    k: Cache,
    v: Cache,
}

impl KvCache {
    /// An empty cache that grows along `dim`, with an initial capacity of `max_seq_len`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        let cache = Cache::new(dim, max_seq_len);
        Self {
            k: cache.clone(),
            v: cache,
        }
    }

    /// The cache of the keys.
    pub fn k_cache(&self) -> &Cache {
        &self.k
    }

    /// The cache of the values.
    pub fn v_cache(&self) -> &Cache {
        &self.v
    }

    /// The cache of the keys.
    pub fn k_cache_mut(&mut self) -> &mut Cache {
        &mut self.k
    }

    /// The cache of the values.
    pub fn v_cache_mut(&mut self) -> &mut Cache {
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

    /// Appends to both, and returns all keys and all values, as views of the buffers.
    ///
    /// # Errors
    /// Those of [`Cache::append`].
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.k.append(k)?;
        self.v.append(v)?;
        let current = |cache: &Cache, like: &Tensor| match cache.current_data()? {
            Some(data) => Ok(data),
            None => like.zeros_like(),
        };
        Ok((current(&self.k, k)?, current(&self.v, v)?))
    }

    /// Number of tokens in the cache.
    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Empties the cache and drops its buffers.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }
}

/// Keys and values in tensors that each step concatenates with the new ones. The length need not be known in advance, but each step copies
/// all earlier entries.
#[derive(Clone, Debug)]
pub struct ConcatKvCache {
    k: Option<Tensor>,
    v: Option<Tensor>,
    dim: usize,
}

impl ConcatKvCache {
    /// An empty cache that grows along `dim`.
    pub fn new(dim: usize) -> Self {
        Self {
            k: None,
            v: None,
            dim,
        }
    }

    /// The dimension along which it grows.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of tokens in the cache.
    pub fn current_seq_len(&self) -> usize {
        let len = |k: &Tensor| k.dims().get(self.dim).copied();
        self.k.as_ref().and_then(len).unwrap_or(0)
    }

    /// Whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.k.is_none()
    }

    /// The keys; `None` if nothing was appended yet.
    pub fn k(&self) -> Option<&Tensor> {
        self.k.as_ref()
    }

    /// The values; `None` if nothing was appended yet.
    pub fn v(&self) -> Option<&Tensor> {
        self.v.as_ref()
    }

    /// Mutable access to the keys.
    pub fn k_mut(&mut self) -> Option<&mut Tensor> {
        self.k.as_mut()
    }

    /// Mutable access to the values.
    pub fn v_mut(&mut self) -> Option<&mut Tensor> {
        self.v.as_mut()
    }

    /// The keys and values; `None` if nothing was appended yet.
    pub fn into_inner(self) -> Option<(Tensor, Tensor)> {
        self.k.zip(self.v)
    }

    /// Appends to both, and returns all keys and all values.
    ///
    /// # Errors
    /// The other dimensions, the dtypes or the devices are not those of what is there.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let join = |old: &Option<Tensor>, new: &Tensor| match old {
            None => new.contiguous(),
            Some(old) => Tensor::cat(&[old, new], self.dim),
        };
        let (k, v) = (join(&self.k, k)?, join(&self.v, v)?);
        self.k = Some(k.clone());
        self.v = Some(v.clone());
        Ok((k, v))
    }

    /// Empties the cache.
    pub fn reset(&mut self) {
        self.k = None;
        self.v = None;
    }
}
