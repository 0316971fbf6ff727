// The interface document's example for guests in C++, as a component: snippet.cpp is the text that is printed there, unchanged.
//
// It keeps what it reads to itself. So the `buffer_read` that it calls is one that remembers.
#include "wasi_gpu.h"

static uint32_t *last_read;
static size_t last_count;

static bool remembering_read(buffer_id_t buffer, uint64_t offset, uint32_t size, void *data) {
    bool good = wasi_gpu_compute_buffer_read(buffer, offset, size, data);
    if (good) {
        last_read = static_cast<uint32_t *>(malloc(size));
        __builtin_memcpy(last_read, data, size);
        last_count = size / 4;
    }
    return good;
}

#define wasi_gpu_compute_buffer_read remembering_read
#include "snippet.cpp"
#undef wasi_gpu_compute_buffer_read

// result<list<u32>, string>
static struct {
    uint8_t is_err;
    const void *ptr;
    size_t len;
} result;
static_assert(sizeof result == 12);

extern "C" __attribute__((export_name("run"))) void *run() {
    const size_t rows = 10000;
    float *data = static_cast<float *>(malloc(rows * sizeof(float)));
    for (size_t i = 0; i < rows; i++) data[i] = 1;
    train_tree(data, rows);
    free(data);
    if (last_count) {
        result = {0, last_read, last_count};
    } else {
        // The example does not look at what the calls return.
        const char *name = wasi_gpu_error_name(wasi_gpu_last_error()->tag);
        size_t length = 0;
        while (name[length]) length++;
        result = {1, name, length};
    }
    return &result;
}
