// dst[m][n] = finish(sum over k of x[m][k] weight[n][k]): rows of blocks as a file has them times few rows of bytes
// (ggml_activations.cu), by sums of four products. Bias comes first, then the gate, the activation, the residual.
//   FORMAT    of ggml.cu                       DST     dtype of the result, bias and residual
//   M         rows of x                        ROWS    rows of the weight that a warp has
//   WARPS     warps of a block                 SPLIT   warps that share the columns of their rows
//   BIAS, RESIDUAL, ACTIVATES   whether there are such; ACTIVATION: the function
//   GATED     whether the weight has 2 n rows, and GATE(row n, row n + size.n) is the result
//   CHOOSES   whether each row of x is multiplied with another matrix, the one that ids names, of dtype IDS and with a layout of RANK.
//             M is 1 then, and `per` rows of the result have the same row of x. FAULT: the code for an id that is out of range.

// N words by loads of at most four.
template <int N> INLINE void words_of(const u32* at, u32 (&words)[N]) {
    const int most = N < 4 ? N : 4;
#pragma unroll
    for (int i = 0; i < N; i += most) {
        Pack<u32, most> pack = load<most>(at + i);
#pragma unroll
        for (int j = 0; j < most; j++) words[i + j] = pack.at[j];
    }
}

struct Sizes { u64 rows, n, k, per, matrices; };

KERNEL(ggml_vector)(const u8* weight, const u32* codes, const f32* scales, DST* dst, Sizes size, const DST* bias, const DST* residual,
                    u64 residual_row, const IDS* ids, Views<1> v, Fault* fault) {
    typedef Unit<FORMAT> U;
    const int weights = GATED ? 2 * ROWS : ROWS;
    __shared__ f32 shared[SPLIT > 1 ? WARPS * weights * M : 1];
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
    const u8* rows[weights];
#pragma unroll
    for (int r = 0; r < weights; r++) {
        // Rows beyond the last are computed and left out.
        u64 row = first + r % ROWS < size.n ? first + r % ROWS : size.n - 1;
        rows[r] = weight + (row + r / ROWS * size.n) * row_bytes;
    }
    f32 sums[weights][M] = {};
    // Chunks of 32 units, so that what a lane reads is as far on in each row and each chunk.
    const u32 chunk = 32 * U::elements, chunk_bytes = chunk / FORMAT::elements * FORMAT::bytes;
    u32 units = inside ? (u32)(size.k / U::elements) : 0, piece = warp % SPLIT;
#pragma unroll
    for (int r = 0; r < weights; r++) rows[r] += piece * chunk_bytes;
    codes += piece * (chunk / 4);
    scales += piece * (chunk / 32);
    // The words of the next units are loaded while these are multiplied.
    typename U::Raw raw[weights];
    if (piece * 32 + lane < units) {
#pragma unroll
        for (int r = 0; r < weights; r++) U::read(rows[r], lane, raw[r]);
    }
    for (u32 u = piece * 32 + lane; u < units; u += SPLIT * 32) {
        U unit[weights];
        bool more = u + SPLIT * 32 < units;
#pragma unroll
        for (int r = 0; r < weights; r++) {
            typename U::Raw now;
#pragma unroll
            for (int i = 0; i < sizeof(now) / 4; i++) now[i] = raw[r][i];
            const u8* chunk = rows[r];
            rows[r] += SPLIT * chunk_bytes;
            if (more) U::read(rows[r], lane, raw[r]);
            unit[r].decode(now, chunk, lane);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            // Of each row: the products with codes, and with minima.
            f32 products[weights] = {}, below[weights] = {};
#pragma unroll
            for (int part = 0; part < U::parts; part++) {
                u64 at = m * size.k + U::at(lane, part);
                u32 y[U::words];
                words_of<U::words>(codes + at / 4, y);
                f32 y_scale = scales[at / 32];
                i32 sum = 0;
                if (FORMAT::zero != 0 || FORMAT::minima) {
#pragma unroll
                    for (int i = 0; i < U::words; i++) sum = __dp4a((i32)y[i], 0x01010101, sum);
                }
#pragma unroll
                for (int r = 0; r < weights; r++) {
                    i32 dot = -FORMAT::zero * sum;
#pragma unroll
                    for (int i = 0; i < U::words; i++) dot = __dp4a((i32)unit[r].codes[part][i], (i32)y[i], dot);
                    if (U::factors) dot *= unit[r].factor[part];
                    products[r] += y_scale * (f32)dot;
                    if (FORMAT::minima) below[r] += y_scale * (f32)(unit[r].minimum[part] * sum);
                }
            }
#pragma unroll
            for (int r = 0; r < weights; r++) {
                sums[r][m] += unit[r].d * products[r];
                if (FORMAT::minima) sums[r][m] += unit[r].dmin * below[r];
            }
        }
        codes += SPLIT * (chunk / 4);
        scales += SPLIT * (chunk / 32);
    }
#pragma unroll
    for (int r = 0; r < weights; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            sums[r][m] = warp_sum(sums[r][m]);
            if (SPLIT > 1 && lane == 0) shared[(warp * weights + r) * M + m] = sums[r][m];
        }
    }
    if (SPLIT > 1) __syncthreads();
    if (warp % SPLIT != 0 || lane != 0) return;
#pragma unroll
    for (int r = 0; r < weights; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            for (int i = 1; i < SPLIT; i++) sums[r][m] += shared[((warp + i) * weights + r) * M + m];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        u64 row = first + r;
        if (row >= size.n) return;
#pragma unroll
        for (int m = 0; m < M; m++) {
            f32 y = sums[r][m];
            if (BIAS) y += value(bias[row]);
#if GATED
            f32 up = sums[r + ROWS][m];
            if (BIAS) up += value(bias[row + size.n]);
            y = GATE(y, up);
#endif
#if ACTIVATES
            y = ACTIVATION(y);
#endif
            if (RESIDUAL) y += value(residual[m * residual_row + row]);
            dst[m * size.n + row] = as<DST>(y);
        }
    }
}
