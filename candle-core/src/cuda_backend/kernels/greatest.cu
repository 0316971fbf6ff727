// greatest[0] = the bits of the greatest magnitude in src; bits have the order of the magnitudes. It has to be initialised to 0. LANES:
// elements that a thread processes at once.

KERNEL(greatest)(const f32* src, u32* greatest, u64 count) {
    __shared__ u32 scratch[32];
    u64 i = thread_index() * LANES;
    u32 most = 0;
    if (i + LANES <= count) {
        Pack<f32, LANES> x = load<LANES>(src + i);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) most = Max::of(most, __float_as_uint(x.at[lane]) & 0x7fffffff);
    } else {
        for (; i < count; i++) most = Max::of(most, __float_as_uint(src[i]) & 0x7fffffff);
    }
    most = block_join<Max>(most, scratch, 0u);
    if (threadIdx.x == 0 && most > 0) atomicMax(greatest, most);
}
