// Shared by the kernels of a sort: entries of a key and an index, all different, so that equal keys keep the order of their indexes. Keys
// are elements as unsigned numbers of the same order; NaN comes last, and the two zeros are equal. T: the dtype; ASCENDING: otherwise keys
// are complemented; WIDE: whether keys have 64 bits.
//
// The network is bitonic: Batcher, "Sorting networks and their applications", AFIPS 1968. Rows are padded to `padded` entries, a power of
// two. Runs of `run` entries are sorted after half-runs were, in opposite orders, and entries run/2, run/4 .. 1 apart were compared.

#if WIDE
struct alignas(16) Entry { u64 key, place; };
INLINE bool before(Entry a, Entry b) { return a.key < b.key || (a.key == b.key && a.place < b.place); }
INLINE Entry entry(u64 key, u32 place) { return Entry{key, place}; }
INLINE u32 place_of(Entry entry) { return (u32)entry.place; }
#else
typedef u64 Entry;
INLINE bool before(Entry a, Entry b) { return a < b; }
INLINE Entry entry(u64 key, u32 place) { return key << 32 | place; }
INLINE u32 place_of(Entry entry) { return (u32)entry; }
#endif

const u64 LAST = WIDE ? ~0ull : 0xffffffffull;

INLINE u64 key_of(u8 x) { return x; }
INLINE u64 key_of(u32 x) { return x; }
INLINE u64 key_of(i32 x) { return (u32)x ^ 0x80000000u; }
INLINE u64 key_of(i16 x) { return key_of((i32)x); }
INLINE u64 key_of(i64 x) { return (u64)x ^ (1ull << 63); }
INLINE u64 key_of(f32 x) {
    if (x != x) return 0xffffffffu;
    // Adding 0 makes the negative zero positive.
    u32 bits = __float_as_uint(x + 0.f);
    return bits ^ ((u32)((i32)bits >> 31) | 0x80000000u);
}
INLINE u64 key_of(f64 x) {
    if (x != x) return ~0ull;
    u64 bits = (u64)__double_as_longlong(x + 0.);
    return bits ^ ((u64)((i64)bits >> 63) | (1ull << 63));
}

// Puts two entries into the order of the run that contains the first, at index `i` of its row.
INLINE void order(Entry& low, Entry& high, u64 i, u64 run) {
    bool ascending = (i & run) == 0;
    if (before(high, low) == ascending) {
        Entry kept = low;
        low = high;
        high = kept;
    }
}
