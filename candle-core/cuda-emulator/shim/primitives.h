// The functions of kernels/primitives.cu, which there are inline PTX.

__device__ inline float f16_to_float(unsigned short bits) {
    unsigned sign = (unsigned)(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return emu_bits<float>(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * ((float)fraction * 0x1p-24f);
    return emu_bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

__device__ inline unsigned short float_to_f16(float value) {
    unsigned bits = emu_bits<unsigned>(value), sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7fff;
    if (bits >= 0x477ff000) return sign | 0x7c00;  // 65520, the tie above the largest
    if (bits < 0x38800000)  // subnormal: the sum's last bit is worth 2^-24, and it rounds
        return sign | (emu_bits<unsigned>(emu_bits<float>(bits) + 0.5f) - 0x3f000000u);
    return sign | (bits + 0xfff + ((bits >> 13) & 1) - 0x38000000) >> 13;
}

__device__ inline unsigned short double_to_f16(double value) {
    unsigned long long bits = emu_bits<unsigned long long>(value);
    unsigned short sign = (bits >> 48) & 0x8000;
    bits &= ~0ull >> 1;
    double size = emu_bits<double>(bits);
    if (size != size) return 0x7e00;  // not what a float gives: seen on an H100
    if (size >= 65520.0) return sign | 0x7c00;
    if (size < 0x1p-14)
        return sign | (unsigned short)(emu_bits<unsigned long long>(size + 0x1p28) - emu_bits<unsigned long long>(0x1p28));
    return sign | (unsigned short)((bits + (1ull << 41) - 1 + ((bits >> 42) & 1) - (1008ull << 52)) >> 42);
}

__device__ inline float bf16_to_float(unsigned short bits) { return emu_bits<float>((unsigned)bits << 16); }

__device__ inline unsigned short float_to_bf16(float value) {
    if (value != value) return 0x7fff;
    unsigned bits = emu_bits<unsigned>(value);
    return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__device__ inline unsigned short double_to_bf16(double value) {
    float cut = __double2float_rz(value);
    if ((double)cut != value && value == value) cut = emu_bits<float>(emu_bits<unsigned>(cut) | 1);
    return float_to_bf16(cut);
}

__device__ inline unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) {
    unsigned d = 0;
    for (int i = 0; i < 32; i += 16) {
        double product = (double)f16_to_float(a >> i) * f16_to_float(b >> i);
        d |= (unsigned)double_to_f16(product + f16_to_float(c >> i)) << i;
    }
    return d;
}

#define EMU_MMA(name, D, N, A, B, pointer_a, pointer_b)                                \
    __device__ inline void name(D (&d)[N], const unsigned A, const unsigned B) {       \
        EmuMatrices matrices = {d, pointer_a, pointer_b};                              \
        emu_collective(emu_op_##name, 0xffffffffu, &matrices);                         \
    }
EMU_MMA(mma_m16n8k8_f16, float, 4, (&a)[2], &b, a, &b)
EMU_MMA(mma_m16n8k16_f16, float, 4, (&a)[4], (&b)[2], a, b)
#if __CUDA_ARCH__ >= 800
EMU_MMA(mma_m16n8k16_bf16, float, 4, (&a)[4], (&b)[2], a, b)
EMU_MMA(mma_m16n8k8_tf32, float, 4, (&a)[4], (&b)[2], a, b)
#endif
EMU_MMA(mma_m16n8k32_s8, int, 4, (&a)[4], (&b)[2], a, b)
EMU_MMA(mma_m8n8k16_s8, int, 2, &a, &b, &a, &b)

#define EMU_LDMATRIX(name, N)                                                          \
    __device__ inline void name(unsigned (&r)[N], const void* shared_row) {            \
        EmuRows rows = {r, shared_row};                                                \
        emu_collective(emu_op_##name, 0xffffffffu, &rows);                             \
    }
EMU_LDMATRIX(ldmatrix_x4, 4)
EMU_LDMATRIX(ldmatrix_x2, 2)
EMU_LDMATRIX(ldmatrix_x4_trans, 4)
EMU_LDMATRIX(ldmatrix_x2_trans, 2)

// The copy is made when it is waited for: a kernel that forgets to wait reads what was there before.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
    if (((size_t)shared | (size_t)global) % 16) emu_fail("copy_async_16 with a pointer that is not aligned to 16 bytes");
#if __CUDA_ARCH__ >= 800
    emu_copy_async(shared, global, valid);
#else
    *(uint4*)shared = valid ? *(const uint4*)global : make_uint4(0, 0, 0, 0);
#endif
}
__device__ inline void copy_async_commit() { emu_copy_commit(); }
template <int N> __device__ inline void copy_async_wait() { emu_copy_wait(N); }
__device__ inline void grid_dependency_wait() {}
__device__ inline void grid_dependency_launch() {}
