// dst[m][n] = sum over k of x[m][k] weight[n][k], plus bias[n] and residual[m][n]: rows of bytes (ggml_activations.cu) times rows of blocks
// as a file has them, by matrix instructions on bytes.
//   FORMAT    of ggml.cu                       DST     dtype of the result, bias and residual
//   BM, BN    rows of x and of the weight that a block of four warps multiplies
//   WARPS_M   warps along the rows of x; the others are along those of the weight
//   BIAS, RESIDUAL   whether there are such
//   SPLITS    blocks that share the columns of x: with more than one the result is as many partial sums, one after another
//
// Both tiles go through shared memory, DEPTH columns at a time: codes as signed bytes, their scales, and where there are minima, sums of x.

struct Sizes { u64 rows, n, k; };

const int THREADS = 128, DEPTH = 128;
// Rows in shared memory begin 36 words apart, so that the lanes of a fragment meet different banks.
const int ROW = DEPTH / 4 + 4;
const int GROUP = FORMAT::group, GROUPS = DEPTH / GROUP;
const int WARPS_N = 4 / WARPS_M, WM = BM / WARPS_M, WN = BN / WARPS_N, TM = WM / 16, TN = WN / 8;

struct Tiles {
    u32 x[BM][ROW], w[BN][ROW];
    f32 x_scale[BM][DEPTH / 32 + 1], w_scale[BN][GROUPS + 1];
    f32 x_sum[FORMAT::minima ? BM : 1][GROUPS + 1], w_min[FORMAT::minima ? BN : 1][GROUPS + 1];
};

INLINE void load_x(Tiles& tiles, const u32* codes, const f32* scales, u64 first, u64 column, Sizes size) {
    // Sixteen codes at once.
    for (int i = threadIdx.x; i < BM * (DEPTH / 16); i += THREADS) {
        int row = i / (DEPTH / 16), piece = i % (DEPTH / 16);
        u64 at = column + 16 * piece;
        bool inside = first + row < size.rows && at < size.k;
        Pack<u32, 4> four = {};
        f32 scale = 0;
        if (inside) {
            four = load<4>(codes + ((first + row) * size.k + at) / 4);
            scale = scales[((first + row) * size.k + at) / 32];
        }
#pragma unroll
        for (int j = 0; j < 4; j++) tiles.x[row][4 * piece + j] = four.at[j];
        if (piece % 2 == 0) tiles.x_scale[row][piece / 2] = scale;
        if (FORMAT::minima) {
            i32 sum = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) sum = __dp4a((i32)four.at[j], 0x01010101, sum);
            // Neighbouring threads have the halves of 32 elements.
            if (GROUP == 32) sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            if (GROUP == 16 || piece % 2 == 0) tiles.x_sum[row][16 * piece / GROUP] = scale * (f32)sum;
        }
    }
}

INLINE void load_w(Tiles& tiles, const u8* weight, u64 first, u64 column, Sizes size) {
    const int parts = FORMAT::elements / 8;
    u64 row_bytes = size.k / FORMAT::elements * FORMAT::bytes;
    for (int i = threadIdx.x; i < BN * (DEPTH / 8); i += THREADS) {
        int row = i / (DEPTH / 8), piece = i % (DEPTH / 8);
        u64 at = column + 8 * piece;
        Eight eight = {};
        if (first + row < size.n && at < size.k) {
            u64 p = at / 8;
            eight = FORMAT::eight(weight + (first + row) * row_bytes + p / parts * FORMAT::bytes, (int)(p % parts));
        }
        tiles.w[row][2 * piece] = centered<FORMAT>(eight.codes[0]);
        tiles.w[row][2 * piece + 1] = centered<FORMAT>(eight.codes[1]);
        if (8 * piece % GROUP == 0) {
            tiles.w_scale[row][8 * piece / GROUP] = eight.scale;
            if (FORMAT::minima) tiles.w_min[row][8 * piece / GROUP] = eight.min;
        }
    }
}

