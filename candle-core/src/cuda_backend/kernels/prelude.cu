// Shared by all kernels: the dtypes with their conversions, layouts, faults. Definitions of one kernel (`#define SRC f32`) and its file
// follow.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;

// Stored as their bits; kernels compute in f32.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8 { u8 bits; };

// A kernel is `KERNEL(name)(parameters) { .. }` in `name.cu`.
#define KERNEL(name) extern "C" __global__ void name##_kernel
#define INLINE __device__ __forceinline__

#define INFINITE __int_as_float(0x7f800000)

// ---- Types of arithmetic ----

template <class T> struct Compute { typedef T type; };
template <> struct Compute<f16> { typedef f32 type; };
template <> struct Compute<bf16> { typedef f32 type; };
template <> struct Compute<f8> { typedef f32 type; };
template <class T> using compute = typename Compute<T>::type;

template <class T> struct IsFloat { static const bool value = false; };
template <> struct IsFloat<f32> { static const bool value = true; };
template <> struct IsFloat<f64> { static const bool value = true; };

// F8E4M3: bias 7, no infinities, NaN where all but the sign is set.
INLINE f32 f8_to_float(u8 bits) {
    u32 exponent = (bits >> 3) & 15, fraction = bits & 7;
    f32 magnitude;
    if (exponent == 15 && fraction == 7) {
        magnitude = __uint_as_float(0x7fc00000);
    } else if (exponent == 0) {
        magnitude = (f32)fraction * 0.001953125f;
    } else {
        magnitude = __uint_as_float(((exponent + 120) << 23) | (fraction << 20));
    }
    return bits & 128 ? -magnitude : magnitude;
}

// To nearest, ties to even; overflow becomes the greatest number, 448; NaN stays NaN.
INLINE u8 float_to_f8(f32 x) {
    u32 bits = __float_as_uint(x), sign = (bits >> 24) & 128, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7f;
    if (magnitude >= 0x43e00000) return sign | 0x7e;
    if (magnitude < 0x3c800000) {
        // Below the least normal number, 2^-6: a multiple of 2^-9. Adding 1.5 * 2^23 rounds to an integer.
        f32 steps = __uint_as_float(magnitude) * 512.f;
        f32 rounded = (steps + 12582912.f) - 12582912.f;
        return sign | (u8)rounded;
    }
    u32 rounded = magnitude + 0x7ffff + ((magnitude >> 20) & 1);
    u32 code = (rounded >> 20) - (120 << 3);
    return sign | (u8)(code > 0x7e ? 0x7e : code);
}

// f64 to f32, truncated, with the last bit set if the value was not exact: a second rounding is then correct.
INLINE f32 to_odd(f64 x) {
    f32 cut = __double2float_rz(x);
    bool lost = (f64)cut != x && x == x;
    return lost ? __uint_as_float(__float_as_uint(cut) | 1) : cut;
}

template <class T> INLINE T value(T x) { return x; }
INLINE f32 value(f16 x) { return f16_to_float(x.bits); }
INLINE f32 value(bf16 x) { return bf16_to_float(x.bits); }
INLINE f32 value(f8 x) { return f8_to_float(x.bits); }

// ---- Conversions: Rust's `as`, which saturates from floats, converts NaN to 0, and keeps an integer's low bits ----

template <class T> struct Limits;
template <> struct Limits<u8> { static const i64 low = 0, high = 255; };
template <> struct Limits<i16> { static const i64 low = -32768, high = 32767; };
template <> struct Limits<u32> { static const i64 low = 0, high = 4294967295ll; };
template <> struct Limits<i32> { static const i64 low = -2147483648ll, high = 2147483647ll; };
template <> struct Limits<i64> { static const i64 low = -9223372036854775807ll - 1, high = 9223372036854775807ll; };

template <class A, class B> struct Same { static const bool value = false; };
template <class A> struct Same<A, A> { static const bool value = true; };

