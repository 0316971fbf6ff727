// wasi:gpu 0.1.0 for guests in C (C11) and C++ (C++20), by hand: one header, no generated code, no libc.
//
// Names are those of the interface with `wasi_gpu_compute_` or `wasi_gpu_ml_kernels_` before them. `buffer_create` returns the buffer's
// name, or 0 if it was refused; every other function that can fail returns whether it went well. `wasi_gpu_last_error()` says why the last
// refusal was. Parameters of kernels go by pointer.
//
// The program has `malloc`, `realloc` and `free`, of libc or its own. Any number of its files may include the header.
#ifndef WASI_GPU_H
#define WASI_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void *malloc(size_t size);
void *realloc(void *old, size_t size);
void free(void *block);

// ---- interface compute

typedef uint32_t buffer_id_t;

typedef uint8_t buffer_usage_t;
#define BUFFER_USAGE_MAP_READ ((buffer_usage_t)1)
#define BUFFER_USAGE_MAP_WRITE ((buffer_usage_t)2)
#define BUFFER_USAGE_COPY_SRC ((buffer_usage_t)4)
#define BUFFER_USAGE_COPY_DST ((buffer_usage_t)8)
#define BUFFER_USAGE_UNIFORM ((buffer_usage_t)16)
#define BUFFER_USAGE_STORAGE ((buffer_usage_t)32)

enum {
    GPU_ERROR_OUT_OF_MEMORY,
    GPU_ERROR_INVALID_BUFFER,
    GPU_ERROR_KERNEL_ERROR,
    GPU_ERROR_DEVICE_UNAVAILABLE,
    GPU_ERROR_INVALID_PARAMS,
};

typedef struct {
    uint8_t tag;       // one of GPU_ERROR_...
    char message[256]; // of a kernel error or invalid parameters, cut off if it is longer; ends with 0
} gpu_error_t;

// The canonical ABI's `string`: UTF-8 that no 0 ends.
typedef struct {
    char *ptr;
    size_t len;
} wasi_gpu_string_t;

typedef struct {
    wasi_gpu_string_t name;
    wasi_gpu_string_t backend; // "cuda", "metal", "vulkan", "dx12", "webgpu" or "cpu"
    uint64_t total_memory;     // bytes that this guest may have in buffers
    bool is_hardware;
    wasi_gpu_string_t compute_capability;
} device_info_t;

// ---- interface ml-kernels

typedef struct {
    uint32_t n_samples, seed, max_index;
} bootstrap_params_t;

typedef struct {
    uint32_t n_samples, n_features, feature_idx, n_thresholds;
} find_split_params_t;

typedef struct {
    uint32_t n_trees, n_samples;
} average_params_t;

typedef struct {
    uint32_t m, k, n;
    bool trans_a, trans_b;
    float alpha, beta;
} matmul_params_t;

enum {
    ELEMENTWISE_OP_RELU,
    ELEMENTWISE_OP_SIGMOID,
    ELEMENTWISE_OP_TANH,
    ELEMENTWISE_OP_ADD,
    ELEMENTWISE_OP_MUL,
    ELEMENTWISE_OP_SQRT,
    ELEMENTWISE_OP_EXP,
    ELEMENTWISE_OP_LOG,
};
typedef struct {
    uint32_t n_elements;
    uint8_t op; // one of ELEMENTWISE_OP_...
} elementwise_params_t;

enum { REDUCE_OP_SUM, REDUCE_OP_MAX, REDUCE_OP_MIN, REDUCE_OP_MEAN, REDUCE_OP_VARIANCE };
typedef struct {
    uint32_t n_elements;
    uint8_t op; // one of REDUCE_OP_...
} reduce_params_t;

typedef struct {
    uint32_t batch_size, n_features, n_trees, max_depth;
} batch_predict_params_t;

// ---- the imports, as the canonical ABI flattens them

// Where the host writes a `result`: its discriminant is one byte; the payload follows at the alignment of its largest case, 4.
typedef struct {
    uint8_t is_err;
    union {
        buffer_id_t id;
        struct {
            uint8_t *ptr;
            size_t len;
        } list;
        struct {
            uint8_t tag;
            wasi_gpu_string_t message;
        } err;
    } of;
} wasi_gpu_result_t;

#ifdef __wasm32__
#ifdef __cplusplus
#define WASI_GPU_ASSERT static_assert
#else
#define WASI_GPU_ASSERT _Static_assert
#endif
WASI_GPU_ASSERT(sizeof(wasi_gpu_result_t) == 16 && offsetof(wasi_gpu_result_t, of) == 4 && offsetof(wasi_gpu_result_t, of.err.message) == 8,
                "a result is not laid out as the canonical ABI has it");
