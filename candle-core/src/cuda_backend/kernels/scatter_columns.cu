// A thread processes the updates of one position of the other dimensions in sequence: for few updates, or many positions. Operands of the
// views: ids, src, dst; RANK, INDEX: their layouts.

KERNEL(scatter_columns)(const ID* __restrict__ ids, const T* __restrict__ src, T* __restrict__ dst, Views<3> v, Steps step, u64 count, u64 size,
                        Fault* fault, u32 code) {
    INDEX i = (INDEX)thread_index();
    if (i >= v.len) return;
    INDEX at[3];
    places<RANK>(v, i, at);
    for (u64 j = 0; j < count; j++) {
        u64 id = id_at(ids, at[0] + j * step.ids, size, fault, code);
        if (id == NOTHING) continue;
        T* place = dst + at[2] + id * step.dst;
        *place = changed(*place, src[at[1] + j * step.src]);
    }
}
