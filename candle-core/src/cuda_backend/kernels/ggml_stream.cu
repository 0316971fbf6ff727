// dst[m][n] = finish(sum over k of x[m][k] weight[n][k]) for up to some hundred rows of x: rows of blocks as a file has them, each read once for
// 8 TN rows of x, times rows of bytes (ggml_activations.cu, PACKED), by matrix instructions on bytes. Bias comes first, then the gate, the
// activation, the residual.
//   FORMAT    of ggml.cu                       DST     dtype of the result, bias and residual
//   TM        tiles of 16 rows of the weight   TN      tiles of 8 rows of x; a block multiplies both
//   WARPS     warps of a block; chunk c of the columns belongs to warp c % WARPS, and their sums are added at the end
//   CHUNK     columns of a chunk               STAGES  chunks of a warp in shared memory, of which one is multiplied while the others arrive
//   PITCH     bytes from row to row of a chunk in shared memory
//   BIAS, RESIDUAL, ACTIVATES   whether there are such; ACTIVATION: the function
//   GATED     whether the weight has 2 n rows, and GATE(row n, row n + size.n) is the result
//
// The matrix instruction has the weight's rows as rows of A and x's rows as columns of B. A lane holds eight columns of 32 of both; which ones does
// not matter, as long as they are the same. NIBBLES: they are 4t to 4t + 3 and the same + 16, which formats of 4 bits have in the same four bytes;
// else 8t to 8t + 7, as FORMAT::eight gives them.

const int ROWS = 16 * TM, COLUMNS = 8 * TN, OUTPUTS = GATED ? ROWS / 2 : ROWS;
const int GROUP = FORMAT::group, RUNS = CHUNK / 32;
// Runs of a loop's body: few tiles leave registers for several.
const int UNROLL = TM * TN <= 2 ? 4 : TM * TN <= 4 ? 2 : 1;
const int CHUNK_BYTES = CHUNK / FORMAT::elements * FORMAT::bytes;
// A row's chunk begins anywhere in its first 16 bytes.
const int PIECES = (CHUNK_BYTES + 15 + 14) / 16;
// From row to row of x in the sums: lanes that store at once meet different banks.
const int SUMS = ROWS + 4;

// `tiles`: tiles of 8 rows that x has been padded to.
struct Sizes { u64 rows, n, k, tiles; };

// Columns of lane t of block or run `p / 4`.
INLINE Eight fragment(const u8* row, int p) {
    const int parts = FORMAT::elements / 8;
    const u8* block = row + p / parts * FORMAT::bytes;
#if NIBBLES
    // Scale and minimum, if there is one, then sixteen bytes.
    const u8* at = block + FORMAT::bytes - 16 + 4 * (p % 4);
    u32 word = FORMAT::bytes % 4 == 0 ? bytes4(at) : bytes22(at);
    Eight eight = {{0, 0}, half_at(block), FORMAT::minima ? half_at(block + 2) : 0};
    nibbles(word, eight.codes[0], eight.codes[1]);
    return eight;
#else
    return FORMAT::eight(block, p % parts);
#endif
}

// The weight's rows of a block.
struct Rows {
    const u8* first;
    u64 gated;
    u32 count, bytes;

    INLINE Rows(const u8* weight, u64 begin, u64 n, u64 row_bytes)
        : first(weight + begin * row_bytes), gated(n * row_bytes), count((u32)(n - begin < OUTPUTS ? n - begin : OUTPUTS)), bytes((u32)row_bytes) {}

    // Row r of the tiles. With a gate, a tile has eight rows of the gate, then the eight rows that they gate.
    INLINE const u8* row(int r) const {
        u32 output = GATED ? r / 16 * 8 + r % 8 : r;
        // Rows beyond the last are computed and left out.
        output = output < count ? output : count - 1;
        const u8* at = first + output * bytes;
        return GATED && r % 16 >= 8 ? at + gated : at;
    }
};

// 32 columns of x for a warp's tiles.
struct Columns {
    u32 codes[TN][2];
    f32 scale[TN][2];
};

