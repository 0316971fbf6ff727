// What reductions by row and by column share. T: the dtype read; DST: the dtype written; SUM: a sum, otherwise WINS (f_gt or f_lt)
// says which of two elements stays; PLACES: whether it is asked where an element is; FOUND: whether elements are earlier results,
// whose places are in `found`; PARTIAL: whether this is the first of two passes, which writes values and places.
//
// For the least and the greatest everyone starts from the row's first element. So there is no need for an identity, and a NaN
// wins exactly if it comes first, as where elements are compared in order.

// What a row is reduced in: sums of integers wrap, small integers travel as large ones.
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

// Of an element whose index in the row is `j`.
INLINE Best element(T x, const u32* found, u64 at, u64 j) {
    u32 place = 0;
    if (PLACES) place = FOUND ? found[at] : (u32)j;
    return Best{(A)value(x), place};
}

// Of the other lanes of a warp, `step` apart.
INLINE Best across(Best x, int step) {
    Best other{__shfl_xor_sync(ALL_LANES, x.value, step), 0};
    if (PLACES) other.place = __shfl_xor_sync(ALL_LANES, x.place, step);
    return combine(x, other);
}

INLINE void finish(Best best, DST* dst, u32* dst_places, u64 at) {
    dst[at] = PLACES && !PARTIAL ? as<DST>(best.place) : as<DST>(best.value);
    if (PLACES && PARTIAL) dst_places[at] = best.place;
}
