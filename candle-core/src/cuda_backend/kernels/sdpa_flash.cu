// Attention of many rows in 16-bit floats, with matrix instructions that sum in f32 (Dao, arXiv 2307.08691). A warp takes 16 * BLOCKS
// rows that share keys and values, a block WARPS times as many, KEYS keys a turn. Queries, keys and values are staged in shared memory,
// each where the others' loads overlap with products. Scores and weighted sums stay in registers; weights become the fragments of the
// second product where they are. MMA: the instruction for K, the dtype of keys and values. Queries and results are of that dtype or f32;
// queries in f32 are rounded to K. Heads are padded with zeros to multiples of 16. Other definitions: attention.cu.

const u32 DIM = (HEAD_DIM + 15) / 16 * 16, SUMS = (V_DIM + 15) / 16 * 16;
const u32 WG = 32 * WARPS, ROWS = 16 * BLOCKS * WARPS;
// One more word of 16 bytes, so that the eight rows of a matrix are in different banks.
const u32 PITCH = DIM + 8, V_PITCH = SUMS + 8;

INLINE u32 pair(f32 low, f32 high) { return as<K>(low).bits | (u32)as<K>(high).bits << 16; }

// exp(score - most), 0 for -infinity: the weight is rounded to 16 bits, for which the fast function is exact enough.
INLINE f32 fast_weight(f32 score, f32 most) { return __expf(score - (most == -INFINITE ? 0.f : most)); }

// Eight elements of a query.
template <class E> INLINE void stage_query(K* to, const E* from, bool inside) {
    if constexpr (sizeof(E) == 2) {
        copy_async_16(to, from, inside);
    } else {
        Pack<f32, 4> low = {}, high = {};
        if (inside) low = load<4>(from), high = load<4>(from + 4);
        *(uint4*)to = make_uint4(pair(low.at[0], low.at[1]), pair(low.at[2], low.at[3]), pair(high.at[0], high.at[1]), pair(high.at[2], high.at[3]));
    }
}

template <class E> INLINE void store_pair(E* to, f32 low, f32 high) {
    if constexpr (sizeof(E) == 2) {
        *(u32*)to = pair(low, high);
    } else {
        store<2>(to, Pack<E, 2>{low, high});
    }
}

