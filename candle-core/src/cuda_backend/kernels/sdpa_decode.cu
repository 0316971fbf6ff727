// Attention of few queries. A block processes ROWS rows that share keys and values, over a part of the keys; a group of GROUP threads
// processes a key, 16 bytes of it per thread, with AHEAD keys in flight at once. Every group keeps maximum, sum and weighted sum of its
// keys, which are joined at the end (Milakov and Gimelshein, arXiv 1805.02867). With JOINS the last block to arrive joins all parts. LANES:
// elements of 16 bytes; PACKS: such words of a head per thread. Further definitions: attention.cu.

const u32 WARPS = 4, GROUPS = 32 / GROUP, TURN = WARPS * GROUPS * AHEAD;

INLINE f32 group_sum(f32 x) {
#pragma unroll
    for (int step = GROUP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) sdpa_decode_kernel(Attention p) {
    extern __shared__ f32 shared[];
    const u32 rows = p.group * p.queries, kv_heads = p.heads / p.group, blocks = (rows + ROWS - 1) / ROWS;
    const u32 split = blockIdx.x % p.splits, rest = blockIdx.x / p.splits;
    const u32 first_row = rest % blocks * ROWS, kv_head = rest / blocks % kv_heads, batch = rest / blocks / kv_heads;
    const u32 last_row = (first_row + ROWS < rows ? first_row + ROWS : rows) - 1;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, place = lane % GROUP, team = warp * GROUPS + lane / GROUP;
    const T* q = (const T*)p.q + batch * p.q_step.batch + (u64)kv_head * p.group * p.q_step.head;
    const K* k = (const K*)p.k + batch * p.k_step.batch + kv_head * p.k_step.head;
    const K* v = (const K*)p.v + batch * p.v_step.batch + kv_head * p.v_step.head;
    f32 query[ROWS][PACKS][LANES], sums[ROWS][PACKS][LANES], most[ROWS], sum[ROWS];
    u32 from[ROWS], to[ROWS], at[ROWS], head[ROWS];
    Span part = part_of<TURN>(p, batch, first_row / p.group, last_row / p.group, split);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        // Rows past the last repeat it.
        u32 row = first_row + r < rows ? first_row + r : rows - 1;
        at[r] = row / p.group;
        head[r] = kv_head * p.group + row % p.group;
        from[r] = seen_begin(p, batch, at[r]);
        to[r] = seen_end(p, batch, at[r]);
        if (to[r] > part.end) to[r] = part.end;
        bool sinks = (RULES & SINKS) && split == 0 && team == 0;
        most[r] = sinks ? sink_of(p, head[r]) : -INFINITE;
        sum[r] = sinks ? 1 : 0;
        const T* start = q + row % p.group * p.q_step.head + at[r] * p.q_step.seq;
#pragma unroll
        for (u32 n = 0; n < PACKS; n++) {
            u32 first = (place + n * GROUP) * LANES;
#pragma unroll
            for (u32 i = 0; i < LANES; i++) {
                query[r][n][i] = first < HEAD_DIM ? value(start[first + i]) : 0.f;
                sums[r][n][i] = 0;
            }
        }
    }
    // All threads of a block run the same iterations, since they shuffle.
    for (u32 turn = part.begin; turn < part.end; turn += TURN) {
        Pack<K, LANES> keys[AHEAD][PACKS], values[AHEAD][PACKS];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            u32 key = turn + a * WARPS * GROUPS + team;
            if (key >= part.end) key = part.end - 1;
            const u32 place_of_key = key_place(p, batch, key);
#pragma unroll
            for (u32 n = 0; n < PACKS; n++) {
                u32 first = (place + n * GROUP) * LANES;
                if (first < HEAD_DIM) keys[a][n] = load<LANES>(k + place_of_key * p.k_step.seq + first);
            }
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            u32 key = turn + a * WARPS * GROUPS + team;
            if (key >= part.end) key = part.end - 1;
            const u32 place_of_key = key_place(p, batch, key);
#pragma unroll
            for (u32 n = 0; n < PACKS; n++) {
                u32 first = (place + n * GROUP) * LANES;
                if (first < V_DIM) values[a][n] = load<LANES>(v + place_of_key * p.v_step.seq + first);
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            f32 scores[AHEAD], higher = most[r];
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) {
                u32 key = turn + a * WARPS * GROUPS + team;
                f32 product = 0;
#pragma unroll
                for (u32 n = 0; n < PACKS; n++) {
                    if ((place + n * GROUP) * LANES >= HEAD_DIM) continue;
#pragma unroll
                    for (u32 i = 0; i < LANES; i++) product += query[r][n][i] * value(keys[a][n].at[i]);
                }
                product = group_sum(product);
                bool seen = key >= from[r] && key < to[r];
                scores[a] = seen ? score_of(p, product, batch, head[r], at[r], key) : -INFINITE;
                higher = Max::of(scores[a], higher);
            }
            f32 correction = weight_of(most[r], higher);
            most[r] = higher;
            sum[r] *= correction;
#pragma unroll
            for (u32 n = 0; n < PACKS; n++) {
#pragma unroll
                for (u32 i = 0; i < LANES; i++) sums[r][n][i] *= correction;
            }
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) {
                f32 weight = weight_of(scores[a], higher);
                sum[r] += weight;
#pragma unroll
                for (u32 n = 0; n < PACKS; n++) {
                    if ((place + n * GROUP) * LANES >= V_DIM) continue;
#pragma unroll
                    for (u32 i = 0; i < LANES; i++) sums[r][n][i] += weight * value(values[a][n].at[i]);
                }
            }
        }
    }
    // Joins the groups of a warp, then the warps.
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        f32 higher = most[r];
#pragma unroll
        for (int step = GROUP; step < 32; step *= 2) higher = Max::of(__shfl_xor_sync(ALL_LANES, higher, step), higher);
        f32 correction = weight_of(most[r], higher);
        most[r] = higher;
        sum[r] *= correction;
