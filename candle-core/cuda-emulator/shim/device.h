// The words of CUDA C++ that a kernel's text uses, for a host compiler: put before every text that is compiled.
// No header is included, as NVRTC has none at hand: a name that a text gets from here, NVRTC has built in.
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __global__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
// Of one block at a time on a thread of the host.
#define __shared__ static __thread
#define CANDLE_CUDA_EMULATOR 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define warpSize 32

typedef decltype(sizeof(0)) size_t;
typedef decltype((char*)0 - (char*)0) ptrdiff_t;

// ---- Vectors ----

#define EMU_VECTOR1(T, name) struct name##1 { T x; }; \
    inline name##1 make_##name##1(T x) { return {x}; }
#define EMU_VECTOR2(T, name, align) struct __align__(align) name##2 { T x, y; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define EMU_VECTOR3(T, name) struct name##3 { T x, y, z; }; \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define EMU_VECTOR4(T, name, align) struct __align__(align) name##4 { T x, y, z, w; }; \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define EMU_VECTORS(T, name, align2, align4) \
    EMU_VECTOR1(T, name) EMU_VECTOR2(T, name, align2) EMU_VECTOR3(T, name) EMU_VECTOR4(T, name, align4)
EMU_VECTORS(signed char, char, 2, 4)
EMU_VECTORS(unsigned char, uchar, 2, 4)
EMU_VECTORS(short, short, 4, 8)
EMU_VECTORS(unsigned short, ushort, 4, 8)
EMU_VECTORS(int, int, 8, 16)
EMU_VECTORS(unsigned, uint, 8, 16)
EMU_VECTORS(long long, longlong, 16, 16)
EMU_VECTORS(unsigned long long, ulonglong, 16, 16)
EMU_VECTORS(float, float, 8, 16)
EMU_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---- What the runtime keeps ----

#define EMU_STATE extern "C" __thread __attribute__((tls_model("initial-exec")))
EMU_STATE uint3 threadIdx, blockIdx, blockDim, gridDim;
EMU_STATE void* emu_dynamic_shared;
EMU_STATE unsigned emu_thread;  // its number in the block

typedef void (*EmuOp)(void** lanes, unsigned present);
struct EmuShuffle { unsigned long long value, result; int from; };
struct EmuMatrices { void* d; const unsigned *a, *b; };
struct EmuBarrier { unsigned threads, holding; };
struct EmuRows { unsigned* result; const void* row; };
extern "C" {
// Waits for the lanes of `mask`; the last to come calls `op` with every lane's operands.
void emu_collective(EmuOp op, unsigned mask, void* operands);
// Waits for the block: how many came, and how many with a predicate that holds.
EmuBarrier emu_barrier(int predicate);
unsigned emu_active();
void emu_copy_async(void* shared, const void* global, bool valid);
void emu_copy_commit();
void emu_copy_wait(int groups);
void emu_fail(const char* what) __attribute__((noreturn));
void emu_op_sync(void**, unsigned);
void emu_op_shuffle(void**, unsigned);
void emu_op_ballot(void**, unsigned);
void emu_op_reduce_add(void**, unsigned);
void emu_op_reduce_min_s32(void**, unsigned);
void emu_op_reduce_max_s32(void**, unsigned);
void emu_op_reduce_min_u32(void**, unsigned);
void emu_op_reduce_max_u32(void**, unsigned);
void emu_op_reduce_and(void**, unsigned);
void emu_op_reduce_or(void**, unsigned);
void emu_op_reduce_xor(void**, unsigned);
void emu_op_match(void**, unsigned);
void emu_op_mma_m16n8k16_f16(void**, unsigned);
void emu_op_mma_m16n8k16_bf16(void**, unsigned);
void emu_op_mma_m16n8k8_f16(void**, unsigned);
void emu_op_mma_m16n8k8_tf32(void**, unsigned);
void emu_op_mma_m16n8k32_s8(void**, unsigned);
void emu_op_mma_m8n8k16_s8(void**, unsigned);
void emu_op_ldmatrix_x4(void**, unsigned);
void emu_op_ldmatrix_x2(void**, unsigned);
void emu_op_ldmatrix_x4_trans(void**, unsigned);
void emu_op_ldmatrix_x2_trans(void**, unsigned);
int printf(const char*, ...);
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
}

template <class To, class From>
__forceinline__ To emu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
