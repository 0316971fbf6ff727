// Rows as bytes: of every 32 elements codes[i] = round(x[i] / scale), scale = max |x| / 127. SRC: the dtype; RANK: the layout; LANES: whether
// four elements are one load. A thread has four elements, eight threads have 32.

KERNEL(ggml_activations)(const SRC* src, u32* codes, f32* scales, Views<1> v) {
    u64 i = thread_index() * 4;
    f32 x[4] = {};
    if (i < v.len) {
#if LANES
        Pack<SRC, 4> four = load<4>(src + v.offsets[0] + i);
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
    if (i >= v.len) return;
    u32 word = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        i32 code = most > 0 ? (i32)rintf(x[j] / most * 127) : 0;
        word |= (u32)(code & 255) << 8 * j;
    }
    codes[i / 4] = word;
    if (threadIdx.x % 8 == 0) scales[i / 32] = most / 127;
}
