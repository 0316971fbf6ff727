// What kernels call: the threads of a block, their barriers, what a warp does together. Compiled once, loaded before
// every kernel.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <unistd.h>
#include "device.h"

#define EMU_API extern "C" __attribute__((visibility("default")))
#undef warpSize
enum { EMU_STACK = 256 * 1024, EMU_GUARD = 16 * 1024, EMU_MAX_SHARED = 232448, EMU_SHARED_GUARD = 4096 };

extern "C" {
__attribute__((visibility("default"))) __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
__attribute__((visibility("default"))) __thread void* emu_dynamic_shared;
__attribute__((visibility("default"))) __thread unsigned emu_thread;
}

#include "fiber.h"

// As `Launch` in src/launch.rs.
struct EmuLaunch {
    const char* name;
    void (*run)(void**);
    void** parameters;
    unsigned grid[3], block[3];
    size_t dynamic_shared;
    char* (*shared_address)();
    size_t reversed;  // the last thread goes first
};

struct EmuCopy { void* shared; const void* global; bool valid; int group; };
struct EmuWarp {
    unsigned alive, runnable, waiting;
    unsigned mask[32];
    EmuOp op[32];
    void* operands[32];
};
struct EmuThread {
    void* stack_pointer;
    int stack;
    int groups;  // of asynchronous copies that were ended
    std::vector<EmuCopy> copies;
};

struct EmuBlock {
    const EmuLaunch* launch;
    unsigned threads, unstarted, alive, warps;
    unsigned arrived, holding;
    EmuBarrier last;
    unsigned at_barrier[32];
    EmuWarp warp[32];
    EmuThread thread[1024];
    uint3 index[1024];
    EmuStacks stacks;
    void* home;
    int stack;  // that which runs
    void* shared = nullptr;
    char* program_shared;
    size_t program_shared_size;
    ~EmuBlock() { free(shared); }
};
// A thread of the host has its own, kept for the next launch.
static thread_local EmuBlock* emu_block;
struct EmuOwner { ~EmuOwner() { delete emu_block; emu_block = nullptr; } };
static thread_local EmuOwner emu_owner;

static void emu_where(const char* what) {
    const char* name = emu_block && emu_block->launch ? emu_block->launch->name : "(no kernel)";
    fprintf(stderr, "CUDA emulator: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s\n", name, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
    fflush(stderr);
}
EMU_API void emu_fail(const char* what) {
    emu_where(what);
    abort();
}

static void emu_enter(EmuBlock& b, unsigned thread) {
    emu_thread = thread;
    threadIdx = b.index[thread];
}

static int emu_first(EmuBlock& b, unsigned lanes) {
    return b.launch->reversed ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes);
}

static void emu_deadlock(EmuBlock& b) {
    emu_where("no thread of the block can go on");
    for (unsigned w = 0; w < b.warps; w++)
        fprintf(stderr, "  warp %u: lanes %08x not at their end, %08x at __syncthreads, %08x waiting for others of the warp\n",
                w, b.warp[w].alive, b.at_barrier[w], b.warp[w].waiting);
    abort();
}

enum { EMU_START = -1, EMU_HOME = -2 };
// Whose turn it is: lanes of the warp that runs, then threads that have not begun, then other warps.
static int emu_next(EmuBlock& b) {
    EmuWarp& own = b.warp[emu_thread / 32];
    if (own.runnable) return emu_thread / 32 * 32 + emu_first(b, own.runnable);
    if (b.unstarted) return EMU_START;
    for (unsigned i = 0; i < b.warps; i++) {
        unsigned w = b.launch->reversed ? b.warps - 1 - i : i;
        if (b.warp[w].runnable) return w * 32 + emu_first(b, b.warp[w].runnable);
    }
    if (!b.alive) return EMU_HOME;
    emu_deadlock(b);
    return 0;
}

static void emu_run_threads();

static void emu_go(EmuBlock& b, void** save, int next) {
    void* to;
    if (next == EMU_HOME) {
        to = b.home;
    } else if (next == EMU_START) {
        b.stack = b.stacks.take();
        to = emu_fresh(b.stacks.top(b.stack), emu_run_threads);
    } else {
        b.warp[next / 32].runnable &= ~(1u << next % 32);
        b.stack = b.thread[next].stack;
        emu_enter(b, next);
        to = b.thread[next].stack_pointer;
    }
    emu_switch(save, to);
}

