// dst[i] = F(lhs[i], rhs[i]). SRC, DST: the dtypes; RANK, INDEX: the layouts; LANES: elements that a thread processes at once, 1 unless all
// sides are aligned and in runs of LANES; LHS_IS_ONE, RHS_IS_ONE: whether such a run is one element; DIVIDES: for integers the code with
// which zero divisors are reported, else 0.

INLINE DST element(SRC lhs, SRC rhs, Fault* fault) {
    compute<SRC> a = value(lhs), b = value(rhs);
    if (DIVIDES && b == 0) report(fault, DIVIDES, 0, 0);
    return as<DST>(F(a, b));
}

KERNEL(zip)(const SRC* lhs, const SRC* rhs, DST* dst, Views<2> v, Fault* fault) {
    INDEX i = (INDEX)thread_index() * LANES;
    if (i >= v.len) return;
    INDEX at[2];
    places<RANK>(v, i, at);
    if (LANES > 1 && i + LANES <= v.len) {
        Pack<SRC, LANES> a = run<LANES, LHS_IS_ONE>(lhs + at[0]), b = run<LANES, RHS_IS_ONE>(rhs + at[1]);
        Pack<DST, LANES> y;
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) y.at[lane] = element(a.at[lane], b.at[lane], fault);
        store(dst + i, y);
        return;
    }
    for (int lane = 0; lane < LANES && i + lane < v.len; lane++) {
        dst[i + lane] = element(lhs[at[0] + lane], rhs[at[1] + lane], fault);
    }
}
