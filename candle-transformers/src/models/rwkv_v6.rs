//! RWKV 6, Finch: [arXiv 2404.05892](https://arxiv.org/abs/2404.05892). As [`super::rwkv_v5`], but the token says how much of the state is kept.

use super::rwkv::Rwkv;
pub use super::rwkv_v5::{Config, State, Tokenizer};
use crate::blocks::Dense;

/// The language model.
pub type Model = Rwkv<6, Dense>;
