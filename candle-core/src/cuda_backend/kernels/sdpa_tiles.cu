// Attention of ROWS rows that share keys and values, KEYS keys per iteration, by 256 threads in f32 (Dao et al., arXiv 2205.14135): for any
// dtypes, head sizes and strides. In an iteration a thread computes the scores of rows y + TY * i and keys x + TX * j; then, for the same
// rows, the weighted sums of values in four dimensions x + TX * q, which stay in its registers. Maximum and sum are corrected in each
// iteration (Milakov and Gimelshein, arXiv 1805.02867). Keys, then values, are staged in shared memory. LANES: elements of a key that are
// loaded at once. Further definitions: attention.cu.

const u32 TX = 16, TY = 16, WG = TX * TY;
const u32 ROWS_OF = ROWS / TY, KEYS_OF = KEYS / TX;
const u32 QUADS = (HEAD_DIM + 3) / 4, V_QUADS = (V_DIM + 3) / 4;
// In words of four: odd, so that the rows of a tile start in different banks.
const u32 PITCH = QUADS | 1, V_PITCH = V_QUADS | 1, TILE_PITCH = PITCH > V_PITCH ? PITCH : V_PITCH;
const u32 QUADS_OF = (V_QUADS + TX - 1) / TX;
const u32 SCORE_PITCH = KEYS + 4;

struct alignas(16) Four { f32 at[4]; };

template <class E> INLINE Four quad_at(const E* head, u32 quad, u32 dim) {
    Four four;
    if constexpr (LANES == 4) {
        widen<4>(head + quad * 4, four.at);
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.at[i] = quad * 4 + i < dim ? value(head[quad * 4 + i]) : 0.f;
    }
    return four;
}

