// dst[o] = the reduction of row o / chunks, or of its part o % chunks if rows are split into several. 1 << group_bits lanes of a warp
// reduce a row or a part, or the whole block if BY_BLOCK. KEPT_RANK, REDUCED_RANK: the layouts of the rows' first elements and of a row's
// elements; LANES: elements that a thread loads at once; INDEX: the integer that counts them.

// Loads in flight.
const int AHEAD = 4;

INLINE u64 place(const Views<1>& reduced, INDEX j) {
    INDEX at[1];
    places<REDUCED_RANK>(reduced, j, at);
    return at[0];
}

KERNEL(reduce_rows)(const T* src, const u32* found, DST* dst, u32* dst_places, Views<1> kept, Views<1> reduced, u64 chunk, u64 chunks,
                    u32 group_bits) {
    u64 outputs = kept.len * chunks;
    u32 threads = BY_BLOCK ? blockDim.x : 1u << group_bits;
    u64 group = BY_BLOCK ? blockIdx.x : thread_index() >> group_bits;
    u32 lane = threadIdx.x & (threads - 1);
    bool mine = lane == 0 && group < outputs;
    // Threads without a row help with the last one: all lanes take part in the shuffles.
    INDEX o = (INDEX)(group < outputs ? group : outputs - 1);
    INDEX row = o, part = 0;
    if (chunks > 1) {
        row = o / (INDEX)chunks;
        part = o - row * (INDEX)chunks;
    }
    INDEX first[1];
    places<KEPT_RANK>(kept, row, first);
    INDEX begin = part * (INDEX)chunk, end = (INDEX)(reduced.len - begin < chunk ? reduced.len : begin + chunk);

    Best start{};
    if (!SUM) start = element(src[first[0]], found, first[0], 0);
    Best best = start;
    const INDEX step = threads * LANES;
    INDEX j = begin + lane * LANES;
    for (; j + (AHEAD - 1) * step + LANES <= end; j += AHEAD * step) {
        Pack<T, LANES> x[AHEAD];
        u64 at[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            at[k] = first[0] + place(reduced, j + k * step);
            x[k] = load<LANES>(src + at[k]);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            Best some = start;
#pragma unroll
            for (int l = 0; l < LANES; l++) some = combine(some, element(x[k].at[l], found, at[k] + l, j + k * step + l));
            best = combine(best, some);
        }
    }
    for (; j < end; j += step) {
        u64 at = first[0] + place(reduced, j);
        for (int l = 0; l < LANES && j + l < end; l++) best = combine(best, element(src[at + l], found, at + l, j + l));
    }

    for (u32 step = (threads < 32 ? threads : 32) / 2; step > 0; step /= 2) best = across(best, step);
#if BY_BLOCK
    __shared__ A values[32];
    __shared__ u32 found_at[32];
    u32 warps = threads / 32;
    if (lane % 32 == 0) {
        values[lane / 32] = best.value;
        found_at[lane / 32] = best.place;
    }
    __syncthreads();
    if (lane < 32) {
        u32 other = lane < warps ? lane : 0;
        best = Best{values[other], found_at[other]};
        if (SUM && lane >= warps) best.value = 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) best = across(best, step);
    }
#endif
    if (mine) finish(best, dst, dst_places, group);
}
