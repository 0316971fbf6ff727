// dst[first + i] = the sum of SPLITS partial sums, in their order. T: the dtype; P: the type of the sums.

KERNEL(conv_join)(const P* parts, T* dst, u64 first, u64 len) {
    u64 i = thread_index();
    if (i >= len) return;
    P sum = parts[i];
#pragma unroll
    for (int part = 1; part < SPLITS; part++) sum += parts[part * len + i];
    dst[first + i] = as<T>((compute<T>)sum);
}
