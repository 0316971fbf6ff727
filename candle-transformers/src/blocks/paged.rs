//! Keys and values of many sequences in pages of one pool per layer.

use candle_core::{bail, Result, Tensor};
use candle_nn::ops::SdpaPages;
use candle_nn::rotary_emb::{rope_append_with, CachePosition, Rotation};

use super::cache::{GrowingKvCache, Rows};

/// Where the sequences of one call have their positions in the pools.
#[derive(Debug, Clone)]
pub struct PageRows {
    /// The pages of each sequence: `(b, columns)`, u32.
    pub table: Tensor,
    /// The position in the pools of each new token: `(b, t)`, u32.
    pub places: Tensor,
    /// Positions of a page.
    pub page: usize,
}

impl Rows {
    /// Where attention finds the keys of a call with `t` new tokens a row, if they are in pages.
    pub(super) fn key_pages(&self, t: usize) -> Option<SdpaPages<'_>> {
        let pages = self.pages.as_ref()?;
        Some(SdpaPages {
            table: &pages.table,
            page: pages.page,
            keys: self.longest + t,
        })
    }
}

impl GrowingKvCache {
    /// As [`append_rotated`](Self::append_rotated), into the pool. Returns the queries and the pool, `(1, 2 * kv_heads, positions,
    /// head_dim)`.
    pub(super) fn append_to_pool(
        &self,
        qkv: &Tensor,
        rotation: &Rotation<'_>,
        pages: &PageRows,
    ) -> Result<(Tensor, Tensor)> {
        let Some(pool) = &self.pool else {
            bail!("the call has pages, but the KV cache has no pool")
        };
        let places = CachePosition::Each(&pages.places);
        let q = rope_append_with(qkv, rotation, pool, places)?;
        Ok((q, pool.clone()))
    }
}
