// dst[m][n] = the sum of SPLITS partial sums in their order, plus bias[n] and residual[m][n]. DST: the dtype; BIAS, RESIDUAL: whether there
// are such.

KERNEL(ggml_join)(const f32* parts, DST* dst, u64 len, u64 n, const DST* bias, const DST* residual, u64 residual_row) {
    u64 i = thread_index();
    if (i >= len) return;
    f32 sum = parts[i];
#pragma unroll
    for (int part = 1; part < SPLITS; part++) sum += parts[part * len + i];
    if (BIAS) sum += value(bias[i % n]);
    if (RESIDUAL) sum += value(residual[i / n * residual_row + i % n]);
    dst[i] = as<DST>(sum);
}
