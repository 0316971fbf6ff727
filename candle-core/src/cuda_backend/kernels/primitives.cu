// Operations that CUDA C++ lacks: 16-bit floats, matrix instructions, asynchronous copies. All inline PTX of the backend is in this file. A
// program compiled at run time has no CUDA headers, so f16 and bf16 are passed as the bits of an `unsigned short`, two of them as an
// `unsigned` with the first in the low half.
//
// An emulator defines CANDLE_CUDA_EMULATOR and provides these functions itself.
//
// Functions that an architecture does not support are not declared there: a kernel that uses one fails to compile, with its name in the
// message. Layouts of fragments: PTX ISA, "Warp-level matrix instructions". With g = lane / 4 and t = lane % 4, a lane holds rows g and g +
// 8 of A (16 x 16) at columns 2t, 2t + 1 and the same + 8; column g of B; rows g, g + 8 of D at 2t, 2t + 1.
#ifndef CANDLE_CUDA_EMULATOR

// ---- 16-bit floats ----

__device__ __forceinline__ float f16_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Nearest, ties to even.
__device__ __forceinline__ unsigned short float_to_f16(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ unsigned short double_to_f16(double value) {
    unsigned short bits;
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(value));
    return bits;
}

__device__ __forceinline__ float bf16_to_float(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

// Nearest, ties to even; every NaN becomes 0x7fff, like the instruction of sm_80.
__device__ __forceinline__ unsigned short float_to_bf16(float value) {
#if __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    if (value != value) return 0x7fff;
    unsigned bits = __float_as_uint(value);
    return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
}

// Through a float that is truncated, with its last bit set if the value was not exact ("round to odd"): the second rounding then finds no
// false tie.
__device__ __forceinline__ unsigned short double_to_bf16(double value) {
    float cut = __double2float_rz(value);
    if ((double)cut != value && value == value) cut = __uint_as_float(__float_as_uint(cut) | 1);
    return float_to_bf16(cut);
}

// a * b + c on both halves, one rounding each.
__device__ __forceinline__ unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// ---- Matrix instructions: d += a b, by a whole warp ----

__device__ __forceinline__ void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], const unsigned& b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    // The halves of k are the fragments of the shorter instruction.
    unsigned first[2] = {a[0], a[1]}, second[2] = {a[2], a[3]};
    mma_m16n8k8_f16(d, first, b[0]);
    mma_m16n8k8_f16(d, second, b[1]);
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Operands are the bits of f32; the low 13 are ignored. A lane holds rows g, g + 8 of A at columns t and t + 4 (row g, row g + 8, then the
// same at t + 4), and rows t and t + 4 of column g of B.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Four bytes per register: row g of A at columns 4t .. 4t + 3, column g of B at rows 4t .. 4t + 3; row g of D at 2t, 2t + 1.
__device__ __forceinline__ void mma_m8n8k16_s8(int (&d)[2], const unsigned& a, const unsigned& b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a), "r"(b));
}

// As above: a[0], a[1] are rows g and g + 8, a[2], a[3] the same at columns + 16; b[1] is rows + 16.
__device__ __forceinline__ void mma_m16n8k32_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    int top[2] = {d[0], d[1]}, bottom[2] = {d[2], d[3]};
    mma_m8n8k16_s8(top, a[0], b[0]);
    mma_m8n8k16_s8(bottom, a[1], b[0]);
    mma_m8n8k16_s8(top, a[2], b[1]);
    mma_m8n8k16_s8(bottom, a[3], b[1]);
    d[0] = top[0], d[1] = top[1], d[2] = bottom[0], d[3] = bottom[1];
#endif
}

// ---- Fragments from shared memory ----

// Matrices of 8 x 8 16-bit elements; lanes 8i .. 8i + 7 hold the addresses of the rows of matrix i, each of 16 bytes with that alignment.
// Lane l receives from each matrix row l / 4 at columns 2 (l % 4) and + 1. The two-matrix forms use the pointers of lanes 0 .. 15.

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(unsigned (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

// Transposed: lane l receives rows 2 (l % 4) and + 1 of column l / 4.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

// ---- Copies that overlap with work ----

// Copies 16 bytes from global to shared memory, both aligned to 16; writes zeros if not `valid`, and then does not read `global`, although
// it has to be a pointer into an allocation.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
#else
    *(uint4*)shared = valid ? *(const uint4*)global : make_uint4(0, 0, 0, 0);
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most N of this thread's latest groups are in flight. Other threads see the data after a barrier.
template <int N>
__device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// ---- Memory that cards share ----

// This thread's writes, and those visible to it, are visible to threads that read the flag with `load_acquire_system`.
__device__ __forceinline__ void store_release_system(unsigned* flag, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "r"(value) : "memory");
}

__device__ __forceinline__ unsigned load_acquire_system(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
    return value;
}

// Loads four words, not from a cache.
__device__ __forceinline__ void load_volatile(unsigned* to, const unsigned* from) {
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
}

// Halves of eight bytes are written atomically.
__device__ __forceinline__ void store_volatile(unsigned* to, const unsigned* from) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(to)), "r"(from[0]), "r"(from[1]),
                 "r"(from[2]), "r"(from[3])
                 : "memory");
}

// ---- Programmatic dependent launch ----

// Must precede the first access to data that the previous kernel may still write or read; does nothing if launches do not overlap.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel to start; it sees this one's writes only after its `grid_dependency_wait`.
__device__ __forceinline__ void grid_dependency_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
