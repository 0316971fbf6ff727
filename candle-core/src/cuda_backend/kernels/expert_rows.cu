// dst[pair][n] = sum over k of x[pair][k] weight[ids[pair]][n][k]. W: the weight's dtype; T: that of x and the result; IDS: that of ids;
// RANK: of the layouts of pairs in x and in ids; FAULT: the code for an id that is out of range. A warp computes an element.

struct Sizes { u64 count, n, k, step; };

KERNEL(expert_rows)(const W* weight, const T* x, const IDS* ids, T* dst, Views<2> v, Sizes size, Fault* fault) {
    int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    u64 across = (size.n + warps - 1) / warps, pair = blockIdx.x / across;
    u64 row = blockIdx.x % across * warps + threadIdx.x / 32;
    if (row >= size.n) return;
    u64 at[2];
    places<RANK>(v, pair, at);
    u64 id = (u64)(i64)ids[at[1]];
    if (id >= size.count) {
        if (lane == 0) {
            report(fault, FAULT, id, size.count);
            dst[pair * size.n + row] = as<T>(0.f);
        }
        return;
    }
    weight += (id * size.n + row) * size.k;
    x += at[0];
    f32 sum = 0;
    for (u64 i = lane; i < size.k; i += 32) sum += value(weight[i]) * value(x[i * size.step]);
    sum = warp_sum(sum);
    if (lane == 0) dst[pair * size.n + row] = as<T>(sum);
}