WASI_GPU_ASSERT(sizeof(device_info_t) == 40 && offsetof(device_info_t, total_memory) == 16 && offsetof(device_info_t, is_hardware) == 24 &&
                    offsetof(device_info_t, compute_capability) == 28,
                "device_info_t is not laid out as the canonical ABI has it");
#endif

#define WASI_GPU_IMPORT(interface, function) __attribute__((import_module("wasi:gpu/" interface "@0.1.0"), import_name(function)))

WASI_GPU_IMPORT("compute", "get-device-info") void wasi_gpu_import_get_device_info(device_info_t *);
WASI_GPU_IMPORT("compute", "buffer-create") void wasi_gpu_import_buffer_create(uint64_t, uint32_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("compute", "buffer-write") void wasi_gpu_import_buffer_write(uint32_t, uint64_t, const void *, size_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("compute", "buffer-read") void wasi_gpu_import_buffer_read(uint32_t, uint64_t, uint32_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("compute", "buffer-copy")
void wasi_gpu_import_buffer_copy(uint32_t, uint64_t, uint32_t, uint64_t, uint64_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("compute", "buffer-destroy") void wasi_gpu_import_buffer_destroy(uint32_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("compute", "sync") void wasi_gpu_import_sync(void);
WASI_GPU_IMPORT("ml-kernels", "kernel-bootstrap-sample")
void wasi_gpu_import_bootstrap_sample(uint32_t, uint32_t, uint32_t, uint32_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("ml-kernels", "kernel-find-split")
void wasi_gpu_import_find_split(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                                wasi_gpu_result_t *);
WASI_GPU_IMPORT("ml-kernels", "kernel-average") void wasi_gpu_import_average(uint32_t, uint32_t, uint32_t, uint32_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("ml-kernels", "kernel-matmul")
void wasi_gpu_import_matmul(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, float, float, uint32_t, uint32_t, uint32_t,
                            wasi_gpu_result_t *);
WASI_GPU_IMPORT("ml-kernels", "kernel-elementwise")
void wasi_gpu_import_elementwise(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("ml-kernels", "kernel-reduce") void wasi_gpu_import_reduce(uint32_t, uint32_t, uint32_t, uint32_t, wasi_gpu_result_t *);
WASI_GPU_IMPORT("ml-kernels", "kernel-batch-predict")
void wasi_gpu_import_batch_predict(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, wasi_gpu_result_t *);

// ---- errors

// Weak: one for the program, however many of its files include this.
__attribute__((weak)) gpu_error_t wasi_gpu_error;

// Of the last call that was refused.
static inline const gpu_error_t *wasi_gpu_last_error(void) { return &wasi_gpu_error; }

static inline const char *wasi_gpu_error_name(uint8_t tag) {
    switch (tag) {
    case GPU_ERROR_OUT_OF_MEMORY: return "out-of-memory";
    case GPU_ERROR_INVALID_BUFFER: return "invalid-buffer";
    case GPU_ERROR_KERNEL_ERROR: return "kernel-error";
    case GPU_ERROR_DEVICE_UNAVAILABLE: return "device-unavailable";
    default: return "invalid-params";
    }
}

// Whether the call went well; keeps the error if not.
static inline bool wasi_gpu_ok(const wasi_gpu_result_t *result) {
    if (!result->is_err) return true;
    wasi_gpu_error.tag = result->of.err.tag;
    size_t length = 0;
    if (wasi_gpu_error.tag == GPU_ERROR_KERNEL_ERROR || wasi_gpu_error.tag == GPU_ERROR_INVALID_PARAMS) {
        wasi_gpu_string_t message = result->of.err.message;
        for (; length < message.len && length + 1 < sizeof wasi_gpu_error.message; length++)
            wasi_gpu_error.message[length] = message.ptr[length];
        if (message.len) free(message.ptr);
    }
    wasi_gpu_error.message[length] = 0;
    return false;
}

// ---- the functions

// Allocates the strings: `wasi_gpu_free_device_info` frees them.
static inline void wasi_gpu_compute_get_device_info(device_info_t *info) { wasi_gpu_import_get_device_info(info); }

static inline void wasi_gpu_free_device_info(device_info_t *info) {
    if (info->name.len) free(info->name.ptr);
    if (info->backend.len) free(info->backend.ptr);
    if (info->compute_capability.len) free(info->compute_capability.ptr);
}

// `size` zero bytes; the buffer's name, or 0.
static inline buffer_id_t wasi_gpu_compute_buffer_create(uint64_t size, buffer_usage_t usage) {
    wasi_gpu_result_t result;
    wasi_gpu_import_buffer_create(size, usage, &result);
    return wasi_gpu_ok(&result) ? result.of.id : 0;
}

static inline bool wasi_gpu_compute_buffer_write(buffer_id_t buffer, uint64_t offset, const void *data, size_t size) {
    wasi_gpu_result_t result;
    wasi_gpu_import_buffer_write(buffer, offset, data, size, &result);
    return wasi_gpu_ok(&result);
}

// Waits for all that was called before. `data` has room for `size` bytes, and is not touched on failure.
static inline bool wasi_gpu_compute_buffer_read(buffer_id_t buffer, uint64_t offset, uint32_t size, void *data) {
    wasi_gpu_result_t result;
    wasi_gpu_import_buffer_read(buffer, offset, size, &result);
    if (!wasi_gpu_ok(&result)) return false;
    size_t length = result.of.list.len < size ? result.of.list.len : size;
    __builtin_memcpy(data, result.of.list.ptr, length);
    if (result.of.list.len) free(result.of.list.ptr);
    return length == size;
}

static inline bool wasi_gpu_compute_buffer_copy(buffer_id_t src, uint64_t src_offset, buffer_id_t dst, uint64_t dst_offset, uint64_t size) {
    wasi_gpu_result_t result;
    wasi_gpu_import_buffer_copy(src, src_offset, dst, dst_offset, size, &result);
    return wasi_gpu_ok(&result);
}

static inline bool wasi_gpu_compute_buffer_destroy(buffer_id_t buffer) {
    wasi_gpu_result_t result;
    wasi_gpu_import_buffer_destroy(buffer, &result);
    return wasi_gpu_ok(&result);
}

static inline void wasi_gpu_compute_sync(void) { wasi_gpu_import_sync(); }

static inline bool wasi_gpu_ml_kernels_kernel_bootstrap_sample(const bootstrap_params_t *params, buffer_id_t output_indices) {
    wasi_gpu_result_t result;
    wasi_gpu_import_bootstrap_sample(params->n_samples, params->seed, params->max_index, output_indices, &result);
    return wasi_gpu_ok(&result);
}

static inline bool wasi_gpu_ml_kernels_kernel_find_split(const find_split_params_t *params, buffer_id_t data, buffer_id_t labels,
                                                         buffer_id_t indices, buffer_id_t thresholds, buffer_id_t output_scores) {
    wasi_gpu_result_t result;
    wasi_gpu_import_find_split(params->n_samples, params->n_features, params->feature_idx, params->n_thresholds, data, labels, indices,
                               thresholds, output_scores, &result);
    return wasi_gpu_ok(&result);
}

static inline bool wasi_gpu_ml_kernels_kernel_average(const average_params_t *params, buffer_id_t tree_predictions, buffer_id_t output) {
    wasi_gpu_result_t result;
    wasi_gpu_import_average(params->n_trees, params->n_samples, tree_predictions, output, &result);
    return wasi_gpu_ok(&result);
}

static inline bool wasi_gpu_ml_kernels_kernel_matmul(const matmul_params_t *params, buffer_id_t a, buffer_id_t b, buffer_id_t c) {
    wasi_gpu_result_t result;
    wasi_gpu_import_matmul(params->m, params->k, params->n, params->trans_a, params->trans_b, params->alpha, params->beta, a, b, c, &result);
    return wasi_gpu_ok(&result);
}

// `input_b` is 0 if there is none.
static inline bool wasi_gpu_ml_kernels_kernel_elementwise(const elementwise_params_t *params, buffer_id_t input_a, buffer_id_t input_b,
                                                          buffer_id_t output) {
    wasi_gpu_result_t result;
    wasi_gpu_import_elementwise(params->n_elements, params->op, input_a, input_b != 0, input_b, output, &result);
    return wasi_gpu_ok(&result);
}

static inline bool wasi_gpu_ml_kernels_kernel_reduce(const reduce_params_t *params, buffer_id_t input, buffer_id_t output) {
    wasi_gpu_result_t result;
    wasi_gpu_import_reduce(params->n_elements, params->op, input, output, &result);
    return wasi_gpu_ok(&result);
}

static inline bool wasi_gpu_ml_kernels_kernel_batch_predict(const batch_predict_params_t *params, buffer_id_t samples,
                                                            buffer_id_t tree_nodes, buffer_id_t tree_offsets, buffer_id_t output) {
    wasi_gpu_result_t result;
    wasi_gpu_import_batch_predict(params->batch_size, params->n_features, params->n_trees, params->max_depth, samples, tree_nodes,
                                  tree_offsets, output, &result);
    return wasi_gpu_ok(&result);
}

// ---- what the host calls

// Room for a list or string that the host returns or passes. `malloc` aligns to 8 at least, which is all that this interface needs.
// Weak, as above.
__attribute__((weak, used, export_name("cabi_realloc"))) void *cabi_realloc(void *old, size_t old_size, size_t align, size_t size) {
    (void)old_size;
    // An empty list needs an aligned address, and no memory.
    if (size == 0) return (void *)align;
    void *block = realloc(old, size);
    if (!block) __builtin_trap();
    return block;
}

#ifdef __cplusplus
}
#endif

#endif
