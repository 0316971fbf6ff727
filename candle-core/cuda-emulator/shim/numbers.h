// Numbers: bit games, conversions, and the functions of C++'s <cmath> in both precisions.

#define EMU_BITS(name, To, From) __forceinline__ To name(From v) { return emu_bits<To>(v); }
EMU_BITS(__float_as_int, int, float)
EMU_BITS(__float_as_uint, unsigned, float)
EMU_BITS(__int_as_float, float, int)
EMU_BITS(__uint_as_float, float, unsigned)
EMU_BITS(__double_as_longlong, long long, double)
EMU_BITS(__longlong_as_double, double, long long)
__forceinline__ int __double2hiint(double v) { return (int)(emu_bits<unsigned long long>(v) >> 32); }
__forceinline__ int __double2loint(double v) { return (int)emu_bits<unsigned long long>(v); }
__forceinline__ double __hiloint2double(int hi, int lo) {
    return emu_bits<double>((unsigned long long)(unsigned)hi << 32 | (unsigned)lo);
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(bytes >> ((selector >> 4 * i & 7) * 8) & 0xff) << 8 * i;
    return r;
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c = (int)((unsigned)c + (unsigned)((int)(signed char)(a >> i) * (signed char)(b >> i)));
    return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}
#define EMU_BYTES(name, expression)                                                      \
    inline unsigned name(unsigned a, unsigned b) {                                       \
        unsigned r = 0;                                                                  \
        for (int i = 0; i < 32; i += 8) {                                                \
            int x = (signed char)(a >> i), y = (signed char)(b >> i);                    \
            r |= (unsigned)((expression) & 0xff) << i;                                   \
        }                                                                                \
        return r;                                                                        \
    }
EMU_BYTES(__vadd4, x + y)
EMU_BYTES(__vsub4, x - y)
EMU_BYTES(__vsubss4, x - y > 127 ? 127 : x - y < -128 ? -128 : x - y)
EMU_BYTES(__vcmpeq4, x == y ? 0xff : 0)
EMU_BYTES(__vcmpne4, x != y ? 0xff : 0)

inline void __nanosleep(unsigned) {}
inline void __trap() { emu_fail("__trap()"); }
inline long long clock64() {
    static long long ticks;
    return __atomic_add_fetch(&ticks, 1000, __ATOMIC_RELAXED);
}
inline long long clock() { return clock64(); }
inline size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }

// ---- Conversions: nearest is what the compiler does; out of range saturates and NaN is 0, as on the device ----

template <class To>
inline To emu_saturate(double v, double low, double high, To least, To most) {
    return v != v ? 0 : v <= low ? least : v >= high ? most : (To)v;
}
inline int emu_s32(double v) { return emu_saturate<int>(v, -0x1p31, 0x1p31, -2147483647 - 1, 2147483647); }
inline unsigned emu_u32(double v) { return emu_saturate<unsigned>(v, 0, 0x1p32, 0, ~0u); }
inline long long emu_s64(double v) {
    return emu_saturate<long long>(v, -0x1p63, 0x1p63, -9223372036854775807ll - 1, 9223372036854775807ll);
}
inline unsigned long long emu_u64(double v) { return emu_saturate<unsigned long long>(v, 0, 0x1p64, 0, ~0ull); }
#define EMU_CONVERT(From, name, To, fun)                                                         \
    inline To __##From##2##name##_rn(From v) { return fun(__builtin_rint(v)); }                  \
    inline To __##From##2##name##_rz(From v) { return fun(__builtin_trunc(v)); }                 \
    inline To __##From##2##name##_ru(From v) { return fun(__builtin_ceil(v)); }                  \
    inline To __##From##2##name##_rd(From v) { return fun(__builtin_floor(v)); }
EMU_CONVERT(float, int, int, emu_s32)
EMU_CONVERT(float, uint, unsigned, emu_u32)
EMU_CONVERT(float, ll, long long, emu_s64)
EMU_CONVERT(float, ull, unsigned long long, emu_u64)
EMU_CONVERT(double, int, int, emu_s32)
EMU_CONVERT(double, uint, unsigned, emu_u32)
EMU_CONVERT(double, ll, long long, emu_s64)
EMU_CONVERT(double, ull, unsigned long long, emu_u64)
inline float __int2float_rn(int v) { return (float)v; }
inline float __uint2float_rn(unsigned v) { return (float)v; }
inline float __ll2float_rn(long long v) { return (float)v; }
inline float __ull2float_rn(unsigned long long v) { return (float)v; }
inline double __int2double_rn(int v) { return v; }
inline double __uint2double_rn(unsigned v) { return v; }
inline double __ll2double_rn(long long v) { return (double)v; }
inline double __ull2double_rn(unsigned long long v) { return (double)v; }
inline float __double2float_rn(double v) { return (float)v; }
inline float __double2float_rz(double v) {
    float near = (float)v;
    if (__builtin_fabs((double)near) > __builtin_fabs(v)) near = emu_bits<float>(emu_bits<unsigned>(near) - 1);
    return near;
}

