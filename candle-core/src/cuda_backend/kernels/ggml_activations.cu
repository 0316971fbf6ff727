// Rows as bytes: of every 32 elements codes[i] = round(x[i] / scale), scale = max |x| / 127. SRC: the dtype; RANK: the layout; LANES: whether
// four elements are one load; NORM: whether the rows' RMS norm is taken in their place, with weights alpha. A thread has four elements at
// a time, eight threads have 32. A block has a row of k elements if there is a norm, which only scales what a row's elements times
// alpha become. PACKED: the rows are in tiles of eight, and 32 columns of a tile follow each other, row by row; so do their scales.
// NIBBLES: words of four columns of the first 16 and of the last 16 alternate (ggml_stream.cu).

// Four elements from i on, of those that there are.
INLINE void read_four(const SRC* src, const Views<1>& v, u64 i, f32 (&x)[4]) {
#if LANES
    u64 at[1];
    places<RANK>(v, i, at);
    Pack<SRC, 4> four = load<4>(src + at[0]);
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = value(four.at[j]);
#else
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u64 at[1];
        places<RANK>(v, i + j, at);
        x[j] = value(src[at[0]]);
    }
#endif
}

// By a whole warp; `inside` says whether this thread has elements.
INLINE void write_four(const f32 (&x)[4], u32* codes, f32* scales, u64 i, bool inside, f32 factor, u64 k, u64 tiles) {
    f32 most = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        // A NaN stays: its row's products are NaN then.
        f32 size = fabsf(x[j]);
        most = size > most || size != size ? size : most;
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
        f32 other = __shfl_xor_sync(ALL_LANES, most, step);
        most = other > most || other != other ? other : most;
    }
    if (!inside) return;
    u32 word = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        i32 code = most > 0 ? (i32)rintf(x[j] / most * 127) : 0;
        word |= (u32)(code & 255) << 8 * j;
    }
#if PACKED
    u64 row = i / k, column = i - row * k, run = (column / 32 * tiles + row / 8) * 8 + row % 8;
    u64 within = column % 32;
#if NIBBLES
    within = within % 16 * 2 + within / 16 * 4;
#endif
    u64 at = run * 32 + within;
#else
    u64 at = i, run = i / 32;
#endif
    codes[at / 4] = word;
    if (threadIdx.x % 8 == 0) scales[run] = most / 127 * factor;
}

KERNEL(ggml_activations)(const SRC* src, u32* codes, f32* scales, Views<1> v, const SRC* alpha, f32 eps, u64 k, u64 tiles) {
#if NORM
    __shared__ f32 shared[32];
    u64 first = blockIdx.x * k, step = 4 * blockDim.x;
    f32 squares = 0;
    for (u64 i = 4 * threadIdx.x; i < k; i += step) {
        f32 x[4];
        read_four(src, v, first + i, x);
#pragma unroll
        for (int j = 0; j < 4; j++) squares += x[j] * x[j];
    }
    f32 factor = rsqrtf(block_sum(squares, shared) / (f32)k + eps);
    // Warps stay together beyond the end.
    for (u64 start = 0; start < k; start += step) {
        u64 i = start + 4 * threadIdx.x;
        f32 x[4] = {};
        if (i < k) {
            read_four(src, v, first + i, x);
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] *= value(alpha[i + j]);
        }
        write_four(x, codes, scales, first + i, i < k, factor, k, tiles);
    }
#else
    u64 i = thread_index() * 4;
    f32 x[4] = {};
    if (i < v.len) read_four(src, v, i, x);
    write_four(x, codes, scales, i, i < v.len, 1, k, tiles);
#endif
}
