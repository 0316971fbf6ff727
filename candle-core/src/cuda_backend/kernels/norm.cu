// dst = last((v - mean) / sqrt(mean((v - mean)^2) + eps) * weight + bias) for each row of v; without CENTRED the mean is taken as 0 (RMS
// norm). T: the dtype; RANK: the rows' starts; BESIDE: the role of a second tensor, below; WEIGHT, BIAS: whether they are present. LANES:
// elements that are loaded at once; KEPT: words of its row that a thread keeps in registers, 0 if they are read again for each pass;
// WARP_ROWS: rows of a block, one per warp, or 0 for one row per block.

typedef compute<T> A;

enum { NOTHING, ADD_BEFORE, ADD_AFTER, GATE_AFTER };

struct Norm {
    u64 rows, len, x_step, beside_step, weight_step, bias_step;
    f64 eps;
};

struct Row {
    const T *x, *beside;
    // Destinations of the sums and of the result.
    T *sums, *dst;
};

template <class V> INLINE V sum_of_row(V x, V* scratch) {
#if WARP_ROWS
    return warp_sum(x);
#else
    return block_sum(x, scratch);
#endif
}

INLINE Pack<T, LANES> word_at(const T* row, u64 word, u64 step) {
    if constexpr (LANES > 1) {
        return load<LANES>(row + word * LANES);
    } else {
        return Pack<T, LANES>{{row[word * step]}};
    }
}

struct Word { A at[LANES]; };

// The values to be normed. Sums are stored, and used as stored: rounded.
INLINE Word first_values(const Row& row, u64 word, const Norm& p) {
    Word v;
    Pack<T, LANES> x = word_at(row.x, word, p.x_step);
    if constexpr (BESIDE == ADD_BEFORE) {
        Pack<T, LANES> beside = word_at(row.beside, word, p.beside_step);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) x.at[lane] = as<T>((A)value(x.at[lane]) + (A)value(beside.at[lane]));
        store(row.sums + word * LANES, x);
    }
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) v.at[lane] = value(x.at[lane]);
    return v;
}

// The same values again.
INLINE Word values_again(const Row& row, u64 word, const Norm& p) {
    if constexpr (BESIDE == ADD_BEFORE) {
        Word v;
        Pack<T, LANES> sums = load<LANES>((const T*)row.sums + word * LANES);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) v.at[lane] = value(sums.at[lane]);
        return v;
    } else {
        return first_values(row, word, p);
    }
}

INLINE void finish(const Row& row, const Word& v, A mean, A root, u64 word, const T* weight, const T* bias, const Norm& p) {
    Pack<T, LANES> y, w, b, beside;
    if constexpr (WEIGHT) w = word_at(weight, word, p.weight_step);
    if constexpr (BIAS) b = word_at(bias, word, p.bias_step);
    if constexpr (BESIDE == ADD_AFTER || BESIDE == GATE_AFTER) beside = word_at(row.beside, word, p.beside_step);
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) {
        // Divided by the root, not multiplied by its inverse: one rounding less, and the same digits as the norm composed of ops.
        A out = (v.at[lane] - mean) / root;
        if constexpr (WEIGHT) out *= value(w.at[lane]);
        if constexpr (BIAS) out += value(b.at[lane]);
        if constexpr (BESIDE == ADD_AFTER) out += value(beside.at[lane]);
        if constexpr (BESIDE == GATE_AFTER) out *= f_silu((A)value(beside.at[lane]));
        y.at[lane] = as<T>(out);
    }
    store(row.dst + word * LANES, y);
}

KERNEL(norm)(const T* x, T* dst, const T* weight, const T* bias, const T* beside, Views<2> starts, Norm p) {
    __shared__ A scratch[32];
#if WARP_ROWS
    u64 index = (u64)blockIdx.x * WARP_ROWS + threadIdx.x / 32;
    int local = threadIdx.x % 32, threads = 32;
#else
    u64 index = blockIdx.x;
    int local = threadIdx.x, threads = blockDim.x;
#endif
    if (index >= p.rows) return;
    u64 at[2];
    places<RANK>(starts, index, at);
    Row row = {x + at[0], beside + at[1], dst + index * p.len, dst + index * p.len};
    if (BESIDE == ADD_BEFORE) row.dst += p.rows * p.len;
    u64 words = p.len / LANES;
    A sum = 0, mean = 0;
#if KEPT
    Word kept[KEPT];
#pragma unroll
    for (int turn = 0; turn < KEPT; turn++) {
        u64 word = local + turn * threads;
        if (word < words) {
            kept[turn] = first_values(row, word, p);
#pragma unroll
            for (int lane = 0; lane < LANES; lane++) sum += CENTRED ? kept[turn].at[lane] : kept[turn].at[lane] * kept[turn].at[lane];
        }
    }
#else
    for (u64 word = local; word < words; word += threads) {
        Word v = first_values(row, word, p);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) sum += CENTRED ? v.at[lane] : v.at[lane] * v.at[lane];
    }
#endif
    sum = sum_of_row(sum, scratch);
    if (CENTRED) {
        mean = sum / (A)p.len;
        sum = 0;
#if KEPT
#pragma unroll
        for (int turn = 0; turn < KEPT; turn++) {
            if (local + turn * threads < words) {
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) {
                    A off = kept[turn].at[lane] - mean;
                    sum += off * off;
                }
            }
        }
#else
        for (u64 word = local; word < words; word += threads) {
            Word v = values_again(row, word, p);
#pragma unroll
            for (int lane = 0; lane < LANES; lane++) {
                A off = v.at[lane] - mean;
                sum += off * off;
            }
        }
#endif
        sum = sum_of_row(sum, scratch);
    }
    A root = f_sqrt(sum / (A)p.len + (A)p.eps);
#if KEPT
#pragma unroll
    for (int turn = 0; turn < KEPT; turn++) {
        u64 word = local + turn * threads;
        if (word < words) finish(row, kept[turn], mean, root, word, weight, bias, p);
    }
#else
    for (u64 word = local; word < words; word += threads) {
        finish(row, values_again(row, word, p), mean, root, word, weight, bias, p);
    }
#endif
}
