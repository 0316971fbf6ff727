//! Tables for rotary position embeddings, RoPE: [arXiv 2104.09864](https://arxiv.org/abs/2104.09864).

use candle_core::{bail, DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope_heads, rope_i_heads, Pairs};

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `i` and `i + head_dim / 2`, as Hugging Face's checkpoints have them.
    Halves,
    /// `2 i` and `2 i + 1`, as Llama's own checkpoints and GGUF files have them.
    Neighbours,
}

impl RotaryPairs {
    /// Rotates the first `rotated` heads of `xs`, `(b, heads, t, head_dim)`; the others are copied. `cos` and `sin`,
    /// `(t, head_dim / 2)`, are the positions' rotary rows.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn rotate(self, xs: &Tensor, cos: &Tensor, sin: &Tensor, rotated: usize) -> Result<Tensor> {
        match self {
            Self::Halves => rope_heads(xs, cos, sin, rotated),
            Self::Neighbours => rope_i_heads(xs, cos, sin, rotated),
        }
    }
}

impl From<RotaryPairs> for Pairs {
    fn from(pairs: RotaryPairs) -> Self {
        match pairs {
            RotaryPairs::Halves => Self::Halves,
            RotaryPairs::Neighbours => Self::Neighbours,
        }
    }
}

/// The angle per position of each pair of a head's elements: `theta^(-2i / head_dim)` for `i` in `0 .. head_dim / 2`.
pub fn inverse_frequencies(theta: f32, head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|i| f64::from(theta).powf(-(2. * i as f64) / head_dim as f64) as f32)
        .collect()
}

/// Cosines and sines of every position's angles, as [`candle_nn::rotary_emb::rope`] takes them.
#[derive(Debug, Clone)]
pub struct RotaryTables {
    cos: Tensor,
    sin: Tensor,
}

impl RotaryTables {
    /// Tables of shape `(positions, inverse_frequencies.len())`.
    ///
    /// Angles, cosines and sines are computed in f32 (as the models were trained) on the host, since a GPU's `cos` may
    /// be far off for the large angles of late positions; only then are they rounded to `dtype`.
    ///
    /// # Errors
    /// If the tables cannot be put on `device` as `dtype`.
    pub fn new(
        inverse_frequencies: &[f32],
        positions: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = (positions, inverse_frequencies.len());
        let mut cos = Vec::with_capacity(shape.0 * shape.1);
        let mut sin = Vec::with_capacity(shape.0 * shape.1);
        for position in 0..positions {
            for frequency in inverse_frequencies {
                let (s, c) = (position as f32 * frequency).sin_cos();
                sin.push(s);
                cos.push(c);
            }
        }
        Ok(Self {
            cos: Tensor::from_vec(cos, shape, device)?.to_dtype(dtype)?,
            sin: Tensor::from_vec(sin, shape, device)?.to_dtype(dtype)?,
        })
    }

    /// The rows `(cos, sin)` of the positions `start .. start + len`, `(len, head_dim / 2)` each; views.
    ///
    /// # Errors
    /// If the tables end before.
    pub fn rows(&self, start: usize, len: usize) -> Result<(Tensor, Tensor)> {
        let positions = self.cos.dim(0)?;
        if start + len > positions {
            bail!(
                "rotary tables: positions {start}..{} asked for, there are {positions}",
                start + len
            )
        }
        Ok((
            self.cos.narrow(0, start, len)?,
            self.sin.narrow(0, start, len)?,
        ))
    }
}
