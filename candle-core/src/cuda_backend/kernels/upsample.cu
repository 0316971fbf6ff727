// dst[plane, oy, ox] from the elements of src nearest to (oy, ox): one of them, or four weighted by distance (MIX). A thread computes the
// offset in the image once, and reuses it for many planes. T: the dtype, or its bits for nearest neighbours; INDEX: the layout.
//
// Offsets equal those of `resample.rs` to the last bit: in f64, with a product rounded before anything is added to it. Integers are mixed
// in f64 and truncated.

struct Axis {
    // Number of elements in the source and in the target.
    u64 size, target;
    // Source elements per target element.
    f64 step;
    // Added before and subtracted after the multiplication: 0.5, or 0.
    f64 shift;
};

struct Image {
    u64 offset, batch, channel, row, column;
    u64 channels, planes;
    Axis y, x;
};

// The type in which integers are mixed.
template <class A> struct Weight { typedef f64 type; };
template <> struct Weight<f32> { typedef f32 type; };

INLINE f32 product(f32 a, f32 b) { return __fmul_rn(a, b); }
INLINE f64 product(f64 a, f64 b) { return __dmul_rn(a, b); }

struct Place {
    u64 first, second;
    f64 weight;
};

INLINE Place place(const Axis& axis, u64 i) {
    f64 at = product((f64)i + axis.shift, axis.step) - axis.shift;
    at = at > 0 ? at : 0;
    u64 last = axis.size - 1, first = (u64)at;
    first = first < last ? first : last;
    f64 weight = at - (f64)first;
    return {first, first < last ? first + 1 : last, weight < 1 ? weight : 1};
}

KERNEL(upsample)(const T* src, T* dst, Image p) {
    INDEX o_w = (INDEX)p.x.target, area = (INDEX)p.y.target * o_w;
    INDEX i = (INDEX)thread_index();
    if (i >= area) return;
    Place y = place(p.y, i / o_w), x = place(p.x, i % o_w);
    src += p.offset;
    INDEX upper = (INDEX)y.first * (INDEX)p.row, left = (INDEX)x.first * (INDEX)p.column;
#if MIX
    INDEX lower = (INDEX)y.second * (INDEX)p.row, right = (INDEX)x.second * (INDEX)p.column;
#endif
    for (INDEX plane = blockIdx.y; plane < p.planes; plane += gridDim.y) {
        INDEX batch = plane / (INDEX)p.channels, channel = plane - batch * (INDEX)p.channels;
        const T* image = src + batch * (INDEX)p.batch + channel * (INDEX)p.channel;
#if MIX
        typedef typename Weight<compute<T>>::type W;
        W wy = (W)y.weight, wx = (W)x.weight;
        W top = product((W)value(image[upper + left]), 1 - wx) + product((W)value(image[upper + right]), wx);
        W bottom = product((W)value(image[lower + left]), 1 - wx) + product((W)value(image[lower + right]), wx);
        dst[plane * area + i] = as<T>(product(top, 1 - wy) + product(bottom, wy));
#else
        dst[plane * area + i] = image[upper + left];
#endif
    }
}
