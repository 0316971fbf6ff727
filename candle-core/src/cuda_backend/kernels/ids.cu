// Indexes as data. ID: their dtype. Its greatest number is skipped; indexes out of range are reported.

const u64 NOTHING = ~0ull;

// The index at `at`, below `size`, or NOTHING.
INLINE u64 id_at(const ID* ids, u64 at, u64 size, Fault* fault, u32 code) {
    ID id = ids[at];
    if (id == (ID)Limits<ID>::high) return NOTHING;
    u64 place = (u64)id;
    if (place < size) return place;
    report(fault, code, place, size);
    return NOTHING;
}
