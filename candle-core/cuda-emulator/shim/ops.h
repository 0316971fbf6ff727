// What a warp computes together: each takes every lane's operands and says what each lane gets.
#include "numbers.h"
#include "primitives.h"

#define EMU_EACH(lane) for (unsigned lanes_ = present, lane; lanes_ && (lane = __builtin_ctz(lanes_), 1); lanes_ &= lanes_ - 1)

EMU_API void emu_op_sync(void**, unsigned) {}

// A lane that is not there gives what nobody should use: all bits set.
EMU_API void emu_op_shuffle(void** operands, unsigned present) {
    EmuShuffle** lane_of = (EmuShuffle**)operands;
    EMU_EACH(lane) {
        unsigned from = lane_of[lane]->from;
        if (from < 32 && present >> from & 1) lane_of[lane]->result = lane_of[from]->value;
    }
}

EMU_API void emu_op_ballot(void** operands, unsigned present) {
    EmuShuffle** lane_of = (EmuShuffle**)operands;
    unsigned votes = 0;
    EMU_EACH(lane) votes |= (unsigned)lane_of[lane]->value << lane;
    EMU_EACH(lane) lane_of[lane]->result = votes;
}

EMU_API void emu_op_match(void** operands, unsigned present) {
    EmuShuffle** lane_of = (EmuShuffle**)operands;
    EMU_EACH(lane) {
        unsigned same = 0, own = lane;
        EMU_EACH(lane) same |= (unsigned)(lane_of[lane]->value == lane_of[own]->value) << lane;
        lane_of[own]->result = same;
    }
}

#define EMU_REDUCE(name, T, start, step)                                            \
    EMU_API void emu_op_reduce_##name(void** operands, unsigned present) {          \
        EmuShuffle** lane_of = (EmuShuffle**)operands;                              \
        T all = start;                                                              \
        EMU_EACH(lane) {                                                            \
            T v = (T)lane_of[lane]->value;                                          \
            all = step;                                                             \
        }                                                                           \
        EMU_EACH(lane) lane_of[lane]->result = (unsigned)all;                       \
    }
EMU_REDUCE(add, unsigned, 0, all + v)
EMU_REDUCE(min_u32, unsigned, ~0u, v < all ? v : all)
EMU_REDUCE(max_u32, unsigned, 0, v > all ? v : all)
EMU_REDUCE(min_s32, int, 2147483647, v < all ? v : all)
EMU_REDUCE(max_s32, int, -2147483647 - 1, v > all ? v : all)
EMU_REDUCE(and, unsigned, ~0u, all & v)
EMU_REDUCE(or, unsigned, 0, all | v)
EMU_REDUCE(xor, unsigned, 0, all ^ v)

// ---- Matrix products: operands of all lanes to plain matrices, the product, and back ----

static void emu_whole(unsigned present) {
    if (present != ~0u) emu_fail("a matrix instruction takes a warp of 32 lanes, some of this one's are missing");
}
static float emu_f16(unsigned pair, int half) { return f16_to_float((unsigned short)(pair >> 16 * half)); }
static float emu_bf16(unsigned pair, int half) { return bf16_to_float((unsigned short)(pair >> 16 * half)); }
static float emu_tf32(unsigned bits) { return emu_bits<float>(bits & ~0x1fffu); }

// By rows of eight columns, which a compiler makes vectors of.
template <int K, class T>
static void emu_product(void** operands, const T (&a)[16][K], const T (&b)[K][8]) {
    T d[16][8];
    auto element = [&](int lane, int i) -> T& { return d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]; };
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) element(lane, i) = ((T*)((EmuMatrices*)operands[lane])->d)[i];
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < K; k++)
            for (int column = 0; column < 8; column++) d[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) ((T*)((EmuMatrices*)operands[lane])->d)[i] = element(lane, i);
}

