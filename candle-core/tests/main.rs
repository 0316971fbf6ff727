mod agree;
mod backprop;
mod cast;
#[cfg(feature = "webgpu")]
mod device;
mod elementwise;
mod hostile;
mod indexing;
mod matmul;
mod movement;
mod npy;
mod pickle;
mod random;
mod reduce;
