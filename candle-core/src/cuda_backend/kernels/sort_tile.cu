// Sorts runs of TILE entries in shared memory, or merges longer ones for distances below TILE: all runs from first_run to last_run. LOAD:
// entries are built from src, whose layout is RANK, INDEX; otherwise they are read from `entries`. STORE: entries are written back;
// otherwise their indexes are, as the result.

KERNEL(sort_tile)(const T* src, Views<1> v, Entry* entries, u32* dst, u64 rows, u64 n, u32 padded_bits, u64 first_run, u64 last_run) {
    __shared__ Entry tile[TILE];
    u64 first = (u64)blockIdx.x * TILE, mask = (1ull << padded_bits) - 1;
    for (u32 t = threadIdx.x; t < TILE; t += blockDim.x) {
        u64 row = (first + t) >> padded_bits, i = (first + t) & mask;
#if LOAD
        u64 key = LAST;
        if (row < rows && i < n) {
            INDEX at[1];
            places<RANK>(v, (INDEX)(row * n + i), at);
            key = key_of(value(src[at[0]]));
            if (!ASCENDING) key ^= LAST;
        }
        tile[t] = entry(key, (u32)i);
#else
        tile[t] = row < rows ? entries[first + t] : Entry{};
#endif
    }
    __syncthreads();
    for (u64 run = first_run; run <= last_run; run *= 2) {
        for (u32 step = (u32)(run < TILE ? run : TILE) / 2; step > 0; step /= 2) {
            for (u32 t = threadIdx.x; t < TILE / 2; t += blockDim.x) {
                u32 low = 2 * t - (t & (step - 1));
                order(tile[low], tile[low + step], (first + low) & mask, run);
            }
            __syncthreads();
        }
    }
    for (u32 t = threadIdx.x; t < TILE; t += blockDim.x) {
        u64 row = (first + t) >> padded_bits, i = (first + t) & mask;
        if (row >= rows) continue;
#if STORE
        entries[first + t] = tile[t];
#else
        if (i < n) dst[row * n + i] = place_of(tile[t]);
#endif
    }
}
