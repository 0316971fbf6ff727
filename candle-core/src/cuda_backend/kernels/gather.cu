// dst[i] = the element of src at index ids[i] along a dimension, 0 for a skipped index. The first operand of the views is `ids`; the second
// gives the offset for index 0, and `step` is the stride. BITS: the type that is moved; RANK, INDEX: the layouts.

KERNEL(gather)(const ID* ids, const BITS* src, BITS* dst, Views<2> v, u64 step, u64 size, Fault* fault, u32 code) {
    INDEX i = (INDEX)thread_index();
    if (i >= v.len) return;
    INDEX at[2];
    places<RANK>(v, i, at);
    u64 id = id_at(ids, at[0], size, fault, code);
    dst[i] = id == NOTHING ? BITS{} : src[at[1] + id * step];
}