// ---- Arithmetic by name; the fast forms are as exact as the slow ones here ----

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
// Not to be joined with an addition.
inline float __fmul_rn(float a, float b) {
    float product = a * b;
    asm volatile("" : "+m"(product));
    return product;
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frsqrt_rn(float a) { return 1 / __builtin_sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) {
    double product = a * b;
    asm volatile("" : "+m"(product));
    return product;
}
inline float __expf(float a) { return __builtin_expf(a); }
inline float __exp10f(float a) { return __builtin_powf(10, a); }
inline float __logf(float a) { return __builtin_logf(a); }
inline float __log2f(float a) { return __builtin_log2f(a); }
inline float __log10f(float a) { return __builtin_log10f(a); }
inline float __sinf(float a) { return __builtin_sinf(a); }
inline float __cosf(float a) { return __builtin_cosf(a); }
inline float __tanf(float a) { return __builtin_tanf(a); }
inline float __powf(float a, float b) { return __builtin_powf(a, b); }
inline float __saturatef(float a) { return a >= 0 ? a < 1 ? a : 1 : 0; }
inline void __sincosf(float a, float* s, float* c) { *s = __builtin_sinf(a), *c = __builtin_cosf(a); }
inline void sincosf(float a, float* s, float* c) { __sincosf(a, s, c); }
inline void sincos(double a, double* s, double* c) { *s = __builtin_sin(a), *c = __builtin_cos(a); }
inline float rsqrtf(float a) { return 1 / __builtin_sqrtf(a); }
inline double rsqrt(double a) { return 1 / __builtin_sqrt(a); }
inline float rsqrt(float a) { return rsqrtf(a); }
inline float sinpif(float a) { return (float)__builtin_sin(a * 3.14159265358979323846); }
inline float cospif(float a) { return (float)__builtin_cos(a * 3.14159265358979323846); }
inline double normcdf(double a) { return 0.5 * __builtin_erfc(-a * 0.70710678118654752440); }
inline float normcdff(float a) { return (float)normcdf(a); }
inline double exp10(double a) { return __builtin_pow(10, a); }
inline float exp10f(float a) { return __builtin_powf(10, a); }

#define EMU_UNARY(name)                                              \
    extern "C" double name(double);                                  \
    extern "C" float name##f(float);                                 \
    inline float name(float v) { return __builtin_##name##f(v); }
#define EMU_BINARY(name)                                             \
    extern "C" double name(double, double);                          \
    extern "C" float name##f(float, float);                          \
    inline float name(float a, float b) { return __builtin_##name##f(a, b); }
EMU_UNARY(exp) EMU_UNARY(exp2) EMU_UNARY(expm1) EMU_UNARY(log) EMU_UNARY(log2) EMU_UNARY(log10) EMU_UNARY(log1p)
EMU_UNARY(sin) EMU_UNARY(cos) EMU_UNARY(tan) EMU_UNARY(asin) EMU_UNARY(acos) EMU_UNARY(atan)
EMU_UNARY(sinh) EMU_UNARY(cosh) EMU_UNARY(tanh) EMU_UNARY(asinh) EMU_UNARY(acosh) EMU_UNARY(atanh)
EMU_UNARY(sqrt) EMU_UNARY(cbrt) EMU_UNARY(erf) EMU_UNARY(erfc) EMU_UNARY(tgamma) EMU_UNARY(lgamma)
EMU_UNARY(floor) EMU_UNARY(ceil) EMU_UNARY(trunc) EMU_UNARY(round) EMU_UNARY(rint) EMU_UNARY(nearbyint) EMU_UNARY(fabs)
EMU_UNARY(logb)
EMU_BINARY(pow) EMU_BINARY(fmod) EMU_BINARY(fmin) EMU_BINARY(fmax) EMU_BINARY(atan2) EMU_BINARY(hypot)
EMU_BINARY(copysign) EMU_BINARY(fdim) EMU_BINARY(remainder) EMU_BINARY(nextafter)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
extern "C" double ldexp(double, int);
extern "C" float ldexpf(float, int);
inline float ldexp(float v, int e) { return __builtin_ldexpf(v, e); }
extern "C" double frexp(double, int*);
extern "C" float frexpf(float, int*);
inline float frexp(float v, int* e) { return __builtin_frexpf(v, e); }
extern "C" long long llrint(double);
extern "C" long long llrintf(float);
inline int __float_as_sign(float v) { return emu_bits<unsigned>(v) >> 31; }
inline bool isnan(float v) { return v != v; }
inline bool isnan(double v) { return v != v; }
inline bool isinf(float v) { return __builtin_isinf(v); }
inline bool isinf(double v) { return __builtin_isinf(v); }
inline bool isfinite(float v) { return __builtin_isfinite(v); }
inline bool isfinite(double v) { return __builtin_isfinite(v); }
inline bool signbit(float v) { return __builtin_signbit(v); }
inline bool signbit(double v) { return __builtin_signbit(v); }

extern "C" int abs(int);
inline long abs(long v) { return v < 0 ? -v : v; }
inline long long abs(long long v) { return v < 0 ? -v : v; }
inline float abs(float v) { return __builtin_fabsf(v); }
inline double abs(double v) { return __builtin_fabs(v); }

// Of a NaN and a number, the number.
template <bool B, class T> struct EmuIf {};
template <class T> struct EmuIf<true, T> { typedef T type; };
template <class A, class B> struct EmuCommon { typedef decltype(true ? A() : B()) type; };
template <class T> constexpr bool emu_floating = false;
template <> constexpr bool emu_floating<float> = true;
template <> constexpr bool emu_floating<double> = true;
template <class A, class B>
inline typename EmuCommon<A, B>::type min(A a, B b) {
    typedef typename EmuCommon<A, B>::type T;
    T x = a, y = b;
    if constexpr (emu_floating<T>) return x != x ? y : y != y ? x : x < y ? x : y;
    else return x < y ? x : y;
}
template <class A, class B>
inline typename EmuCommon<A, B>::type max(A a, B b) {
    typedef typename EmuCommon<A, B>::type T;
    T x = a, y = b;
    if constexpr (emu_floating<T>) return x != x ? y : y != y ? x : x > y ? x : y;
    else return x > y ? x : y;
}
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