#pragma unroll
        for (int step = GROUP; step < 32; step *= 2) sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], step);
        f32* mine = shared + (warp * ROWS + r) * PART;
#pragma unroll
        for (u32 n = 0; n < PACKS; n++) {
            u32 first = (place + n * GROUP) * LANES;
#pragma unroll
            for (u32 i = 0; i < LANES; i++) {
                f32 x = sums[r][n][i] * correction;
#pragma unroll
                for (int step = GROUP; step < 32; step *= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
                if (lane < GROUP && first < V_DIM) mine[first + i] = x;
            }
        }
        if (lane == 0) {
            mine[V_DIM] = most[r];
            mine[V_DIM + 1] = sum[r];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < ROWS * V_DIM; i += 32 * WARPS) {
        u32 r = i / V_DIM, d = i % V_DIM, row = first_row + r;
        if (row >= rows) break;
        f32 highest = -INFINITE, whole = 0, total = 0;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) highest = Max::of(shared[(w * ROWS + r) * PART + V_DIM], highest);
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            const f32* part = shared + (w * ROWS + r) * PART;
            f32 scale = weight_of(part[V_DIM], highest);
            whole += part[V_DIM + 1] * scale;
            total += part[d] * scale;
        }
        u64 result = result_row(p, batch, kv_head, row);
        if (JOINS) {
            f32* out = part_at(p, result, split);
            out[d] = total;
            if (d == 0) {
                out[V_DIM] = highest;
                out[V_DIM + 1] = whole;
            }
        } else {
            ((T*)p.dst)[result * V_DIM + d] = as<T>(total / divisor(whole));
        }
    }
#if JOINS
    __shared__ u32 arrived;
    u32* counter = (u32*)p.counters + rest;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(counter, 1u);
    __syncthreads();
    if (arrived + 1 != p.splits) return;
    // Reset for the next launch.
    if (threadIdx.x == 0) *counter = 0;
    __threadfence();
    f32 *scales = shared, *divisors = scales + ROWS * p.splits;
    for (u32 r = warp; r < ROWS && first_row + r < rows; r += WARPS) {
        const f32* parts = part_at(p, result_row(p, batch, kv_head, first_row + r), 0);
        f32 highest = -INFINITE, whole = 0;
        for (u32 i = lane; i < p.splits; i += 32) highest = Max::of(parts[i * PART + V_DIM], highest);
        highest = warp_max(highest);
        for (u32 i = lane; i < p.splits; i += 32) {
            f32 scale = weight_of(parts[i * PART + V_DIM], highest);
            whole += parts[i * PART + V_DIM + 1] * scale;
            scales[r * p.splits + i] = scale;
        }
        whole = warp_sum(whole);
        if (lane == 0) divisors[r] = divisor(whole);
    }
    __syncthreads();
    const u32 quads = V_DIM / 4;
    for (u32 i = threadIdx.x; i < ROWS * quads; i += 32 * WARPS) {
        u32 r = i / quads, first = i % quads * 4, row = first_row + r;
        if (row >= rows) break;
        u64 result = result_row(p, batch, kv_head, row);
        const f32* parts = part_at(p, result, 0) + first;
        f32 total[4] = {};
#pragma unroll 8
        for (u32 n = 0; n < p.splits; n++) {
            Pack<f32, 4> sums = load<4>(parts + n * PART);
            f32 scale = scales[r * p.splits + n];
#pragma unroll
            for (int c = 0; c < 4; c++) total[c] += sums.at[c] * scale;
        }
        Pack<T, 4> out;
#pragma unroll
        for (int c = 0; c < 4; c++) out.at[c] = as<T>(total[c] / divisors[r]);
        store((T*)p.dst + result * V_DIM + first, out);
    }
#endif
}
