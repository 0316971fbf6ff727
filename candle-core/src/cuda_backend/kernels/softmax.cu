// dst = exp(x - max) / sum(exp(x - max)) over each row of x. T: the dtype; RANK: the rows' starts; LANES: elements that are loaded at once;
// KEPT: words of its row that a thread keeps in registers, 0 if they are read twice; WARP_ROWS: rows of a block, one per warp, or 0 for one
// row per block. Maximum and sum of long rows are computed in one pass (Milakov and Gimelshein, arXiv 1805.02867).

typedef compute<T> A;

template <class V> struct Least;
template <> struct Least<f32> { static constexpr f32 value = -3.402823466e38f; };
template <> struct Least<f64> { static constexpr f64 value = -1.7976931348623157e308; };

template <class Join> INLINE A join_row(A x, A* scratch, A none) {
#if WARP_ROWS
    return warp_join<Join>(x);
#else
    return block_join<Join>(x, scratch, none);
#endif
}

struct Word { A at[LANES]; };

INLINE Word word_at(const T* row, u64 word, u64 step) {
    Word v;
    if constexpr (LANES > 1) {
        Pack<T, LANES> x = load<LANES>(row + word * LANES);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) v.at[lane] = value(x.at[lane]);
    } else {
        v.at[0] = value(row[word * step]);
    }
    return v;
}

INLINE A most_of(const Word& v, A most) {
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) most = Max::of(v.at[lane], most);
    return most;
}

INLINE void put(T* row, u64 word, const Word& exps, A scale) {
    Pack<T, LANES> y;
#pragma unroll
    for (int lane = 0; lane < LANES; lane++) y.at[lane] = as<T>(exps.at[lane] * scale);
    store(row + word * LANES, y);
}

KERNEL(softmax)(const T* x, T* dst, Views<1> starts, u64 rows, u64 len, u64 step) {
    __shared__ A scratch[32];
#if WARP_ROWS
    u64 index = (u64)blockIdx.x * WARP_ROWS + threadIdx.x / 32;
    int local = threadIdx.x % 32, threads = 32;
#else
    u64 index = blockIdx.x;
    int local = threadIdx.x, threads = blockDim.x;
#endif
    if (index >= rows) return;
    u64 at[1];
    places<RANK>(starts, index, at);
    x += at[0];
    dst += index * len;
    u64 words = len / LANES;
    A most = Least<A>::value, sum = 0;
#if KEPT
    Word kept[KEPT];
#pragma unroll
    for (int turn = 0; turn < KEPT; turn++) {
        u64 word = local + turn * threads;
        if (word < words) {
            kept[turn] = word_at(x, word, step);
            most = most_of(kept[turn], most);
        }
    }
    most = join_row<Max>(most, scratch, Least<A>::value);
#pragma unroll
    for (int turn = 0; turn < KEPT; turn++) {
        if (local + turn * threads < words) {
#pragma unroll
            for (int lane = 0; lane < LANES; lane++) sum += kept[turn].at[lane] = exp_of(kept[turn].at[lane] - most);
        }
    }
    A scale = 1 / join_row<Add>(sum, scratch, 0);
#pragma unroll
    for (int turn = 0; turn < KEPT; turn++) {
        u64 word = local + turn * threads;
        if (word < words) put(dst, word, kept[turn], scale);
    }
#else
    for (u64 word = local; word < words; word += threads) {
        Word v = word_at(x, word, step);
        A higher = most_of(v, most);
        sum *= exp_of(most - higher);
        most = higher;
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) sum += exp_of(v.at[lane] - most);
    }
    A own = most;
    most = join_row<Max>(most, scratch, Least<A>::value);
    A scale = 1 / join_row<Add>(sum * exp_of(own - most), scratch, 0);
    for (u64 word = local; word < words; word += threads) {
        Word v = word_at(x, word, step);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) v.at[lane] = exp_of(v.at[lane] - most);
        put(dst, word, v, scale);
    }
#endif
}