// COUNT keys or values of a row of the batch from key `first` on, those from `end` on and elements past SIZE as zeros.
template <u32 COUNT, u32 SIZE, u32 FILLED>
INLINE void stage(const Attention& p, u32 batch, K* to, const K* from, u64 step, u32 first, u32 end) {
    const u32 words = FILLED / 8;
    for (u32 i = threadIdx.x; i < COUNT * words; i += WG) {
        u32 row = i / words, word = i % words;
        bool inside = first + row < end && word * 8 < SIZE;
        const K* at = inside ? from + key_place(p, batch, first + row) * step + word * 8 : from;
        copy_async_16(to + row * (FILLED + 8) + word * 8, at, inside);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) sdpa_flash_kernel(Attention p) {
    extern __shared__ uint4 memory[];
    K *queries = (K*)memory, *keys = queries + ROWS * PITCH, *values = keys + KEYS * PITCH;
    const u32 rows = p.group * p.queries, kv_heads = p.heads / p.group, blocks = (rows + ROWS - 1) / ROWS;
    const u32 block = blockIdx.x % blocks, rest = blockIdx.x / blocks;
    const u32 split = rest % p.splits, kv_head = rest / p.splits % kv_heads, batch = rest / p.splits / kv_heads;
    // The last of the causal blocks take longest, so they start first.
    const u32 first_row = (blocks - 1 - block) * ROWS, last_row = (first_row + ROWS < rows ? first_row + ROWS : rows) - 1;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const T* q = (const T*)p.q + batch * p.q_step.batch + (u64)kv_head * p.group * p.q_step.head;
    const K* k = (const K*)p.k + batch * p.k_step.batch + kv_head * p.k_step.head;
    const K* v = (const K*)p.v + batch * p.v_step.batch + kv_head * p.v_step.head;
    const Span part = part_of<KEYS>(p, batch, first_row / p.group, last_row / p.group, split);

    for (u32 i = threadIdx.x; i < ROWS * (DIM / 8); i += WG) {
        u32 row = first_row + i / (DIM / 8), word = i % (DIM / 8);
        bool inside = row < rows && word * 8 < HEAD_DIM;
        const T* from = inside ? q + row % p.group * p.q_step.head + row / p.group * p.q_step.seq + word * 8 : q;
        stage_query(queries + i / (DIM / 8) * PITCH + word * 8, from, inside);
    }
    if (part.begin < part.end) stage<KEYS, HEAD_DIM, DIM>(p, batch, keys, k, p.k_step.seq, part.begin, part.end);
    copy_async_commit();

    // For the rows g and g + 8 of each block of 16.
    f32 most[BLOCKS][2], sum[BLOCKS][2], sums[BLOCKS][SUMS / 8][4];
    u32 from[BLOCKS][2], to[BLOCKS][2], at[BLOCKS][2], head[BLOCKS][2];
#pragma unroll
    for (u32 m = 0; m < BLOCKS; m++) {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 row = first_row + (warp * BLOCKS + m) * 16 + g + 8 * h;
            bool inside = row < rows;
            at[m][h] = inside ? row / p.group : 0;
            head[m][h] = kv_head * p.group + (inside ? row % p.group : 0);
            from[m][h] = seen_begin(p, batch, at[m][h]);
            to[m][h] = inside ? seen_end(p, batch, at[m][h]) : 0;
            if (to[m][h] > part.end) to[m][h] = part.end;
            most[m][h] = split == 0 ? sink_of(p, head[m][h]) : -INFINITE;
            // Each of four lanes has a share of the row's sum; the sink is the first one's.
            sum[m][h] = (RULES & SINKS) && split == 0 && t == 0 ? 1 : 0;
        }
#pragma unroll
        for (u32 n = 0; n < SUMS / 8; n++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) sums[m][n][c] = 0;
        }
    }
    // The keys that all rows of the block see: iterations within need no check of each key.
    u32 all_from = seen_begin(p, batch, last_row / p.group), all_to = seen_end(p, batch, first_row / p.group);
    if (all_to > part.end) all_to = part.end;
    // A lane's row and column of the four matrices that are loaded at once.
    const u32 matrix = lane / 8, within = lane % 8;
    const K* query_at = queries + (warp * BLOCKS * 16 + matrix % 2 * 8 + within) * PITCH + matrix / 2 * 8;
    const K* key_at = keys + (matrix / 2 * 8 + within) * PITCH + matrix % 2 * 8;
    const K* value_at = values + (matrix % 2 * 8 + within) * V_PITCH + matrix / 2 * 8;

    for (u32 turn = part.begin; turn < part.end; turn += KEYS) {
        copy_async_wait<0>();
        __syncthreads();
        stage<KEYS, V_DIM, SUMS>(p, batch, values, v, p.v_step.seq, turn, part.end);
        copy_async_commit();
        f32 s[BLOCKS][KEYS / 8][4] = {};
#pragma unroll
        for (u32 d = 0; d < DIM / 16; d++) {
            u32 a[BLOCKS][4];
#pragma unroll
            for (u32 m = 0; m < BLOCKS; m++) ldmatrix_x4(a[m], query_at + m * 16 * PITCH + d * 16);
#pragma unroll
            for (u32 j = 0; j < KEYS / 16; j++) {
                u32 both[4];
                ldmatrix_x4(both, key_at + j * 16 * PITCH + d * 16);
                u32 first[2] = {both[0], both[1]}, second[2] = {both[2], both[3]};
#pragma unroll
                for (u32 m = 0; m < BLOCKS; m++) {
                    MMA(s[m][2 * j], a[m], first);
                    MMA(s[m][2 * j + 1], a[m], second);
                }
            }
        }
        bool plain = !(RULES & (SOFTCAP | BIASED | SLOPES)) && turn >= all_from && turn + KEYS <= all_to;
#pragma unroll
        for (u32 m = 0; m < BLOCKS; m++) {
            f32 higher[2] = {most[m][0], most[m][1]};
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) {
                    u32 h = c / 2, key = turn + 8 * j + 2 * t + c % 2;
                    if (plain) {
                        s[m][j][c] *= p.scale;
                    } else {
                        bool seen = key >= from[m][h] && key < to[m][h];
                        s[m][j][c] = seen ? score_of(p, s[m][j][c], batch, head[m][h], at[m][h], key) : -INFINITE;
                    }
                    higher[h] = Max::of(s[m][j][c], higher[h]);
                }
            }
            f32 correction[2];
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                // Four lanes share a row.
                higher[h] = Max::of(__shfl_xor_sync(ALL_LANES, higher[h], 1), higher[h]);
                higher[h] = Max::of(__shfl_xor_sync(ALL_LANES, higher[h], 2), higher[h]);
                correction[h] = fast_weight(most[m][h], higher[h]);
                most[m][h] = higher[h];
                sum[m][h] *= correction[h];
            }
