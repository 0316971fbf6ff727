// Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Four words of random bits for an
// index in the sequence of a seed.

struct Words { u32 x, y, z, w; };

INLINE Words philox(u64 place, u64 seed) {
    Words counter{(u32)place, (u32)(place >> 32), 0, 0};
    u32 low_key = (u32)seed, high_key = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 a = 0xd2511f53ull * counter.x, b = 0xcd9e8d57ull * counter.z;
        counter = Words{(u32)(b >> 32) ^ counter.y ^ low_key, (u32)b, (u32)(a >> 32) ^ counter.w ^ high_key, (u32)a};
        low_key += 0x9e3779b9u;
        high_key += 0xbb67ae85u;
    }
    return counter;
}
