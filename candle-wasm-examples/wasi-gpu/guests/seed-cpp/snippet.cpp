// Use wit-bindgen to generate bindings
#include "wasi_gpu.h"

void train_tree(const float* data, size_t n_samples) {
    // Create buffer
    auto data_buf = wasi_gpu_compute_buffer_create(n_samples * sizeof(float), BUFFER_USAGE_STORAGE);
    wasi_gpu_compute_buffer_write(data_buf, 0, data, n_samples * sizeof(float));
    
    // Run kernel  
    bootstrap_params_t params = { .n_samples = 1000, .seed = 42, .max_index = n_samples };
    auto output_buf = wasi_gpu_compute_buffer_create(1000 * sizeof(uint32_t), BUFFER_USAGE_STORAGE);
    wasi_gpu_ml_kernels_kernel_bootstrap_sample(&params, output_buf);
    
    // Read results
    uint32_t indices[1000];
    wasi_gpu_compute_buffer_read(output_buf, 0, sizeof(indices), indices);
}
