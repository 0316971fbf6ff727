// Joins the parts of each row: every part is scaled from its own maximum to the row's. A thread writes one element. T: the result's dtype;
// V_DIM: elements of a row; BLIND: whether a row may have seen no key.

KERNEL(sdpa_join)(const f32* parts, T* dst, u64 rows, u32 splits) {
    u64 place = thread_index(), row = place / V_DIM;
    if (row >= rows) return;
    u32 i = place % V_DIM;
    const u32 part = V_DIM + 4;
    const f32* first = parts + row * splits * part;
    f32 most = -INFINITE;
    for (u32 split = 0; split < splits; split++) most = Max::of(first[split * part + V_DIM], most);
    f32 sum = 0, total = 0;
    for (u32 split = 0; split < splits; split++) {
        const f32* at = first + split * part;
        f32 scale = expf(at[V_DIM] - (most == -INFINITE ? 0.f : most));
        sum += at[V_DIM + 1] * scale;
        total += at[i] * scale;
    }
    if (BLIND && sum == 0) sum = 1;
    dst[place] = as<T>(total / sum);
}
