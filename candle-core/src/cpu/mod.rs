//! Numeric building blocks of the CPU backend, independent of tensors.

pub mod erf;
pub(crate) mod functions;
pub(crate) mod gemv;
pub(crate) mod half_floats;
pub mod kernels;
pub(crate) mod scratch;
pub(crate) mod shared_matrix;
pub(crate) mod simd;
pub mod slices;
pub mod threads;
pub(crate) mod to_integer;
pub(crate) mod transpose_bytes;
pub(crate) mod trigonometry;
