// Sets every element of a layout. BITS: an element's bits; RANK, INDEX: the layout.

KERNEL(fill)(BITS* dst, Views<1> v, u64 bits) {
    INDEX i = (INDEX)thread_index();
    if (i >= v.len) return;
    INDEX at[1];
    places<RANK>(v, i, at);
    dst[at[0]] = (BITS)bits;
}
