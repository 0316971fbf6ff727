// Shared by the two scatter kernels: dst[.., ids[.., j, ..], ..] = or += src[.., j, ..] along a dimension, in the order of j. T: the dtype,
// or the type that moves its bits; ADD: whether it is added. If views give the offset for j = 0 or index 0, `step` is the stride.

struct Steps { u64 ids, src, dst; };

// Rounded to the dtype after each sum, as on the CPU.
INLINE T changed(T old, T update) {
#if ADD
    return as<T>(f_add(value(old), value(update)));
#else
    return update;
#endif
}