KERNEL(sdpa_tiles)(Attention p) {
    extern __shared__ Four memory[];
    Four *queries = memory, *tile = queries + ROWS * PITCH;
    f32* scores = (f32*)(tile + KEYS * TILE_PITCH);
    const u32 rows = p.group * p.queries, kv_heads = p.heads / p.group, blocks = (rows + ROWS - 1) / ROWS;
    const u32 block = blockIdx.x % blocks, rest = blockIdx.x / blocks;
    const u32 split = rest % p.splits, kv_head = rest / p.splits % kv_heads, batch = rest / p.splits / kv_heads;
    // The last of the causal blocks take longest, so they start first.
    const u32 first_row = (blocks - 1 - block) * ROWS, last_row = (first_row + ROWS < rows ? first_row + ROWS : rows) - 1;
    const u32 local = threadIdx.x, x = local % TX, y = local / TX;
    const T* q = (const T*)p.q + batch * p.q_step.batch + (u64)kv_head * p.group * p.q_step.head;
    const K* k = (const K*)p.k + batch * p.k_step.batch + kv_head * p.k_step.head;
    const K* v = (const K*)p.v + batch * p.v_step.batch + kv_head * p.v_step.head;
    for (u32 i = local; i < ROWS * QUADS; i += WG) {
        u32 row = first_row + i / QUADS;
        Four four = {};
        if (row < rows) four = quad_at(q + row % p.group * p.q_step.head + row / p.group * p.q_step.seq, i % QUADS, HEAD_DIM);
        queries[i / QUADS * PITCH + i % QUADS] = four;
    }
    Span part = part_of<KEYS>(p, batch, first_row / p.group, last_row / p.group, split);
    f32 most[ROWS_OF], sum[ROWS_OF];
    u32 from[ROWS_OF], to[ROWS_OF], at[ROWS_OF], head[ROWS_OF];
    Four sums[ROWS_OF][QUADS_OF] = {};
#pragma unroll
    for (u32 i = 0; i < ROWS_OF; i++) {
        u32 row = first_row + y + TY * i;
        bool inside = row < rows;
        at[i] = inside ? row / p.group : 0;
        head[i] = kv_head * p.group + (inside ? row % p.group : 0);
        from[i] = seen_begin(p, batch, at[i]);
        to[i] = inside ? seen_end(p, batch, at[i]) : 0;
        if (to[i] > part.end) to[i] = part.end;
        most[i] = split == 0 ? sink_of(p, head[i]) : -INFINITE;
        // Each thread has a share of the row's sum; the sink is the first one's.
        sum[i] = (RULES & SINKS) && split == 0 && x == 0 ? 1 : 0;
    }
    for (u32 turn = part.begin; turn < part.end; turn += KEYS) {
        __syncthreads();
        for (u32 i = local; i < KEYS * QUADS; i += WG) {
            u32 key = turn + i / QUADS;
            Four four = {};
            if (key < part.end) four = quad_at(k + key_place(p, batch, key) * p.k_step.seq, i % QUADS, HEAD_DIM);
            tile[i / QUADS * PITCH + i % QUADS] = four;
        }
        __syncthreads();
        f32 s[ROWS_OF][KEYS_OF] = {};
        for (u32 d = 0; d < QUADS; d++) {
            Four a[ROWS_OF], b[KEYS_OF];
#pragma unroll
            for (u32 i = 0; i < ROWS_OF; i++) a[i] = queries[(y + TY * i) * PITCH + d];
#pragma unroll
            for (u32 j = 0; j < KEYS_OF; j++) b[j] = tile[(x + TX * j) * PITCH + d];
#pragma unroll
            for (u32 i = 0; i < ROWS_OF; i++) {
#pragma unroll
                for (u32 j = 0; j < KEYS_OF; j++) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) s[i][j] += a[i].at[c] * b[j].at[c];
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < ROWS_OF; i++) {
            f32 higher = most[i];
#pragma unroll
            for (u32 j = 0; j < KEYS_OF; j++) {
                u32 key = turn + x + TX * j;
                bool seen = key >= from[i] && key < to[i];
                s[i][j] = seen ? score_of(p, s[i][j], batch, head[i], at[i], key) : -INFINITE;
                higher = Max::of(s[i][j], higher);
            }
            // Half a warp shares a row.
#pragma unroll
            for (int step = TX / 2; step > 0; step /= 2) higher = Max::of(__shfl_xor_sync(ALL_LANES, higher, step), higher);
            f32 correction = weight_of(most[i], higher);
            most[i] = higher;
            sum[i] *= correction;
#pragma unroll
            for (u32 j = 0; j < KEYS_OF; j++) {
                f32 weight = weight_of(s[i][j], higher);
                sum[i] += weight;
                scores[(y + TY * i) * SCORE_PITCH + x + TX * j] = weight;
            }
#pragma unroll
            for (u32 n = 0; n < QUADS_OF; n++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) sums[i][n].at[c] *= correction;
            }
        }
        __syncthreads();
        for (u32 i = local; i < KEYS * V_QUADS; i += WG) {
            u32 key = turn + i / V_QUADS;
            Four four = {};
            if (key < part.end) four = quad_at(v + key_place(p, batch, key) * p.v_step.seq, i % V_QUADS, V_DIM);
            tile[i / V_QUADS * V_PITCH + i % V_QUADS] = four;
        }
        __syncthreads();
        for (u32 key = 0; key < KEYS; key++) {
            f32 weight[ROWS_OF];
#pragma unroll
            for (u32 i = 0; i < ROWS_OF; i++) weight[i] = scores[(y + TY * i) * SCORE_PITCH + key];
#pragma unroll
            for (u32 n = 0; n < QUADS_OF; n++) {
                u32 quad = x + TX * n;
                Four four = quad < V_QUADS ? tile[key * V_PITCH + quad] : Four{};
#pragma unroll
                for (u32 i = 0; i < ROWS_OF; i++) {
#pragma unroll
                    for (u32 c = 0; c < 4; c++) sums[i][n].at[c] += weight[i] * four.at[c];
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < ROWS_OF; i++) {
#pragma unroll
        for (int step = TX / 2; step > 0; step /= 2) sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], step);
        u32 row = first_row + y + TY * i;
        if (row >= rows) continue;
        u64 result = result_row(p, batch, kv_head, row);
        for (u32 n = 0; n < QUADS_OF; n++) {
            u32 first = (x + TX * n) * 4;
            for (u32 c = 0; c < 4 && first + c < V_DIM; c++) {
                if (JOINS) {
                    part_at(p, result, split)[first + c] = sums[i][n].at[c];
                } else {
                    ((T*)p.dst)[result * V_DIM + first + c] = as<T>(sums[i][n].at[c] / divisor(sum[i]));
                }
            }
        }
        if (JOINS && x == 0) {
            part_at(p, result, split)[V_DIM] = most[i];
            part_at(p, result, split)[V_DIM + 1] = sum[i];
        }
    }
}
