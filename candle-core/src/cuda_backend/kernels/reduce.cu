// Shared by reductions by row and by column. T: the dtype read; DST: the dtype written; SUM: whether it is a sum, otherwise WINS (f_gt or
// f_lt) selects one of two elements; PLACES: whether the index of an element is needed; FOUND: whether elements are earlier results, with
// their indexes in `found`; PARTIAL: whether this is the first of two passes, which writes values and indexes.
//
// Minima and maxima start from the row's first element. So an identity is not needed, and a NaN wins exactly if it comes first, as in a
// sequential comparison.

// The accumulator type of a row: sums of integers wrap, small integers are passed as large ones.
template <class A, bool IS_SUM> struct Reduced { typedef A type; };
template <> struct Reduced<u8, true> { typedef u32 type; };
template <> struct Reduced<u8, false> { typedef u32 type; };
template <> struct Reduced<i16, true> { typedef u32 type; };
template <> struct Reduced<i16, false> { typedef i32 type; };
template <> struct Reduced<i32, true> { typedef u32 type; };
template <> struct Reduced<i64, true> { typedef u64 type; };
typedef typename Reduced<compute<T>, SUM>::type A;

struct Best {
    A value;
    u32 place;
};

INLINE Best combine(Best a, Best b) {
    if (SUM) return Best{a.value + b.value, 0};
    bool wins = WINS(b.value, a.value) || (PLACES && b.place < a.place && b.value == a.value);
    return wins ? b : a;
}

// An element with index `j` in the row.
INLINE Best element(T x, const u32* found, u64 at, u64 j) {
    u32 place = 0;
    if (PLACES) place = FOUND ? found[at] : (u32)j;
    return Best{(A)value(x), place};
}

// The value of another lane of the warp, `step` apart.
INLINE Best across(Best x, int step) {
    Best other{__shfl_xor_sync(ALL_LANES, x.value, step), 0};
    if (PLACES) other.place = __shfl_xor_sync(ALL_LANES, x.place, step);
    return combine(x, other);
}

INLINE void finish(Best best, DST* dst, u32* dst_places, u64 at) {
    dst[at] = PLACES && !PARTIAL ? as<DST>(best.place) : as<DST>(best.value);
    if (PLACES && PARTIAL) dst_places[at] = best.place;
}
