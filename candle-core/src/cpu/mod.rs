//! Numeric building blocks of the CPU backend that know nothing of tensors.

pub mod erf;
pub mod kernels;
pub(crate) mod threads;