INLINE void load_columns(Columns& x, const u32* codes, const f32* scales, u64 run, u64 first_tile, Sizes size, int lane) {
    u64 at = run * size.tiles + first_tile;
#pragma unroll
    for (int j = 0; j < TN; j++) {
        Pack<u32, 2> pair = load<2>(codes + (at + j) * 64 + 2 * lane);
        Pack<f32, 2> scale = load<2>(scales + (at + j) * 8 + 2 * (lane % 4));
        x.codes[j][0] = pair.at[0], x.codes[j][1] = pair.at[1];
        x.scale[j][0] = scale.at[0], x.scale[j][1] = scale.at[1];
    }
}

KERNEL(ggml_stream)(const u8* weight, const u32* codes, const f32* scales, DST* dst, Sizes size, const DST* bias, const DST* residual,
                    u64 residual_row) {
    extern __shared__ uint4 memory[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    // Blocks with the same rows of the weight follow each other.
    u64 down = size.tiles / TN, first_tile = blockIdx.x % down * TN, first = blockIdx.x / down * OUTPUTS;
    u32 row_bytes = (u32)(size.k / FORMAT::elements * FORMAT::bytes), runs = (u32)(size.k / 32), chunks = (runs + RUNS - 1) / RUNS;
    Rows weights(weight, first, size.n, row_bytes);
    u8* stages = (u8*)memory + warp * (STAGES * ROWS * PITCH);

    // Begins to copy a chunk of each row, in whole pieces of 16 bytes.
    auto begin = [&](u32 chunk, u8* stage) {
        u32 start = chunk * CHUNK_BYTES, length = row_bytes - start < CHUNK_BYTES ? row_bytes - start : CHUNK_BYTES;
#pragma unroll 4
        for (int i = lane; i < ROWS * PIECES; i += 32) {
            int r = i / PIECES, piece = i % PIECES;
            const u8* row = weights.row(r) + start;
            u32 offset = (u32)(u64)row & 15;
            if (16 * piece < offset + length) copy_async_16(stage + r * PITCH + 16 * piece, row - offset + 16 * piece, true);
        }
    };

    f32 sums[TM][TN][4] = {};
    // Where the rows of this lane begin, modulo 16.
    u32 starts[TM][2];
#pragma unroll
    for (int i = 0; i < TM; i++) starts[i][0] = (u32)(u64)weights.row(16 * i + g), starts[i][1] = (u32)(u64)weights.row(16 * i + 8 + g);
    u32 issued = warp;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++, issued += WARPS) {
        if (issued < chunks) begin(issued, stages + s * (ROWS * PITCH));
        copy_async_commit();
    }
    Columns x, next;
    if ((u32)warp < chunks) load_columns(next, codes, scales, warp * RUNS, first_tile, size, lane);
    int stage = 0, free = STAGES - 1;
    for (u32 chunk = warp; chunk < chunks; chunk += WARPS, issued += WARPS) {
        if (issued < chunks) begin(issued, stages + free * (ROWS * PITCH));
        copy_async_commit();
        copy_async_wait<STAGES - 1>();
        __syncwarp();
        const u8* rows = stages + stage * (ROWS * PITCH);
        u32 at[TM][2];
#pragma unroll
        for (int i = 0; i < TM; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) at[i][h] = (16 * i + 8 * h + g) * PITCH + (starts[i][h] + chunk * CHUNK_BYTES & 15);
        }
        int count = runs - chunk * RUNS < RUNS ? (int)(runs - chunk * RUNS) : RUNS;
#pragma unroll UNROLL
        for (int run = 0; run < count; run++) {
            x = next;
            // The next columns arrive while these are multiplied.
            bool same = run + 1 < count;
            if (same || chunk + WARPS < chunks) {
                u32 after = same ? chunk * RUNS + run + 1 : (chunk + WARPS) * RUNS;
                load_columns(next, codes, scales, after, first_tile, size, lane);
            }
            // x's sums over groups of columns, where codes are above a minimum.
            f32 x_sum[32 / GROUP][FORMAT::minima ? TN : 1][2];
            if (FORMAT::minima) {
#pragma unroll
                for (int j = 0; j < TN; j++) {
#pragma unroll
                    for (int part = 0; part < 32 / GROUP; part++) {
                        u32 ones = GROUP == 32 || t / 2 == part ? 0x01010101 : 0;
                        u32 a[4] = {ones, ones, ones, ones};
                        i32 d[4] = {};
                        mma_m16n8k32_s8(d, a, x.codes[j]);
                        x_sum[part][j][0] = x.scale[j][0] * (f32)d[0], x_sum[part][j][1] = x.scale[j][1] * (f32)d[1];
                    }
                }
            }
            int p = 4 * run + t;
#pragma unroll
            for (int i = 0; i < TM; i++) {
                Eight eight[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    eight[h] = fragment(rows + at[i][h], p);
                }
                u32 a[4] = {centered<FORMAT>(eight[0].codes[0]), centered<FORMAT>(eight[1].codes[0]), centered<FORMAT>(eight[0].codes[1]),
                            centered<FORMAT>(eight[1].codes[1])};
#pragma unroll
                for (int part = 0; part < 32 / GROUP; part++) {
                    f32 scale[2] = {eight[0].scale, eight[1].scale}, min[2] = {eight[0].min, eight[1].min};
                    u32 masked[4] = {a[0], a[1], a[2], a[3]};
                    if (GROUP == 16) {
                        // Lanes 0 and 1 of four have the first group, with its scale.
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            scale[h] = __shfl_sync(ALL_LANES, scale[h], lane / 4 * 4 + 2 * part);
                            if (FORMAT::minima) min[h] = __shfl_sync(ALL_LANES, min[h], lane / 4 * 4 + 2 * part);
                        }
#pragma unroll
                        for (int e = 0; e < 4; e++) masked[e] = t / 2 == part ? a[e] : 0;
                    }
#pragma unroll
                    for (int j = 0; j < TN; j++) {
                        i32 d[4] = {};
                        mma_m16n8k32_s8(d, masked, x.codes[j]);
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            sums[i][j][e] += x.scale[j][e % 2] * scale[e / 2] * (f32)d[e];
                            if (FORMAT::minima) sums[i][j][e] += x_sum[part][j][e % 2] * min[e / 2];
                        }
                    }
                }
            }
        }
        // The stage is free once all lanes have read it.
        __syncwarp();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        free = free + 1 == STAGES ? 0 : free + 1;
    }
    // The warps' sums follow each other where the chunks were.
    copy_async_wait<0>();
    __syncthreads();
    f32* shared = (f32*)memory;
#pragma unroll
    for (int i = 0; i < TM; i++) {
#pragma unroll
        for (int j = 0; j < TN; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                shared[(warp * COLUMNS + 8 * j + 2 * t + e % 2) * SUMS + 16 * i + g + e / 2 * 8] = sums[i][j][e];
            }
        }
    }
    __syncthreads();
    auto total = [&](int column, int row) {
        f32 sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shared[(w * COLUMNS + column) * SUMS + row];
        return sum;
    };
    for (int i = threadIdx.x; i < OUTPUTS * COLUMNS; i += 32 * WARPS) {
        int column = i / OUTPUTS, output = i % OUTPUTS;
        u64 m = first_tile * 8 + column, n = first + output;
        if (m >= size.rows || n >= size.n) continue;
        int row = GATED ? output / 8 * 16 + output % 8 : output;
        f32 y = total(column, row);
        if (BIAS) y += value(bias[n]);
#if GATED
        f32 up = total(column, row + 8);
        if (BIAS) up += value(bias[n + size.n]);
        y = GATE(y, up);
#endif
#if ACTIVATES
        y = ACTIVATION(y);
#endif
        if (RESIDUAL) y += value(residual[m * residual_row + n]);
        dst[m * size.n + n] = as<DST>(y);
    }
}
