//! Caches that keep a token's keys and values next to each other, so that attention over one new token reads memory once, in order.

use candle_core::{bail, Result, Tensor};

/// Keys and values of one sequence in one tensor, concatenated at each step: (seq, kv_heads, 2 * head_dim), the key of a head before its
/// value.
#[derive(Clone, Debug)]
pub struct InterleavedKvCache {
    kv: Option<Tensor>,
    head_dim: usize,
}

impl InterleavedKvCache {
    /// An empty cache for heads of this dimension.
    pub fn new(head_dim: usize) -> Self {
        Self { kv: None, head_dim }
    }

    /// Appends keys and values of shape (1, kv_heads, seq, head_dim), and returns everything that is in the cache.
    ///
    /// # Errors
    /// The shapes are others, or dtypes or devices are not those of what is there.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (batch, _, _, head_dim) = k.dims4()?;
        if batch != 1 || head_dim != self.head_dim || k.shape() != v.shape() {
            bail!(
                "kv-cache: keys {:?} and values {:?}; both must be (1, kv_heads, seq, {})",
                k.dims(),
                v.dims(),
                self.head_dim
            )
        }
        let new = Tensor::cat(&[k, v], 3)?.squeeze(0)?.transpose(0, 1)?;
        let kv = match &self.kv {
            None => new.contiguous()?,
            Some(old) => Tensor::cat(&[old, &new], 0)?,
        };
        self.kv = Some(kv.clone());
        Ok(kv)
    }

    /// The contents of the cache; `None` if nothing was appended yet.
    pub fn kv(&self) -> Option<&Tensor> {
        self.kv.as_ref()
    }

    /// Number of tokens in the cache.
    pub fn current_seq_len(&self) -> usize {
        let len = |kv: &Tensor| kv.dims().first().copied();
        self.kv.as_ref().and_then(len).unwrap_or(0)
    }

    /// The dimension of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.kv.is_none()
    }

    /// Empties the cache.
    pub fn reset(&mut self) {
        self.kv = None;
    }
}

/// Keys and values of one sequence as plain f32 on the host, in a preallocated buffer: token after token, head after
/// head, a head's key before its value. It is what [`causal_decode_f32_interleaved`] reads.
///
/// [`causal_decode_f32_interleaved`]: crate::attention::cpu_flash::causal::causal_decode_f32_interleaved
#[derive(Clone, Debug)]
pub struct RawInterleavedKvCache {
    data: Vec<f32>,
    h_kv: usize,
    d: usize,
    len: usize,
}

impl RawInterleavedKvCache {
    /// An empty cache of `h_kv` heads of dimension `d`, with an initial capacity of `max_seq` tokens.
    pub fn new(h_kv: usize, d: usize, max_seq: usize) -> Self {
        Self {
            data: Vec::with_capacity(max_seq * h_kv * 2 * d),
            h_kv,
            d,
            len: 0,
        }
    }

    /// Appends a token: `k_flat` and `v_flat` are (h_kv, d).
    ///
    /// # Panics
    /// They are of another length.
    pub fn write_kv(&mut self, k_flat: &[f32], v_flat: &[f32]) {
        self.write_kv_batch(k_flat, v_flat, 1);
    }

    /// Appends `seq_len` tokens: `k_flat` and `v_flat` are (seq_len, h_kv, d).
    ///
    /// # Panics
    /// They are of another length.
    pub fn write_kv_batch(&mut self, k_flat: &[f32], v_flat: &[f32], seq_len: usize) {
        let count = seq_len * self.h_kv * self.d;
        assert_eq!(
            (k_flat.len(), v_flat.len()),
            (count, count),
            "kv-cache: unexpected keys and values of {seq_len} tokens, {} heads of {}",
            self.h_kv,
            self.d
        );
        let d = self.d.max(1);
        for (k, v) in k_flat.chunks_exact(d).zip(v_flat.chunks_exact(d)) {
            self.data.extend_from_slice(k);
            self.data.extend_from_slice(v);
        }
        self.len += seq_len;
    }

    /// The contents: (len, h_kv, 2, d).
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of heads.
    pub fn h_kv(&self) -> usize {
        self.h_kv
    }

    /// The dimension of a head.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Empties the cache and keeps its buffer.
    pub fn reset(&mut self) {
        self.data.clear();
        self.len = 0;
    }
}

/// Rotates one token's `num_heads` heads of dimension `d` in place, pairing element `2 i` with `2 i + 1`; `cos` and `sin` have length
/// `d / 2`. The same as [`rope_i`](crate::rotary_emb::rope_i), on slices.
///
/// # Panics
/// The slices are shorter than that.
pub fn rope_i_inplace(data: &mut [f32], cos: &[f32], sin: &[f32], num_heads: usize, d: usize) {
    let (cos, sin) = (&cos[..d / 2], &sin[..d / 2]);
    for head in data[..num_heads * d].chunks_exact_mut(d.max(1)) {
        let pairs = head.as_chunks_mut::<2>().0.iter_mut();
        for ([x0, x1], (cos, sin)) in pairs.zip(cos.iter().zip(sin)) {
            (*x0, *x1) = (*x0 * cos - *x1 * sin, *x0 * sin + *x1 * cos);
        }
    }
}
