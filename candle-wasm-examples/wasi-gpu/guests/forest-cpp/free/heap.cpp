// The heap of a program without libc: blocks of powers of two, each with its size before it, in a list for each size once they are freed.
#include <stddef.h>
#include <stdint.h>

extern "C" {

extern unsigned char __heap_base;

struct Block {
    size_t power;
    Block *next;
};
// Before a block's contents, which are aligned to 16.
constexpr size_t HEADER = 16;

static uintptr_t top;
static Block *unused[32];

void *malloc(size_t size) {
    if (size > (size_t(1) << 30)) return nullptr;
    size_t power = 5;
    while ((size_t(1) << power) < size + HEADER) power++;
    if (Block *block = unused[power]) {
        unused[power] = block->next;
        return reinterpret_cast<uint8_t *>(block) + HEADER;
    }
    if (!top) top = (reinterpret_cast<uintptr_t>(&__heap_base) + 15) & ~uintptr_t(15);
    uint64_t end = uint64_t(top) + (uint64_t(1) << power), have = uint64_t(__builtin_wasm_memory_size(0)) << 16;
    if (end > have && __builtin_wasm_memory_grow(0, size_t((end - have + 65535) >> 16)) == size_t(-1)) return nullptr;
    Block *block = reinterpret_cast<Block *>(top);
    top = uintptr_t(end);
    block->power = power;
    return reinterpret_cast<uint8_t *>(block) + HEADER;
}

void free(void *contents) {
    if (!contents) return;
    Block *block = reinterpret_cast<Block *>(static_cast<uint8_t *>(contents) - HEADER);
    block->next = unused[block->power];
    unused[block->power] = block;
}

void *realloc(void *old, size_t size) {
    if (!old) return malloc(size);
    Block *block = reinterpret_cast<Block *>(static_cast<uint8_t *>(old) - HEADER);
    size_t room = (size_t(1) << block->power) - HEADER;
    if (size <= room) return old;
    void *larger = malloc(size);
    if (!larger) return nullptr;
    __builtin_memcpy(larger, old, room);
    free(old);
    return larger;
}

} // extern "C"
