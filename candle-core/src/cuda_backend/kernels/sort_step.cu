// STEPS steps of a merge of runs of `run` entries, through global memory: entries up to `1 << step_bits + STEPS - 1` apart, in the last
// step `1 << step_bits`. A thread processes the 1 << STEPS entries that depend on each other.

KERNEL(sort_step)(Entry* entries, u64 threads, u32 padded_bits, u64 run, u32 step_bits) {
    u64 t = thread_index();
    if (t >= threads) return;
    const int COUNT = 1 << STEPS;
    u64 step = 1ull << step_bits, mask = (1ull << padded_bits) - 1;
    u64 first = ((t >> step_bits) << (step_bits + STEPS)) | (t & (step - 1));
    Entry all[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; k++) all[k] = entries[first + k * step];
#pragma unroll
    for (int half = COUNT / 2; half > 0; half /= 2) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            if ((k & half) == 0) order(all[k], all[k + half], first & mask, run);
        }
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++) entries[first + k * step] = all[k];
}
