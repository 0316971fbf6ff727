// Several stacks on one thread of the host, and the switch from one to another.
#include <sys/mman.h>

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
extern "C" void emu_switch(void** save, void* to);

// What `emu_switch` to a stack of this top finds on it the first time.
static void* emu_fresh(char* top, void (*entry)()) {
    void** at = (void**)top;
    *--at = nullptr;  // where a return address of `entry` would be
    *--at = (void*)entry;
    for (int i = 0; i < 6; i++) *--at = nullptr;
    return at;
}
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type emu_switch, %function
emu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
extern "C" void emu_switch(void** save, void* to);

static void* emu_fresh(char* top, void (*entry)()) {
    void** at = (void**)(top - 160);
    memset(at, 0, 160);
    at[11] = (void*)entry;
    return at;
}
#else
#include <ucontext.h>
static void emu_switch(void** save, void* to) {
    ucontext_t own;
    *save = &own;
    swapcontext(&own, (ucontext_t*)to);
}

static void* emu_fresh(char* top, void (*entry)()) {
    ucontext_t* context = (ucontext_t*)(top - sizeof(ucontext_t) - 64);
    getcontext(context);
    context->uc_stack.ss_size = EMU_STACK - EMU_GUARD - 4096 - sizeof(ucontext_t) - 128;
    context->uc_stack.ss_sp = (char*)context - 64 - context->uc_stack.ss_size;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}
#endif

// One for each thread of a block, with a page below each that nobody may touch. Memory comes as it is used.
struct EmuStacks {
    char* base = nullptr;
    int usable = 0;
    std::vector<int> unused;

    int take() {
        if (!unused.empty()) {
            int stack = unused.back();
            unused.pop_back();
            return stack;
        }
        if (!base) {
            void* memory = mmap(nullptr, (size_t)EMU_STACK * 1025, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) emu_fail("no memory for the stacks of a block's threads");
            base = (char*)memory;
        }
        char* low = base + (size_t)EMU_STACK * usable;
        if (usable == 1025 || mprotect(low + EMU_GUARD, EMU_STACK - EMU_GUARD, PROT_READ | PROT_WRITE))
            emu_fail("no memory for the stacks of a block's threads");
        return usable++;
    }
    void give(int stack) { unused.push_back(stack); }
    // Not all at the same place of a page, where they would share a few lines of the cache.
    char* top(int stack) { return base + (size_t)EMU_STACK * (stack + 1) - stack * 192 % 4096; }
    ~EmuStacks() {
        if (base) munmap(base, (size_t)EMU_STACK * 1025);
    }
};
