// dst[b, c, oy, ox] = the mean (MEAN) or the greatest element of the window at (oy, ox) * stride; a NaN counts as the greatest. T: the
// dtype; TEAM: threads that share a window, 1 or 32; K_H, K_W: sizes of the window, or 0 to read them from the parameters; INDEX: the
// layout. Integers are summed in 64 bits, and the mean is rounded towards 0.

struct Pool {
    u64 offset, batch, channel, row, column;
    u64 channels, k_h, k_w, stride_h, stride_w, o_h, o_w, len;
};

template <class A> struct Sum { typedef i64 type; };
template <> struct Sum<f32> { typedef f32 type; };
template <> struct Sum<f64> { typedef f64 type; };

struct Greatest {
    template <class A> INLINE static A of(A a, A b) { return b > a || b != b ? b : a; }
};

// Sums of integers wrap.
INLINE i64 add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
INLINE f32 add(f32 a, f32 b) { return a + b; }
INLINE f64 add(f64 a, f64 b) { return a + b; }
struct Plus {
    template <class A> INLINE static A of(A a, A b) { return add(a, b); }
};

KERNEL(pool)(const T* src, T* dst, Pool p) {
    typedef compute<T> C;
    typedef typename Sum<C>::type S;
    INDEX i = (INDEX)(thread_index() / TEAM), member = threadIdx.x % TEAM;
    // All threads of a team continue, or none.
    if (i >= p.len) return;
    INDEX rest = i / (INDEX)p.o_w, ox = i - rest * (INDEX)p.o_w;
    INDEX plane = rest / (INDEX)p.o_h, oy = rest - plane * (INDEX)p.o_h;
    INDEX batch = plane / (INDEX)p.channels, channel = plane - batch * (INDEX)p.channels;
    src += (INDEX)p.offset + batch * (INDEX)p.batch + channel * (INDEX)p.channel;
    src += oy * (INDEX)p.stride_h * (INDEX)p.row + ox * (INDEX)p.stride_w * (INDEX)p.column;
    INDEX k_h = K_H ? K_H : (INDEX)p.k_h, k_w = K_W ? K_W : (INDEX)p.k_w;
    S sum = 0;
    C greatest = value(src[0]);
    if (TEAM == 1) {
        for (INDEX y = 0; y < k_h; y++) {
            for (INDEX x = 0; x < k_w; x++) {
                C v = value(src[y * (INDEX)p.row + x * (INDEX)p.column]);
                if (MEAN) sum = add(sum, (S)v);
                else greatest = Greatest::of(greatest, v);
            }
        }
    } else {
        for (INDEX at = member; at < k_h * k_w; at += TEAM) {
            INDEX y = at / k_w, x = at - y * k_w;
            C v = value(src[y * (INDEX)p.row + x * (INDEX)p.column]);
            if (MEAN) sum = add(sum, (S)v);
            else greatest = Greatest::of(greatest, v);
        }
        if (MEAN) sum = warp_join<Plus>(sum);
        else greatest = (C)warp_join<Greatest>((S)greatest);
    }
    if (member == 0) dst[i] = MEAN ? as<T>((C)(sum / (S)(k_h * k_w))) : as<T>(greatest);
}