KERNEL(ggml_tiles)(const u8* weight, const u32* codes, const f32* scales, DST* dst, Sizes size, const DST* bias, const DST* residual,
                   u64 residual_row) {
    __shared__ Tiles tiles;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int warp_m = warp % WARPS_M * WM, warp_n = warp / WARPS_M * WN;
    // Blocks with the same rows of the weight follow each other.
    u64 down = (size.rows + BM - 1) / BM, count = down * ((size.n + BN - 1) / BN), tile = blockIdx.x % count;
    u64 first_m = tile % down * BM, first_n = tile / down * BN;
    // The columns of this block.
    u64 split = blockIdx.x / count, depth = (size.k + SPLITS * DEPTH - 1) / (SPLITS * DEPTH) * DEPTH;
    u64 end = (split + 1) * depth < size.k ? (split + 1) * depth : size.k;
    dst += split * size.rows * size.n;
    f32 sums[TM][TN][4] = {};
    for (u64 column = split * depth; column < end; column += DEPTH) {
        load_x(tiles, codes, scales, first_m, column, size);
        load_w(tiles, weight, first_n, column, size);
        __syncthreads();
#pragma unroll
        for (int step = 0; step < DEPTH / 32; step++) {
            u32 a[TM][4], b[TN][2];
            f32 x_scale[TM][2];
#pragma unroll
            for (int i = 0; i < TM; i++) {
                int row = warp_m + 16 * i + g;
#pragma unroll
                for (int j = 0; j < 4; j++) a[i][j] = tiles.x[row + j % 2 * 8][8 * step + t + j / 2 * 4];
                x_scale[i][0] = tiles.x_scale[row][step], x_scale[i][1] = tiles.x_scale[row + 8][step];
            }
#pragma unroll
            for (int j = 0; j < TN; j++) {
                b[j][0] = tiles.w[warp_n + 8 * j + g][8 * step + t];
                b[j][1] = tiles.w[warp_n + 8 * j + g][8 * step + t + 4];
            }
            // Groups of 16 are multiplied one at a time, with zeros in place of the other.
#pragma unroll
            for (int half = 0; half < 32 / GROUP; half++) {
                int group = 32 / GROUP * step + half;
#pragma unroll
                for (int j = 0; j < TN; j++) {
                    f32 w_scale[2], w_min[2];
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        int row = warp_n + 8 * j + 2 * t + c;
                        w_scale[c] = tiles.w_scale[row][group];
                        w_min[c] = FORMAT::minima ? tiles.w_min[row][group] : 0;
                    }
#pragma unroll
                    for (int i = 0; i < TM; i++) {
                        i32 d[4] = {};
                        if (GROUP == 32) {
                            mma_m16n8k32_s8(d, a[i], b[j]);
                        } else {
                            u32 part[4] = {};
                            part[2 * half] = a[i][2 * half], part[2 * half + 1] = a[i][2 * half + 1];
                            mma_m16n8k32_s8(d, part, b[j]);
                        }
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            sums[i][j][e] += x_scale[i][e / 2] * w_scale[e % 2] * (f32)d[e];
                            if (FORMAT::minima) {
                                sums[i][j][e] += tiles.x_sum[warp_m + 16 * i + g + e / 2 * 8][group] * w_min[e % 2];
                            }
                        }
                    }
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; i++) {
#pragma unroll
        for (int j = 0; j < TN; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u64 row = first_m + warp_m + 16 * i + g + e / 2 * 8, n = first_n + warp_n + 8 * j + 2 * t + e % 2;
                if (row >= size.rows || n >= size.n) continue;
                f32 sum = sums[i][j][e];
#if BIAS
                sum += value(bias[n]);
#endif
#if RESIDUAL
                sum += value(residual[row * residual_row + n]);
#endif
                dst[row * size.n + n] = as<DST>(sum);
            }
        }
    }
}
