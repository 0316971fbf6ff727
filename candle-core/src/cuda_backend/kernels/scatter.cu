// What the two ways to scatter share: dst[.., ids[.., j, ..], ..] = or += src[.., j, ..] along a dimension, in the order of j. T: the
// dtype, or what moves its bits; ADD: whether it is added. Where views give the place for j = 0 or index 0, `step` leads to the next.

struct Steps { u64 ids, src, dst; };

// Rounded to the dtype after each sum, as on the CPU.
INLINE T changed(T old, T update) {
#if ADD
    return as<T>(f_add(value(old), value(update)));
#else
    return update;
#endif
}
