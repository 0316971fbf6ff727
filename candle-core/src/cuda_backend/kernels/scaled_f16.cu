// dst = src * 2^-e as f16, with the least e >= 0 that keeps the greatest element in range; scales = {2^e, 0, 1}. greatest: the result of
// the kernel of that name. LANES: elements that a thread processes at once.

KERNEL(scaled_f16)(const f32* src, const u32* greatest, f16* dst, f32* scales, u64 count) {
    // The range of f16 exceeds 2^15. An infinity or a NaN is preserved by any scale.
    int beyond = (int)(greatest[0] >> 23) - 127 - 14;
    int e = beyond > 0 && greatest[0] < 0x7f800000 ? beyond : 0;
    f32 scale = __uint_as_float((u32)(127 - e) << 23);
    u64 first = thread_index();
    if (first == 0) {
        scales[0] = __uint_as_float((u32)(127 + e) << 23);
        scales[1] = 0.f;
        scales[2] = 1.f;
    }
    u64 i = first * LANES;
    if (i + LANES <= count) {
        Pack<f32, LANES> x = load<LANES>(src + i);
        Pack<f16, LANES> y;
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) y.at[lane] = as<f16>(x.at[lane] * scale);
        store(dst + i, y);
        return;
    }
    for (; i < count; i++) dst[i] = as<f16>(src[i] * scale);
}