static void emu_suspend(EmuBlock& b) {
    EmuThread& own = b.thread[emu_thread];
    own.stack = b.stack;
    emu_go(b, &own.stack_pointer, emu_next(b));
}

static void emu_release_barrier(EmuBlock& b) {
    if (b.arrived == 0 || b.arrived < b.alive) return;
    b.last = {b.arrived, b.holding};
    b.arrived = b.holding = 0;
    for (unsigned w = 0; w < b.warps; w++) {
        b.warp[w].runnable |= b.at_barrier[w];
        b.at_barrier[w] = 0;
    }
}

// Lets the lanes of `mask` go on if all of them are here. Lanes at their end count as here, as on the device.
static bool emu_release_warp(EmuBlock& b, EmuWarp& warp, unsigned mask) {
    unsigned present = mask & warp.alive;
    if ((warp.waiting & present) != present) return false;
    EmuOp op = nullptr;
    for (unsigned lanes = present; lanes; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        if (warp.mask[lane] != mask) return false;
        if (op && warp.op[lane] != op) emu_fail("lanes of one warp are at different instructions, each of which waits for all");
        op = warp.op[lane];
    }
    if (op) op(warp.operands, present);
    warp.waiting &= ~present;
    warp.runnable |= present;
    return true;
}

static void emu_finish_copies(EmuThread& thread, int groups) {
    size_t done = 0;
    for (; done < thread.copies.size() && thread.copies[done].group < groups; done++) {
        EmuCopy& copy = thread.copies[done];
        if (copy.valid) memcpy(copy.shared, copy.global, 16);
        else memset(copy.shared, 0, 16);
    }
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + done);
}

// Runs threads one after another on one stack, as long as none has to wait for others.
static void emu_run_threads() {
    EmuBlock& b = *emu_block;
    int next = EMU_START;
    do {
        unsigned left = b.unstarted--;
        emu_enter(b, b.launch->reversed ? left - 1 : b.threads - left);
        b.launch->run(b.launch->parameters);
        EmuThread& thread = b.thread[emu_thread];
        if (!thread.copies.empty()) emu_finish_copies(thread, thread.groups + 1);
        EmuWarp& warp = b.warp[emu_thread / 32];
        warp.alive &= ~(1u << emu_thread % 32);
        b.alive--;
        emu_release_barrier(b);
        for (unsigned lanes = warp.waiting; lanes & warp.waiting; lanes &= lanes - 1)
            if (warp.waiting >> __builtin_ctz(lanes) & 1) emu_release_warp(b, warp, warp.mask[__builtin_ctz(lanes)]);
        next = emu_next(b);
    } while (next == EMU_START);
    b.stacks.give(b.stack);
    void* nobody;
    emu_go(b, &nobody, next);
    __builtin_unreachable();
}

EMU_API EmuBarrier emu_barrier(int predicate) {
    EmuBlock& b = *emu_block;
    unsigned w = emu_thread / 32, lane = 1u << emu_thread % 32;
    b.at_barrier[w] |= lane;
    b.arrived++;
    b.holding += predicate != 0;
    emu_release_barrier(b);
    if (b.warp[w].runnable & lane) b.warp[w].runnable &= ~lane;
    else emu_suspend(b);
    return emu_block->last;
}

EMU_API void emu_collective(EmuOp op, unsigned mask, void* operands) {
    EmuBlock& b = *emu_block;
    EmuWarp& warp = b.warp[emu_thread / 32];
    unsigned lane = emu_thread % 32;
    if (!(mask >> lane & 1)) emu_fail("a lane is not in the mask that it names");
    warp.op[lane] = op;
    warp.mask[lane] = mask;
    warp.operands[lane] = operands;
    warp.waiting |= 1u << lane;
    if (emu_release_warp(b, warp, mask)) warp.runnable &= ~(1u << lane);
    else emu_suspend(b);
}

EMU_API unsigned emu_active() { return emu_block->warp[emu_thread / 32].alive; }

