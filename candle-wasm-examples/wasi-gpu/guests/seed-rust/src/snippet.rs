wit_bindgen::generate!({
    world: "ml-compute",
    path: "../wasi-gpu/wit",
});

use crate::wasi::gpu::compute::*;
use crate::wasi::gpu::ml_kernels::*;

fn train_tree(data: &[f32], labels: &[f32]) {
    // Create buffers
    let data_buf = buffer_create(data.len() as u64 * 4, BufferUsage::STORAGE).unwrap();
    buffer_write(data_buf, 0, bytemuck::cast_slice(data)).unwrap();
    
    // Run kernel
    let params = BootstrapParams { n_samples: 1000, seed: 42, max_index: 10000 };
    let output_buf = buffer_create(1000 * 4, BufferUsage::STORAGE).unwrap();
    kernel_bootstrap_sample(params, output_buf).unwrap();
    
    // Read results
    let result_bytes = buffer_read(output_buf, 0, 1000 * 4).unwrap();
    let indices: Vec<u32> = bytemuck::cast_slice(&result_bytes).to_vec();
}
