// dst[i] = F(src[i]), converted to DST. SRC, DST: the dtypes; PARAMETERS: whether F has the parameters a and b; RANK, INDEX: the layout;
// LANES: elements that a thread processes at once, 1 unless both sides are aligned and in runs of LANES; IS_ONE: whether such a run is one
// element.

INLINE DST element(SRC x, compute<SRC> a, compute<SRC> b) {
#if PARAMETERS
    return as<DST>(F(value(x), a, b));
#else
    return as<DST>(F(value(x)));
#endif
}

KERNEL(map)(const SRC* src, DST* dst, Views<1> v, u64 dst_offset, compute<SRC> a, compute<SRC> b) {
    INDEX i = (INDEX)thread_index() * LANES;
    if (i >= v.len) return;
    INDEX at[1];
    places<RANK>(v, i, at);
    dst += dst_offset;
    if (LANES > 1 && i + LANES <= v.len) {
        Pack<SRC, LANES> x = run<LANES, IS_ONE>(src + at[0]);
        Pack<DST, LANES> y;
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) y.at[lane] = element(x.at[lane], a, b);
        store(dst + i, y);
        return;
    }
    for (int lane = 0; lane < LANES && i + lane < v.len; lane++) dst[i + lane] = element(src[at[0] + lane], a, b);
}
