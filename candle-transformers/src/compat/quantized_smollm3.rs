//! The rotation of SmolLM3 as a type; the model uses `RotaryTables`.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope_heads_with, Pairs, Rotation};

use crate::blocks::{Rotary, RotaryPairs, RotaryTables};
use crate::models::smol::quantized_smollm3::QuantizedConfig;

/// The rotation of queries and keys.
#[derive(Debug, Clone)]
pub struct RotaryEmbedding {
    cos: Tensor,
    sin: Tensor,
    /// In f32, for single positions.
    host: [Vec<f32>; 2],
    pairs: Pairs,
}

impl RotaryEmbedding {
    /// The rotation of all positions of `cfg`: of neighbours if `use_interleaved` says so, else of the halves of a head.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(
        dtype: DType,
        cfg: &QuantizedConfig,
        dev: &Device,
        use_interleaved: bool,
    ) -> Result<Self> {
        let pairs = if use_interleaved {
            RotaryPairs::Neighbours
        } else {
            RotaryPairs::Halves
        };
        let rotary = Rotary::new(pairs, cfg.rope_theta, cfg.head_dim());
        let positions = cfg.max_position_embeddings;
        let tables = RotaryTables::new(&rotary, positions, DType::F32, &Device::Cpu);
        let (cos, sin) = tables.rows(0, positions)?;
        let host = |table: &Tensor| table.flatten_all()?.to_vec1::<f32>();
        Ok(Self {
            host: [host(&cos)?, host(&sin)?],
            cos: cos.to_dtype(dtype)?.to_device(dev)?,
            sin: sin.to_dtype(dtype)?.to_device(dev)?,
            pairs: pairs.into(),
        })
    }

    /// Rotates queries and keys, `(b, heads, t, head_dim)`, at the positions from `offset` on.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match, or there are more positions than the model has.
    pub fn apply_rotary_emb(
        &self,
        q: &Tensor,
        k: &Tensor,
        offset: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (_, heads, t, _) = q.dims4()?;
        let (cos, sin) = (
            self.cos.narrow(0, offset, t)?,
            self.sin.narrow(0, offset, t)?,
        );
        let rotation = Rotation::new(&cos, &sin, self.pairs);
        let q = rope_heads_with(q, &rotation, heads, 0)?;
        Ok((q, rope_heads_with(k, &rotation, 0, k.dim(1)?)?))
    }

    /// The cosines and sines of a position, `head_dim / 2` each; none of a position that the model does not have.
    pub fn cos_sin_at(&self, pos: usize) -> (&[f32], &[f32]) {
        let columns = self.cos.dims().last().copied().unwrap_or(0);
        let start = pos.saturating_mul(columns);
        let [cos, sin] = self
            .host
            .each_ref()
            .map(|table| table.get(start..start.saturating_add(columns)));
        (cos.unwrap_or_default(), sin.unwrap_or_default())
    }
}
