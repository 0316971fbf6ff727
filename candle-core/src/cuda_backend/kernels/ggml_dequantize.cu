// dst[i] = element i of blocks, or of rows that ids name. FORMAT: of ggml.cu; DST: the result's dtype; BY_ID: whether there are ids, of
// dtype IDS and with a layout of RANK; `row` elements each, of `rows`. FAULT: the code for an id that is out of range.

KERNEL(ggml_dequantize)(const u8* blocks, DST* dst, u64 len, const IDS* ids, Views<1> v, u64 row, u64 rows, Fault* fault) {
    typedef Decode<FORMAT> D;
    u64 i = thread_index(), first = i * D::count;
    if (first >= len) return;
    u64 from = i;
    bool inside = true;
#if BY_ID
    u64 at[1];
    places<RANK>(v, first / row, at);
    u64 id = (u64)(i64)ids[at[0]];
    inside = id < rows;
    if (inside) {
        from = id * (row / D::count) + i % (row / D::count);
    } else {
        report(fault, FAULT, id, rows);
    }
#endif
    f32 x[D::count] = {};
    if (inside) D::at(blocks, from, x);
    Pack<DST, D::count> y;
#pragma unroll
    for (int j = 0; j < D::count; j++) y.at[j] = as<DST>(x[j]);
    if (first + D::count <= len) {
        store(dst + first, y);
        return;
    }
    for (int j = 0; first + j < len; j++) dst[first + j] = y.at[j];
}
