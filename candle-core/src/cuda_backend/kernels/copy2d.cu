// Copies rows into another storage and preserves the elements around them. BITS: the type that is moved; RANK, INDEX: the layouts, the
// first of src, the second of dst.

KERNEL(copy2d)(const BITS* src, BITS* dst, Views<2> v) {
    INDEX i = (INDEX)thread_index();
    if (i >= v.len) return;
    INDEX at[2];
    places<RANK>(v, i, at);
    dst[at[1]] = src[at[0]];
}
