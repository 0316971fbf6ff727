//! Attention over batches ([`flash_attn`]) and over packed sequences of different lengths ([`flash_attn_varlen_unfused`]), with masks,
//! windows, softcapping and ALiBi.
//!
//! The names are those of Candle's CPU kernels; here all of them work on every device and with autograd, and call
//! [`ops::sdpa`](crate::ops::sdpa). Layouts are those of flash attention: heads come after the sequence.

mod attend;
mod flash;
pub mod varlen;

// Upstream's names for the same functions.
pub use crate::compat::cpu_flash::{self, varlen::flash_attn_varlen_cpu};
pub use flash::flash_attn;
pub use varlen::flash_attn_varlen_unfused;

use candle_core::Tensor;

/// The keys that a query may see.
#[derive(Clone, Debug, Default)]
pub enum AttnMask {
    /// All of them.
    #[default]
    None,
    /// Query `i` sees the keys up to `i + kv_offset`; a single query sees all of them.
    Causal {
        /// Number of keys before that of the first query: those of a cache.
        kv_offset: usize,
    },
    /// Added to the scores: (batch, queries, keys), or a shape that broadcasts to (batch, heads, queries, keys).
    Mask(Tensor),
}

impl AttnMask {
    /// Causal attention in which the first query is that of the first key.
    pub fn causal() -> Self {
        Self::causal_with_offset(0)
    }

    /// Causal attention with `kv_offset` keys before that of the first query.
    pub fn causal_with_offset(kv_offset: usize) -> Self {
        Self::Causal { kv_offset }
    }

    /// Whether it is [`AttnMask::Causal`].
    pub fn is_causal(&self) -> bool {
        matches!(self, Self::Causal { .. })
    }

    /// The offset of [`AttnMask::Causal`], 0 for the others.
    pub fn kv_offset(&self) -> usize {
        match self {
            Self::Causal { kv_offset } => *kv_offset,
            _ => 0,
        }
    }
}
