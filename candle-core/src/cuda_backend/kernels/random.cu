// dst[i] = random number first + i of the seed's sequence, by philox.cu: each number depends only on its index in the sequence, so grids
// and cards do not matter. T: the dtype; NORMAL: normal numbers with mean a and standard deviation b, otherwise uniform ones within `width`
// of a, at most b, which is a number of the dtype. f64 uses 53 bits of two words, the other dtypes 24 of one.

typedef compute<T> F;

// The distance between the numbers that `unit` returns.
INLINE F least(f32) { return 5.9604644775390625e-8f; }
INLINE F least(f64) { return (F)1.1102230246251565e-16; }

// A number in [0, 1).
INLINE F unit(u32 high, u32 low) {
    if (sizeof(F) == 8) return (F)((high >> 5) * 67108864.0 + (low >> 6)) * least(F());
    return (F)(high >> 8) * least(F());
}

INLINE F number(Words bits, F a, F b, F width) {
    if (NORMAL) {
        // Box-Muller; the logarithm's argument is in (0, 1].
        F radius = f_sqrt((F)-2 * f_log(unit(bits.x, bits.z) + least(F())));
        return a + b * radius * f_cos((F)6.283185307179586 * (unit(bits.y, bits.w) - (F)0.5));
    }
    return f_minimum(a + unit(bits.x, bits.z) * width, b);
}

KERNEL(random)(T* dst, u64 len, u64 seed, u64 first, F a, F b, F width) {
    u64 i = thread_index();
    if (i >= len) return;
    dst[i] = as<T>(number(philox(first + i, seed), a, b, width));
}
