mod agree;
mod backprop;
mod cast;
mod conv;
mod conv_device;
#[cfg(feature = "webgpu")]
mod custom_wgsl;
#[cfg(feature = "webgpu")]
mod device;
#[cfg(not(target_arch = "wasm32"))]
mod distributed;
#[cfg(not(target_arch = "wasm32"))]
mod docs;
mod elementwise;
mod errors;
mod hostile;
mod indexing;
mod layouts;
mod long_loops;
mod matmul;
mod matrix;
#[cfg(feature = "webgpu")]
mod memory;
mod movement;
#[cfg(feature = "cuda")]
mod nccl;
mod ndarray;
mod nditer;
mod npy;
mod pending;
mod pickle;
mod pool;
mod quantized_api;
mod quantized_blocks;
mod quantized_device;
mod quantized_files;
mod quantized_ggml;
mod quantized_parts;
#[cfg(feature = "all-ggml-types")]
mod quantized_tables;
#[cfg(all(feature = "tokenizers", not(target_arch = "wasm32")))]
mod quantized_tokenizer;
mod random;
#[cfg(feature = "cuda")]
mod recording;
mod reduce;
#[cfg(not(target_arch = "wasm32"))]
mod rooms;
mod sort;
mod streaming;
mod threads;
#[cfg(any(feature = "webgpu", feature = "cuda"))]
mod watch;
mod windows;
