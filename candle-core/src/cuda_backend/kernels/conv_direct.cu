// A convolution in which one thread reads every tap of an element of the result: for few channels, and for steps of any size. T: the dtype;
// TRANSPOSED: whether it is transposed, in the form that gathers; C_IN, K_H, K_W: channels of a group and sizes of the kernel, or 0 to read
// them from the parameters; ROWS: rows of the result per thread; INDEX: a signed integer for offsets.

template <class A> struct Sum { typedef A type; };
template <> struct Sum<i16> { typedef u32 type; };
template <> struct Sum<i32> { typedef u32 type; };
template <> struct Sum<i64> { typedef u64 type; };
template <> struct Sum<u8> { typedef u32 type; };

struct Axis {
    i64 input, kernel, output, padding, stride, dilation;
};

struct Conv {
    u64 offset, batch, channel, row, column;
    // Offset and strides of the kernel: over the result's channels within a group, over groups, and so on.
    u64 k_offset, k_out, k_group, k_channel, k_row, k_column;
    // Channels of one group.
    u64 c_in, c_out;
    u64 groups, planes;
    Axis y, x;
};

// The index in the input that a tap reads for an element of the result, or a number out of range.
INLINE INDEX meet(const Axis& axis, INDEX out, INDEX tap) {
    INDEX at;
    if (TRANSPOSED) {
        at = out + (INDEX)axis.padding - tap * (INDEX)axis.dilation;
        INDEX stride = (INDEX)axis.stride;
        if (at < 0) return -1;
        INDEX place = at / stride;
        if (place * stride != at) return -1;
        at = place;
    } else {
        at = out * (INDEX)axis.stride + tap * (INDEX)axis.dilation - (INDEX)axis.padding;
    }
    return at < (INDEX)axis.input ? at : -1;
}

KERNEL(conv_direct)(const T* src, const T* kernel, T* dst, Conv p) {
    typedef typename Sum<compute<T>>::type A;
    INDEX o_w = (INDEX)p.x.output, o_h = (INDEX)p.y.output;
    INDEX i = (INDEX)thread_index();
    INDEX strip = i / o_w, ox = i - strip * o_w;
    if (strip * ROWS >= o_h) return;
    INDEX c_in = C_IN ? C_IN : (INDEX)p.c_in;
    INDEX k_h = K_H ? K_H : (INDEX)p.y.kernel, k_w = K_W ? K_W : (INDEX)p.x.kernel;
    for (u64 plane = blockIdx.y; plane < p.planes; plane += gridDim.y) {
        u64 out = plane % (p.groups * p.c_out), batch = plane / (p.groups * p.c_out);
        u64 group = out / p.c_out;
        const T* image = src + p.offset + batch * p.batch + group * c_in * p.channel;
        const T* taps = kernel + p.k_offset + group * p.k_group + (out - group * p.c_out) * p.k_out;
        T* to = dst + plane * (u64)(o_h * o_w);
        A sums[ROWS] = {};
        for (INDEX c = 0; c < c_in; c++) {
            const T* weights = taps + c * (INDEX)p.k_channel;
            const T* values = image + c * (INDEX)p.channel;
#pragma unroll (K_H ? K_H : 1)
            for (INDEX ky = 0; ky < k_h; ky++) {
#pragma unroll (K_W ? K_W : 1)
                for (INDEX kx = 0; kx < k_w; kx++) {
                    INDEX x = meet(p.x, ox, kx);
                    if (x < 0) continue;
                    A weight = (A)value(weights[ky * (INDEX)p.k_row + kx * (INDEX)p.k_column]);
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        INDEX y = meet(p.y, strip * ROWS + r, ky);
                        if (y < 0) continue;
                        sums[r] += (A)value(values[y * (INDEX)p.row + x * (INDEX)p.column]) * weight;
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            INDEX oy = strip * ROWS + r;
            if (oy < o_h) to[oy * o_w + ox] = as<T>((compute<T>)sums[r]);
        }
    }
}
