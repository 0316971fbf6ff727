//! The rotation of Phi-3 as a type; the model uses `RotaryTables`.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::{rope_heads_with, Pairs, Rotation};

use crate::blocks::RotaryTables;
use crate::models::phi3::Config;

/// The rotation of queries and keys.
#[derive(Debug, Clone)]
pub struct RotaryEmbedding {
    tables: RotaryTables,
}

impl RotaryEmbedding {
    /// The rotation of all positions of `cfg`.
    ///
    /// # Errors
    /// If the scaling does not fit, or there is no memory.
    pub fn new(dtype: DType, cfg: &Config, dev: &Device) -> Result<Self> {
        let (rotary, positions) = (cfg.rotary()?, cfg.max_position_embeddings);
        let tables = RotaryTables::new(&rotary, positions, dtype, dev);
        if let Some((short, _)) = &rotary.long {
            tables.rows(0, positions.min(*short))?;
        }
        tables.rows(0, positions)?;
        Ok(Self { tables })
    }

    /// Rotates queries and keys, `(b, heads, t, head_dim)`, at the positions from `seqlen_offset` on.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match, or there are more positions than the model has.
    pub fn apply_rotary_emb_qkv(
        &self,
        q: &Tensor,
        k: &Tensor,
        seqlen_offset: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (_, heads, t, _) = q.dims4()?;
        let (cos, sin) = self.tables.clone().rows(seqlen_offset, t)?;
        let rotation = Rotation::new(&cos, &sin, Pairs::Halves);
        let q = rope_heads_with(q, &rotation, heads, 0)?;
        Ok((q, rope_heads_with(k, &rotation, 0, k.dim(1)?)?))
    }
}
