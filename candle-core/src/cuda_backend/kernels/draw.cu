// dst[row] = a token for each row of logits, sampled with the row's parameters. dst[rows + row] = the number of its logits that are NaN or
// +inf, or all of them if all are -inf; the token is then 0. candle-nn's `sampling::draw` defines the result, shaders/draw.wgsl the
// algorithm. LANES: 4 if rows are whole words of four logits, else 1.

enum : int { PIVOTS = 7, ROUNDS = 10, SUMS = 2 * PIVOTS };
#define LOWEST -80.f
#define GREATEST 3.402823466e38f

struct Settings {
    u32 low_seed, high_seed, position, greedy, top_k;
    f32 top_p, min_p, inverse;
};

struct Least { template <class V> INLINE static V of(V a, V b) { return a < b ? a : b; } };

// From an exponential distribution: -ln(1 - u), exact where u is small, and never infinite.
INLINE f32 exponential(u32 bits) {
    f32 u = ((f32)bits + 0.5f) * 2.3283064365386963e-10f;
    if (u < 0.01f) return u * (1.f + u * (0.5f + u * (0.33333334f + u * 0.25f)));
    f32 rest = 1.f - u;
    return -f_log(rest > 1e-9f ? rest : 1e-9f);
}

// Counts and sums above PIVOTS points from `low` on, `step` apart, of a whole block in `totals`.
INLINE void sums_above(const f32* x, u64 len, f32 most, f32 inverse, f32 low, f32 step, f32 (*parts)[32], f32* totals) {
    f32 sums[SUMS];
#pragma unroll
    for (int j = 0; j < SUMS; j++) sums[j] = 0.f;
#pragma unroll 4
    for (u64 word = threadIdx.x; word < len / LANES; word += blockDim.x) {
        Pack<f32, LANES> logits = load<LANES>(x + word * LANES);
#pragma unroll
        for (int at = 0; at < LANES; at++) {
            f32 z = (logits.at[at] - most) * inverse;
            if (z > low) {
                f32 weight = exp_of(z);
#pragma unroll
                for (int j = 0; j < PIVOTS; j++) {
                    if (z > low + step * (f32)(j + 1)) {
                        sums[j] += 1.f;
                        sums[PIVOTS + j] += weight;
                    }
                }
            }
        }
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
    for (int j = 0; j < SUMS; j++) {
        f32 sum = warp_sum(sums[j]);
        if (lane == 0) parts[j][warp] = sum;
    }
    __syncthreads();
    for (int j = warp; j < SUMS; j += warps) {
        f32 sum = warp_sum(lane < warps ? parts[j][lane] : 0.f);
        if (lane == 0) totals[j] = sum;
    }
    __syncthreads();
}

KERNEL(draw)(const f32* x, const u32* draws, u32* dst, u64 rows, u64 len) {
    __shared__ f32 parts[SUMS][32];
    __shared__ f32 totals[SUMS];
    __shared__ f32 scratch[32];
    __shared__ u32 ids[32];
    u64 row = blockIdx.x;
    const Settings s = ((const Settings*)draws)[row];
    x += row * len;

    f32 most = -GREATEST, unusable = 0.f;
#pragma unroll 4
    for (u64 word = threadIdx.x; word < len / LANES; word += blockDim.x) {
        Pack<f32, LANES> logits = load<LANES>(x + word * LANES);
#pragma unroll
        for (int at = 0; at < LANES; at++) {
            if (!(logits.at[at] < INFINITE)) unusable += 1.f;
            else most = Max::of(logits.at[at], most);
        }
    }
    most = block_join<Max>(most, scratch, -GREATEST);
    unusable = block_sum(unusable, scratch);
    if (most == -GREATEST && unusable == 0.f) unusable = (f32)len;

    // The bound is above `low` and not above `high`; there are `below` and `above` tokens above these.
    f32 low = LOWEST, high = 0.f, bound_mass = 0.f, below = 0.f, above = 0.f;
    f32 top_k = (f32)s.top_k;
    bool keeps_all = s.greedy || (s.top_k >= len && s.top_p >= 1.f);
    if (!keeps_all) {
        sums_above(x, len, most, s.inverse, low, 0.f, parts, totals);
        below = totals[0];
        bound_mass = s.top_p * totals[PIVOTS];
        keeps_all = below < top_k && s.top_p >= 1.f;
    }
    for (int round = 0; round < ROUNDS && !keeps_all && below - above > 1.f; round++) {
        f32 from = low, step = (high - low) / (f32)(PIVOTS + 1);
        __syncthreads();
        sums_above(x, len, most, s.inverse, from, step, parts, totals);
        for (int j = 0; j < PIVOTS; j++) {
            f32 at = from + step * (f32)(j + 1);
            if (totals[j] < top_k && (s.top_p >= 1.f || totals[PIVOTS + j] < bound_mass)) {
                high = at;
                above = totals[j];
                break;
            }
            low = at;
            below = totals[j];
        }
    }

    f32 best = GREATEST;
    u32 token = 0;
    u64 seed = (u64)s.high_seed << 32 | s.low_seed;
#pragma unroll 4
    for (u64 group = threadIdx.x; group * 4 < len; group += blockDim.x) {
        f32 z[4], logits[4];
        bool any = false;
        if (LANES == 4) {
            Pack<f32, 4> word = *(const Pack<f32, 4>*)(x + group * 4);
#pragma unroll
            for (int j = 0; j < 4; j++) logits[j] = word.at[j];
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) logits[j] = group * 4 + j < len ? x[group * 4 + j] : -INFINITE;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            z[j] = -GREATEST;
            if (!s.greedy) z[j] = (logits[j] - most) * s.inverse;
            else if (logits[j] == most) z[j] = 0.f;
            any |= z[j] > low;
        }
        if (!any) continue;
        Words words = philox((u64)s.position << 32 | group, seed);
        u32 bits[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            f32 weight = exp_of(z[j]);
            if (z[j] > low && weight >= s.min_p) {
                f32 score = s.greedy ? 0.f : exponential(bits[j]) / weight;
                if (score < best) {
                    best = score;
                    token = (u32)(group * 4 + j);
                }
            }
        }
    }
    f32 least = block_join<Least>(best, scratch, GREATEST);
    u32 first = block_join<Least>(best == least ? token : 0xffffffffu, ids, 0xffffffffu);
    if (threadIdx.x == 0) {
        dst[row] = unusable == 0.f ? first : 0u;
        dst[rows + row] = (u32)unusable;
    }
}