template <int K, float (*element)(unsigned, int)>
static void emu_mma_16(void** operands) {
    float a[16][K], b[K][8];
    for (int lane = 0; lane < 32; lane++) {
        EmuMatrices& own = *(EmuMatrices*)operands[lane];
        int g = lane / 4, t = lane % 4;
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < K / 4; i++) a[g + i % 2 * 8][2 * t + half + i / 2 * 8] = element(own.a[i], half);
            for (int i = 0; i < K / 8; i++) b[2 * t + half + i * 8][g] = element(own.b[i], half);
        }
    }
    emu_product<K, float>(operands, a, b);
}
EMU_API void emu_op_mma_m16n8k16_f16(void** operands, unsigned present) {
    emu_whole(present);
    emu_mma_16<16, emu_f16>(operands);
}
EMU_API void emu_op_mma_m16n8k16_bf16(void** operands, unsigned present) {
    emu_whole(present);
    emu_mma_16<16, emu_bf16>(operands);
}
EMU_API void emu_op_mma_m16n8k8_f16(void** operands, unsigned present) {
    emu_whole(present);
    emu_mma_16<8, emu_f16>(operands);
}
EMU_API void emu_op_mma_m16n8k8_tf32(void** operands, unsigned present) {
    emu_whole(present);
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; lane++) {
        EmuMatrices& own = *(EmuMatrices*)operands[lane];
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) a[g + i % 2 * 8][t + i / 2 * 4] = emu_tf32(own.a[i]);
        for (int i = 0; i < 2; i++) b[t + i * 4][g] = emu_tf32(own.b[i]);
    }
    emu_product<8, float>(operands, a, b);
}
EMU_API void emu_op_mma_m16n8k32_s8(void** operands, unsigned present) {
    emu_whole(present);
    int a[16][32], b[32][8];
    for (int lane = 0; lane < 32; lane++) {
        EmuMatrices& own = *(EmuMatrices*)operands[lane];
        int g = lane / 4, t = lane % 4;
        for (int byte = 0; byte < 4; byte++) {
            for (int i = 0; i < 4; i++) a[g + i % 2 * 8][4 * t + byte + i / 2 * 16] = (signed char)(own.a[i] >> 8 * byte);
            for (int i = 0; i < 2; i++) b[4 * t + byte + i * 16][g] = (signed char)(own.b[i] >> 8 * byte);
        }
    }
    emu_product<32, int>(operands, a, b);
}
EMU_API void emu_op_mma_m8n8k16_s8(void** operands, unsigned present) {
    emu_whole(present);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 2; i++) {
            int row = lane / 4, column = lane % 4 * 2 + i;
            int* d = (int*)((EmuMatrices*)operands[lane])->d + i;
            for (int t = 0; t < 4; t++)
                *d = __dp4a((int)*((EmuMatrices*)operands[row * 4 + t])->a, (int)*((EmuMatrices*)operands[column * 4 + t])->b, *d);
        }
}

template <int N, bool TRANSPOSED>
static void emu_ldmatrix(void** operands, unsigned present) {
    emu_whole(present);
    EmuRows** lane_of = (EmuRows**)operands;
    unsigned short matrix[N][8][8];
    for (int row = 0; row < 8 * N; row++) {
        if ((size_t)lane_of[row]->row % 16) emu_fail("ldmatrix with a row that is not aligned to 16 bytes");
        memcpy(matrix[row / 8][row % 8], lane_of[row]->row, 16);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < N; i++) {
            int outer = lane / 4, inner = lane % 4 * 2;
            unsigned low = TRANSPOSED ? matrix[i][inner][outer] : matrix[i][outer][inner];
            unsigned high = TRANSPOSED ? matrix[i][inner + 1][outer] : matrix[i][outer][inner + 1];
            lane_of[lane]->result[i] = low | high << 16;
        }
}
EMU_API void emu_op_ldmatrix_x4(void** o, unsigned present) { emu_ldmatrix<4, false>(o, present); }
EMU_API void emu_op_ldmatrix_x2(void** o, unsigned present) { emu_ldmatrix<2, false>(o, present); }
EMU_API void emu_op_ldmatrix_x4_trans(void** o, unsigned present) { emu_ldmatrix<4, true>(o, present); }
EMU_API void emu_op_ldmatrix_x2_trans(void** o, unsigned present) { emu_ldmatrix<2, true>(o, present); }
