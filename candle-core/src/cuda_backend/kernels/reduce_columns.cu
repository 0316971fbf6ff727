// dst[part, o] = the reduction of part `part` of column o, where neighbouring columns are neighbours in memory. In a block of 256 threads,
// 1 << group_bits threads process adjacent groups of LANES columns each; the others share these columns. KEPT_RANK, REDUCED_RANK: the
// layouts of the columns' first elements and of a column's elements; LANES: columns that a thread loads at once; INDEX: counts elements.

// Loads in flight.
const int AHEAD = LANES > 4 ? 2 : 4;

INLINE u64 place(const Views<1>& reduced, INDEX j) {
    INDEX at[1];
    places<REDUCED_RANK>(reduced, j, at);
    return at[0];
}

KERNEL(reduce_columns)(const T* src, const u32* found, DST* dst, u32* dst_places, Views<1> kept, Views<1> reduced, u64 chunk, u64 chunks,
                       u32 group_bits) {
    const u32 threads_across = 1u << group_bits, threads_down = 256u >> group_bits;
    u32 x = threadIdx.x & (threads_across - 1), y = threadIdx.x >> group_bits;
    INDEX part = blockIdx.x % (u32)chunks;
    u64 column = (u64)(blockIdx.x / (u32)chunks) * (threads_across * LANES) + x * LANES;
    // The number of columns is a multiple of LANES.
    bool mine = column < kept.len;
    INDEX first[1];
    places<KEPT_RANK>(kept, (INDEX)(mine ? column : 0), first);
    INDEX begin = part * (INDEX)chunk, end = (INDEX)(reduced.len - begin < chunk ? reduced.len : begin + chunk);

    Best best[LANES] = {};
    if (!SUM) {
        Pack<T, LANES> start = load<LANES>(src + first[0]);
#pragma unroll
        for (int l = 0; l < LANES; l++) best[l] = element(start.at[l], found, first[0] + l, 0);
    }
    INDEX j = begin + y;
    for (; j + (AHEAD - 1) * threads_down < end; j += AHEAD * threads_down) {
        Pack<T, LANES> some[AHEAD];
        u64 at[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            at[k] = first[0] + place(reduced, j + k * threads_down);
            some[k] = load<LANES>(src + at[k]);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
#pragma unroll
            for (int l = 0; l < LANES; l++) best[l] = combine(best[l], element(some[k].at[l], found, at[k] + l, j + k * threads_down));
        }
    }
    for (; j < end; j += threads_down) {
        u64 at = first[0] + place(reduced, j);
        Pack<T, LANES> some = load<LANES>(src + at);
#pragma unroll
        for (int l = 0; l < LANES; l++) best[l] = combine(best[l], element(some.at[l], found, at + l, j));
    }

    __shared__ A values[256 * LANES];
    __shared__ u32 found_at[PLACES ? 256 * LANES : 1];
    for (u32 half = threads_down / 2; half > 0; half /= 2) {
        // With a stride between lanes, so that a warp's accesses are adjacent.
        if (y >= half && y < 2 * half) {
#pragma unroll
            for (int l = 0; l < LANES; l++) {
                values[l * 256 + threadIdx.x] = best[l].value;
                if (PLACES) found_at[l * 256 + threadIdx.x] = best[l].place;
            }
        }
        __syncthreads();
        if (y < half) {
#pragma unroll
            for (int l = 0; l < LANES; l++) {
                int other = l * 256 + threadIdx.x + half * threads_across;
                best[l] = combine(best[l], Best{values[other], PLACES ? found_at[other] : 0});
            }
        }
    }
    if (y > 0 || !mine) return;
#pragma unroll
    for (int l = 0; l < LANES; l++) finish(best[l], dst, dst_places, part * kept.len + column + l);
}
