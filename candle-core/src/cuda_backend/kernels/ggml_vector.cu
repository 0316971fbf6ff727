// dst[m][n] = sum over k of x[m][k] weight[n][k], plus bias[n] and residual[m][n]: rows of blocks as a file has them times few rows of
// bytes (ggml_activations.cu), by sums of four products.
//   FORMAT    of ggml.cu                       DST     dtype of the result, bias and residual
//   M         rows of x                        ROWS    rows of the weight that a warp has
//   WARPS     warps of a block                 SPLIT   warps that share the columns of their rows
//   BIAS, RESIDUAL   whether there are such
//   CHOOSES   whether each row of x is multiplied with a matrix of its own: the one that ids names, of dtype IDS and with a layout of RANK.
//             M is 1 then, and `per` rows of the result have the same row of x. FAULT: the code for an id that is out of range.

struct Sizes { u64 rows, n, k, per, matrices; };

KERNEL(ggml_vector)(const u8* weight, const u32* codes, const f32* scales, DST* dst, Sizes size, const DST* bias, const DST* residual,
                    u64 residual_row, const IDS* ids, Views<1> v, Fault* fault) {
    typedef Unit<FORMAT> U;
    __shared__ f32 shared[SPLIT > 1 ? WARPS * ROWS * M : 1];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 block = blockIdx.x, row_bytes = size.k / FORMAT::elements * FORMAT::bytes;
    bool inside = true;
#if CHOOSES
    u64 across = (size.n + WARPS / SPLIT * ROWS - 1) / (WARPS / SPLIT * ROWS), pair = block / across;
    block %= across;
    u64 at[1];
    places<RANK>(v, pair, at);
    u64 id = (u64)(i64)ids[at[0]];
    inside = id < size.matrices;
    if (inside) {
        weight += id * size.n * row_bytes;
    } else if (threadIdx.x == 0) {
        report(fault, FAULT, id, size.matrices);
    }
    codes += pair / size.per * (size.k / 4);
    scales += pair / size.per * (size.k / 32);
    dst += pair * size.n;
#endif
    u64 first = (block * (WARPS / SPLIT) + warp / SPLIT) * ROWS;
    const u8* rows[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        // Rows beyond the last are computed and left out.
        u64 row = first + r < size.n ? first + r : size.n - 1;
        rows[r] = weight + row * row_bytes;
    }
    f32 sums[ROWS][M] = {};
    u64 units = inside ? size.k / U::elements : 0;
    for (u64 u = warp % SPLIT * 32 + lane; u < units; u += SPLIT * 32) {
        U unit[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) unit[r].load(rows[r], u);
#pragma unroll
        for (int part = 0; part < U::parts; part++) {
            u64 at = U::at(u, part);
#pragma unroll
            for (int m = 0; m < M; m++) {
                Pack<u32, U::words> y = load<U::words>(codes + (m * size.k + at) / 4);
                f32 y_scale = scales[(m * size.k + at) / 32];
                i32 sum = 0;
                if (U::offsets) {
#pragma unroll
                    for (int i = 0; i < U::words; i++) sum = __dp4a((i32)y.at[i], 0x01010101, sum);
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    i32 dot = 0;
#pragma unroll
                    for (int i = 0; i < U::words; i++) dot = __dp4a((i32)unit[r].codes[part][i], (i32)y.at[i], dot);
                    f32 product = unit[r].scale[part] * (f32)dot;
                    if (U::offsets) product += unit[r].offset[part] * (f32)sum;
                    sums[r][m] += y_scale * product;
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            sums[r][m] = warp_sum(sums[r][m]);
            if (SPLIT > 1 && lane == 0) shared[(warp * ROWS + r) * M + m] = sums[r][m];
        }
    }
    if (SPLIT > 1) __syncthreads();
    if (warp % SPLIT != 0 || lane != 0) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        u64 row = first + r;
        if (row >= size.n) return;
#pragma unroll
        for (int m = 0; m < M; m++) {
            f32 sum = sums[r][m];
            for (int i = 1; i < SPLIT; i++) sum += shared[((warp + i) * ROWS + r) * M + m];
#if BIAS
            sum += value(bias[row]);
#endif
#if RESIDUAL
            sum += value(residual[m * residual_row + row]);
#endif
            dst[m * size.n + row] = as<DST>(sum);
        }
    }
}
