//! Attention by the names of Candle's CPU kernels: [`standard`] with a mask, [`causal`], and [`varlen`] over packed sequences.

pub mod causal;
pub mod standard;
pub mod varlen;

pub use crate::attention::flash_attn;
