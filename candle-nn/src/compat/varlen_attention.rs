//! The former path of [`attention::varlen`](crate::attention::varlen).

pub use crate::attention::flash_attn_varlen_unfused;
