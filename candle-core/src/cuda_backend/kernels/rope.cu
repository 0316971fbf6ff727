// Heads are normed, rotated, and stored, the keys and values among them into a cache. T: the dtype; CACHE: that of the cache, if there
// is one (APPEND); KIND: which elements are rotated together, below; NORMS: whether queries and keys are RMS-normed, each head by
// itself; POSITIONS: whether each sequence's place in the cache comes from a tensor; EACH: whether
// each position's does, and all sequences have one cache; LANES: elements that are loaded at once; GROUP:
// threads that share a head, a power of two up to 32; INDEX: what heads are counted with.

typedef compute<T> A;

enum { HALF_SPLIT, INTERLEAVED, THD };

struct Steps { u64 batch, head, seq, dim; };

struct Rope {
    // Heads over all sequences.
    u64 count, heads;
    // The number of query heads, which are first, and the end of the rotated heads.
    u64 queries, rotated;
    u64 seq, dim, rotary;
    Steps x, cos, sin;
    u64 norms_head, norms_dim;
    // The cache's length, the index at which its sequences continue, and the stride of the tensor with the indexes.
    u64 capacity, position, positions_step;
    f64 eps;
    u64 fault;
};

typedef Pack<T, LANES> Word;

INLINE Word word_at(const T* row, u64 first, u64 step) {
    if constexpr (LANES > 1) {
        return load<LANES>(row + first);
    } else {
        return Word{{row[first * step]}};
    }
}

struct Values { A at[LANES]; };

// LANES elements of a head, normed.
INLINE Values read(const T* x, u64 first, const T* norms, A root, const Rope& p) {
    Word word = word_at(x, first, p.x.dim), weight;
    if (NORMS && norms) weight = word_at(norms, first, p.norms_dim);
    Values v;
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) {
        v.at[lane] = value(word.at[lane]);
        // Divided by the root, not multiplied by its inverse, as in norm.cu.
        if (NORMS && norms) v.at[lane] = v.at[lane] / root * value(weight.at[lane]);
    }
    return v;
}

template <class To> INLINE void put(To* at, const Values& v) {
    Pack<To, LANES> word;
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) word.at[lane] = as<To>(v.at[lane]);
    store(at, word);
}

// A head from x to dst.
template <class To>
INLINE void turn_head(const T* x, To* dst, const T* cos, const T* sin, const T* norms, A root, u64 rotary, int local, const Rope& p) {
    u64 half = rotary / 2;
    for (u64 pair = local * LANES; pair < half; pair += GROUP * LANES) {
        u64 first = KIND == INTERLEAVED ? 2 * pair : pair, second = KIND == INTERLEAVED ? first + LANES : first + half;
        if constexpr (KIND == INTERLEAVED && LANES == 1) second = first + 1;
        Values a = read(x, first, norms, root, p), b = read(x, second, norms, root, p), y, z;
        Word c = word_at(cos, pair, p.cos.dim), s = word_at(sin, pair, p.sin.dim);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) {
            A cosine = value(c.at[lane]), sine = value(s.at[lane]);
            if constexpr (KIND == INTERLEAVED && LANES > 1) {
                // Pairs are neighbours: the first LANES / 2 of them are in `a`, the others in `b`.
                Values& from = lane < LANES / 2 ? a : b;
                Values& to = lane < LANES / 2 ? y : z;
                int i = 2 * lane % LANES;
                to.at[i] = from.at[i] * cosine - from.at[i + 1] * sine;
                to.at[i + 1] = from.at[i + 1] * cosine + from.at[i] * sine;
            } else {
                y.at[lane] = a.at[lane] * cosine - b.at[lane] * sine;
                z.at[lane] = b.at[lane] * cosine + a.at[lane] * sine;
            }
        }
        put(dst + first, y);
        put(dst + second, z);
    }
    for (u64 first = rotary + local * LANES; first < p.dim; first += GROUP * LANES) put(dst + first, read(x, first, norms, root, p));
}

KERNEL(rope)(const T* x, T* dst, const T* cos, const T* sin, const T* norms, CACHE* cache, const u32* positions, Fault* fault, Rope p) {
    INDEX index = (INDEX)(thread_index() / GROUP);
    int local = threadIdx.x % GROUP;
    bool inside = index < p.count;
    // Threads past the end continue for the shuffles.
    INDEX row = inside ? index : 0;
    INDEX heads = (INDEX)p.heads, length = (INDEX)p.seq;
    INDEX batch = row / (heads * length), rest = row % (heads * length);
    INDEX head = KIND == THD ? rest % heads : rest / length, at = KIND == THD ? rest / heads : rest % length;
    x += batch * p.x.batch + head * p.x.head + at * p.x.seq;
    cos += batch * p.cos.batch + at * p.cos.seq;
    sin += batch * p.sin.batch + at * p.sin.seq;
    bool rotated = head < p.rotated;
    A root = 1;
    if constexpr (NORMS) {
        A sum = 0;
        if (inside && rotated) {
            for (u64 first = local * LANES; first < p.dim; first += GROUP * LANES) {
                Word word = word_at(x, first, p.x.dim);
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) sum += value(word.at[lane]) * value(word.at[lane]);
            }
        }
#pragma unroll
        for (int step = GROUP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        root = f_sqrt(sum / (A)p.dim + (A)p.eps);
        norms = rotated ? norms + (head < p.queries ? 0 : p.norms_head) : 0;
    }
    if (!inside) return;
    u64 rotary = rotated ? p.rotary : 0;
#if APPEND
    if (head >= p.queries) {
        u64 position = p.position, end = EACH ? p.capacity : p.capacity - p.seq + 1;
        if (POSITIONS) position = positions[batch * p.positions_step + (EACH ? at : 0)];
        if (position >= end) {
            report(fault, (u32)p.fault, position, end);
            return;
        }
        u64 kept = p.heads - p.queries, first = EACH ? 0 : batch * kept;
        cache += ((first + head - p.queries) * p.capacity + position + (EACH ? 0 : at)) * p.dim;
        turn_head(x, cache, cos, sin, norms, root, rotary, local, p);
        return;
    }
    dst += ((batch * p.queries + head) * p.seq + at) * p.dim;
#else
    dst += (u64)row * p.dim;
#endif
    turn_head(x, dst, cos, sin, norms, root, rotary, local, p);
}