#pragma unroll
            for (u32 n = 0; n < SUMS / 8; n++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) sums[m][n][c] *= correction[c / 2];
            }
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) {
                    s[m][j][c] = fast_weight(s[m][j][c], higher[c / 2]);
                    sum[m][c / 2] += s[m][j][c];
                }
            }
        }
        copy_async_wait<0>();
        __syncthreads();
        u32 next = turn + KEYS;
        if (next < part.end) stage<KEYS, HEAD_DIM, DIM>(p, batch, keys, k, p.k_step.seq, next, part.end);
        copy_async_commit();
#pragma unroll
        for (u32 j = 0; j < KEYS / 16; j++) {
            u32 a[BLOCKS][4];
#pragma unroll
            for (u32 m = 0; m < BLOCKS; m++) {
                // A lane's part of one product's result is its part of the next one's operand.
                a[m][0] = pair(s[m][2 * j][0], s[m][2 * j][1]);
                a[m][1] = pair(s[m][2 * j][2], s[m][2 * j][3]);
                a[m][2] = pair(s[m][2 * j + 1][0], s[m][2 * j + 1][1]);
                a[m][3] = pair(s[m][2 * j + 1][2], s[m][2 * j + 1][3]);
            }
#pragma unroll
            for (u32 n = 0; n < SUMS / 16; n++) {
                u32 both[4];
                ldmatrix_x4_trans(both, value_at + j * 16 * V_PITCH + n * 16);
                u32 first[2] = {both[0], both[1]}, second[2] = {both[2], both[3]};
#pragma unroll
                for (u32 m = 0; m < BLOCKS; m++) {
                    MMA(sums[m][2 * n], a[m], first);
                    MMA(sums[m][2 * n + 1], a[m], second);
                }
            }
        }
    }
    copy_async_wait<0>();
#pragma unroll
    for (u32 m = 0; m < BLOCKS; m++) {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            sum[m][h] += __shfl_xor_sync(ALL_LANES, sum[m][h], 1);
            sum[m][h] += __shfl_xor_sync(ALL_LANES, sum[m][h], 2);
            u32 row = first_row + (warp * BLOCKS + m) * 16 + g + 8 * h;
            if (row >= rows) continue;
            u64 result = result_row(p, batch, kv_head, row);
#pragma unroll
            for (u32 n = 0; n < SUMS / 8; n++) {
                u32 column = 8 * n + 2 * t;
                if (column >= V_DIM) continue;
                f32 low = sums[m][n][2 * h], high = sums[m][n][2 * h + 1];
                if (JOINS) {
                    f32* out = part_at(p, result, split) + column;
                    out[0] = low;
                    out[1] = high;
                } else {
                    f32 by = divisor(sum[m][h]);
                    store_pair((T*)p.dst + result * V_DIM + column, low / by, high / by);
                }
            }
            if (JOINS && t == 0) {
                part_at(p, result, split)[V_DIM] = most[m][h];
                part_at(p, result, split)[V_DIM + 1] = sum[m][h];
            }
        }
    }
}
