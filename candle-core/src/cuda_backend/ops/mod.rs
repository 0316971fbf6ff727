//! From layouts to launches: kernel selection, numbers of blocks, parameters. One file per op family, with its kernels of the same name in
//! `kernels/`.

pub(super) mod conv;
pub(super) mod copy2d;
pub(super) mod elementwise;
pub(super) mod fill;
mod fused;
pub(super) mod indexing;
mod linear;
pub(super) mod matmul;
mod planes;
pub(super) mod pool;
pub(super) mod quantized;
pub(super) mod random;
pub(super) mod reduce;
pub(super) mod scatter;
pub(crate) mod sort;
pub(super) mod upsample;