EMU_API void emu_copy_async(void* shared, const void* global, bool valid) {
    EmuThread& thread = emu_block->thread[emu_thread];
    thread.copies.push_back({shared, global, valid, thread.groups});
}
EMU_API void emu_copy_commit() { emu_block->thread[emu_thread].groups++; }
EMU_API void emu_copy_wait(int groups) {
    EmuThread& thread = emu_block->thread[emu_thread];
    emu_finish_copies(thread, thread.groups - groups);
}

static void emu_run_block(EmuBlock& b) {
    const EmuLaunch& launch = *b.launch;
    // Not zeros: a read of what no thread wrote gives NaN.
    memset(b.shared, 0xff, launch.dynamic_shared);
    if (b.program_shared_size) memset(b.program_shared, 0xff, b.program_shared_size);
    b.alive = b.unstarted = b.threads;
    b.arrived = b.holding = 0;
    for (unsigned w = 0; w < b.warps; w++) {
        unsigned lanes = b.threads - 32 * w;
        b.warp[w].alive = lanes >= 32 ? ~0u : (1u << lanes) - 1;
        b.warp[w].runnable = b.warp[w].waiting = b.at_barrier[w] = 0;
    }
    for (unsigned t = 0; t < b.threads; t++) b.thread[t].groups = 0;
    emu_thread = 0;
    emu_go(b, &b.home, EMU_START);
    const unsigned char* guard = (const unsigned char*)b.shared + launch.dynamic_shared;
    for (int i = 0; i < EMU_SHARED_GUARD; i++)
        if (guard[i] != 0xa5) emu_fail("a write past the end of the dynamic shared memory");
}

// Where this program's __shared__ variables are on this thread.
void emu_find_shared(EmuBlock& b);

// Runs blocks `first` up to `end`, counted along x, then y, then z.
EMU_API void emu_run(const EmuLaunch* launch, unsigned long long first, unsigned long long end) {
    if (!emu_block) {
        emu_block = new EmuBlock();
        (void)&emu_owner;
        emu_block->shared = aligned_alloc(1024, (EMU_MAX_SHARED + EMU_SHARED_GUARD + 1023) / 1024 * 1024);
    }
    EmuBlock& b = *emu_block;
    b.launch = launch;
    b.threads = launch->block[0] * launch->block[1] * launch->block[2];
    b.warps = (b.threads + 31) / 32;
    unsigned x = launch->block[0], y = launch->block[1];
    for (unsigned t = 0; t < b.threads; t++) b.index[t] = {t % x, t / x % y, t / x / y};
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    emu_dynamic_shared = b.shared;
    memset((char*)b.shared + launch->dynamic_shared, 0xa5, EMU_SHARED_GUARD);
    emu_find_shared(b);
    for (unsigned long long i = first; i < end; i++) {
        blockIdx = {(unsigned)(i % gridDim.x), (unsigned)(i / gridDim.x % gridDim.y), (unsigned)(i / gridDim.x / gridDim.y)};
        emu_run_block(b);
    }
    b.launch = nullptr;
}

#if defined(__linux__)
#include <link.h>
static int emu_match_program(struct dl_phdr_info* info, size_t, void* data) {
    EmuBlock& b = *(EmuBlock*)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        char* start = (char*)info->dlpi_tls_data;
        if (header.p_type != PT_TLS || !start || b.program_shared < start || b.program_shared >= start + header.p_memsz) continue;
        b.program_shared = start;
        b.program_shared_size = header.p_memsz;
        return 1;
    }
    return 0;
}
void emu_find_shared(EmuBlock& b) {
    b.program_shared = b.launch->shared_address();
    b.program_shared_size = 0;
    dl_iterate_phdr(emu_match_program, &b);
}
#else
void emu_find_shared(EmuBlock& b) { b.program_shared_size = 0; }
#endif

static struct sigaction emu_before[32];
static void emu_signal(int number, siginfo_t* info, void*) {
    if (emu_block && emu_block->launch) {
        char text[96];
        snprintf(text, sizeof text, "%s at address %p", number == SIGSEGV || number == SIGBUS ? "bad access" : "stopped", info->si_addr);
        emu_where(text);
    }
    sigaction(number, &emu_before[number], nullptr);
}
// Says in which kernel a bad access happened; what was to happen before happens then.
EMU_API void emu_watch() {
    struct sigaction action = {};
    action.sa_sigaction = emu_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(number, &action, &emu_before[number]);
}

#include "ops.h"
