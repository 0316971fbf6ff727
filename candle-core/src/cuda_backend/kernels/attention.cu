// What the attention kernels share: which keys a query sees, what is added to their scores, and where sums go. T: the dtype of queries
// and result; K: of keys and values; HEAD_DIM, V_DIM: elements of a head; RULES: the bits below; BIAS: the dtype of the bias, if there
// is one; PAGE: keys of a page, 0 where keys are not in pages; JOINS: whether a block sees some of the keys and leaves its sums to be joined.
//
// A row is a query of one head. Rows that share keys and values are numbered with the heads of a query adjacent, so that neighbours see the
// same keys.

enum { SOFTCAP = 1, CAUSAL = 2, LEFT = 4, RIGHT = 8, STARTS = 16, LENS = 32, SLOPES = 64, SINKS = 128, BLIND = 256, BIASED = 512 };

struct HeadSteps { u64 batch, head, seq; };

struct Attention {
    u64 q, k, v, dst, parts, counters, bias, slopes, sinks, starts, lens, pages;
    HeadSteps q_step, k_step, v_step;
    u64 bias_batch, bias_head, bias_seq, bias_key;
    u32 batch, heads, group, queries, keys;
    // Number of parts of the keys, and keys per part.
    u32 splits, chunk;
    // Maximum distances back and ahead that a query sees.
    u32 left, right;
    f32 scale, softcap;
    // Columns of the table of pages, and the last page.
    u32 pages_columns, pages_last;
    u32 unused;
};

#define LEAST (-3.402823466e38f)
// Maximum distinguishable position, so that sums fit an i32.
#define FAR 0x1fffffffu

INLINE i32 position_of(const Attention& p, u32 batch, u32 at) {
    if (RULES & STARTS) {
        u32 start = ((const u32*)p.starts)[batch];
        return (i32)((start < FAR ? start : FAR) + at);
    }
    return (i32)(p.keys + at) - (i32)p.queries;
}

INLINE u32 key_count(const Attention& p, u32 batch) {
    if (!(RULES & LENS)) return p.keys;
    u32 len = ((const u32*)p.lens)[batch];
    return len < p.keys ? len : p.keys;
}

// Where a row's key is among those of k and v. A page that does not exist is the last one: nothing is read past the pool.
INLINE u32 key_place(const Attention& p, u32 batch, u32 key) {
#if PAGE
    u32 page = ((const u32*)p.pages)[batch * p.pages_columns + key / PAGE];
    return (page < p.pages_last ? page : p.pages_last) * PAGE + key % PAGE;
#else
    return key;
#endif
}

// The keys that query `at` sees: they do not decrease with `at`.
INLINE u32 seen_begin(const Attention& p, u32 batch, u32 at) {
    if (!(RULES & LEFT)) return 0;
    i32 begin = position_of(p, batch, at) - (i32)p.left;
    return begin > 0 ? begin : 0;
}

INLINE u32 seen_end(const Attention& p, u32 batch, u32 at) {
    u32 keys = key_count(p, batch);
    if (RULES & CAUSAL) {
        u32 end = p.keys - p.queries + at + 1;
        return end < keys ? end : keys;
    }
    if (RULES & RIGHT) {
        i32 end = position_of(p, batch, at) + (i32)p.right + 1;
        return end <= 0 ? 0 : (u32)end < keys ? end : keys;
    }
    return keys;
}

struct Span { u32 begin, end; };

// Part `split`, of whole iterations of TURN keys, of the keys that queries `first` to `last` see together.
template <u32 TURN> INLINE Span part_of(const Attention& p, u32 batch, u32 first, u32 last, u32 split) {
    u32 seen = seen_end(p, batch, last);
    if (RULES & (LEFT | RIGHT | LENS)) {
        u32 begin = seen_begin(p, batch, first);
        if (begin > seen) begin = seen;
        u32 turns = (seen - begin + TURN - 1) / TURN, chunk = (turns + p.splits - 1) / p.splits * TURN;
        u32 from = begin + split * chunk, to = from + chunk;
        return Span{from, to < seen ? to : seen};
    }
    u32 from = split * p.chunk, to = from + p.chunk;
    return Span{from, to < seen ? to : seen};
}

// The score of a visible key, from its product with the query; -infinity if its bias hides it.
INLINE f32 score_of(const Attention& p, f32 product, u32 batch, u32 head, u32 at, u32 key) {
    f32 s = product * p.scale;
    if (RULES & SOFTCAP) s = p.softcap * tanhf(s / p.softcap);
    if constexpr ((RULES & BIASED) != 0) {
        u64 place = batch * p.bias_batch + head * p.bias_head + at * p.bias_seq + key * p.bias_key;
        f32 bias = value(((const BIAS*)p.bias)[place]);
        if (bias == -INFINITE) return bias;
        s += bias;
    }
    if (RULES & SLOPES) {
        i32 distance = (i32)key - position_of(p, batch, at);
        s -= ((const f32*)p.slopes)[head] * (f32)(distance < 0 ? -distance : distance);
    }
    // A key whose bias is the least number is visible.
    if ((RULES & (BIASED | SLOPES)) && s < LEAST) s = LEAST;
    return s;
}

INLINE f32 sink_of(const Attention& p, u32 head) { return RULES & SINKS ? ((const f32*)p.sinks)[head] : -INFINITE; }

// The divisor of a row's sums; 1 if the row saw no key.
INLINE f32 divisor(f32 sum) { return (RULES & BLIND) && sum == 0 ? 1.f : sum; }

// exp(x) for x <= 0: the fast one if the result is rounded to 16 bits. 0 for -infinity, and also if both sides of a difference were
// -infinity, since a row that saw no key has no maximum yet.
INLINE f32 weight_of(f32 score, f32 most) {
    f32 x = score - (most == -INFINITE ? 0.f : most);
    if constexpr (sizeof(T) == 2) return __expf(x);
    return expf(x);
}

// Row `row` of those that share keys, in the order of the result.
INLINE u64 result_row(const Attention& p, u32 batch, u32 kv_head, u32 row) {
    return ((u64)batch * p.heads + kv_head * p.group + row % p.group) * p.queries + row / p.group;
}

// A part: V_DIM sums, their maximum, their sum of weights; two more, so that parts of whole words begin at whole words.
const u32 PART = V_DIM + 4;
INLINE f32* part_at(const Attention& p, u64 row, u32 split) { return (f32*)p.parts + (row * p.splits + split) * PART; }

// N elements of a head from `at` on, as f32.
template <int N, class E> INLINE void widen(const E* at, f32 (&to)[N]) {
    Pack<E, N> pack = load<N>(at);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = value(pack.at[i]);
}
