// dst[i] = cond[i] != 0 ? on_true[i] : on_false[i]. COND: the condition's dtype; BITS: the elements' bits; RANK, INDEX: the layouts.

KERNEL(where)(const COND* cond, const BITS* on_true, const BITS* on_false, BITS* dst, Views<3> v) {
    INDEX i = (INDEX)thread_index();
    if (i >= v.len) return;
    INDEX at[3];
    places<RANK>(v, i, at);
    dst[i] = cond[at[0]] != 0 ? on_true[at[1]] : on_false[at[2]];
}