// `x`, of the type of arithmetic, as an element.
template <class To, class From> INLINE To as(From x) {
    if constexpr (Same<To, f16>::value) {
        if constexpr (Same<From, f64>::value) return f16{double_to_f16(x)};
        return f16{float_to_f16((f32)x)};
    } else if constexpr (Same<To, bf16>::value) {
        if constexpr (Same<From, f64>::value) return bf16{double_to_bf16(x)};
        return bf16{float_to_bf16((f32)x)};
    } else if constexpr (Same<To, f8>::value) {
        if constexpr (Same<From, f64>::value) return f8{float_to_f8(to_odd(x))};
        return f8{float_to_f8((f32)x)};
    } else if constexpr (IsFloat<From>::value && !IsFloat<To>::value) {
        if (!(x == x)) return 0;
        if (x <= (From)Limits<To>::low) return (To)Limits<To>::low;
        if (x >= (From)Limits<To>::high) return (To)Limits<To>::high;
        return (To)(i64)x;
    } else {
        return (To)x;
    }
}

// ---- Several elements at once ----

// N elements that are loaded and stored by one instruction: at most 16 bytes.
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

// For moves without arithmetic.
typedef Pack<u32, 4> u128;

template <int N, class T> INLINE Pack<T, N> load(const T* at) { return *(const Pack<T, N>*)at; }
// N contiguous elements, or one element N times.
template <int N, bool ONE, class T> INLINE Pack<T, N> run(const T* at) {
    if (!ONE) return load<N>(at);
    Pack<T, N> pack;
#pragma unroll
    for (int n = 0; n < N; n++) pack.at[n] = *at;
    return pack;
}
template <int N, class T> INLINE void store(T* at, const Pack<T, N>& pack) { *(Pack<T, N>*)at = pack; }

// ---- Offsets ----

INLINE u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// `views.rs`: N operands of the same shape.
template <int N> struct Views {
    u64 len;
    u64 dims[8];
    u64 strides[N][8];
    u64 offsets[N];
};

// The offsets of element `i` in each operand; I is the integer type of the computation.
template <int RANK, class I, int N> INLINE void places(const Views<N>& v, I i, I (&at)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) at[n] = (I)v.offsets[n];
    if (RANK == 0) {
#pragma unroll
        for (int n = 0; n < N; n++) at[n] += i;
    }
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        I size = (I)v.dims[axis];
        I rest = axis == 0 ? 0 : i / size, place = i - rest * size;
#pragma unroll
        for (int n = 0; n < N; n++) at[n] += place * (I)v.strides[n][axis];
        i = rest;
    }
}

// ---- Faults ----

// `faults.rs`: the first error that kernels detect in their data.
struct Fault {
    u32 code, unused;
    u64 index, size;
};

INLINE void report(Fault* fault, u32 code, u64 index, u64 size) {
    if (atomicCAS(&fault->code, 0u, code) == 0) {
        fault->index = index;
        fault->size = size;
    }
}

// ---- Reductions within a warp and a block ----

enum : u32 { ALL_LANES = 0xffffffff };

template <class Join, class T> INLINE T warp_join(T x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = Join::of(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

struct Add { template <class T> INLINE static T of(T a, T b) { return a + b; } };
struct Max { template <class T> INLINE static T of(T a, T b) { return a > b ? a : b; } };

template <class T> INLINE T warp_sum(T x) { return warp_join<Add>(x); }
template <class T> INLINE T warp_max(T x) { return warp_join<Max>(x); }

// For all threads of a block of whole warps. `scratch` holds 32 values; it may be reused after the next barrier.
template <class Join, class T> INLINE T block_join(T x, T* scratch, T none) {
    x = warp_join<Join>(x);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (warps == 1) return x;
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = lane < warps ? scratch[lane] : none;
    x = warp_join<Join>(x);
    __syncthreads();
    return x;
}

template <class T> INLINE T block_sum(T x, T* scratch) { return block_join<Add>(x, scratch, (T)0); }
