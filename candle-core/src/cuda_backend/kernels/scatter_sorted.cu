// A thread processes all updates of one element of dst: `order` has the updates of each position of the other dimensions sorted by their
// indexes, equal ones in their order. The thread of the first of equal indexes adds all of them, or that of the last writes. Operands of
// the views: order, ids, src, dst, the index in the order; RANK, INDEX: their layouts.

KERNEL(scatter_sorted)(const u32* __restrict__ order, const ID* __restrict__ ids, const T* __restrict__ src, T* __restrict__ dst, Views<5> v,
                       Steps step, u64 count, u64 size, Fault* fault, u32 code) {
    INDEX i = (INDEX)thread_index();
    if (i >= v.len) return;
    INDEX at[5];
    places<RANK>(v, i, at);
    order += at[0];
    ids += at[1];
    src += at[2];
    dst += at[3];
    u64 left = count - at[4];
    u64 id = id_at(ids, order[0] * step.ids, size, fault, code);
    if (id == NOTHING) return;
    T* place = dst + id * step.dst;
#if ADD
    if (at[4] > 0 && (u64)ids[order[-1] * step.ids] == id) return;
    T sum = *place;
    for (u64 k = 0; k < left; k++) {
        u64 j = order[k];
        if ((u64)ids[j * step.ids] != id) break;
        sum = changed(sum, src[j * step.src]);
    }
    *place = sum;
#else
    if (left > 1 && (u64)ids[order[1] * step.ids] == id) return;
    *place = src[order[0] * step.src];
#endif
}
