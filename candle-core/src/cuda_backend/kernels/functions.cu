// Elementwise functions, for the types of arithmetic. Integers have only the functions that are defined for them; the host requests no
// others.

template <class T> struct Unsigned { typedef T type; };
template <> struct Unsigned<i16> { typedef u32 type; };
template <> struct Unsigned<i32> { typedef u32 type; };
template <> struct Unsigned<i64> { typedef u64 type; };
// Sums that overflow wrap; in C++ that is undefined for signed integers.
template <class T> using wrapping = typename Unsigned<T>::type;

// Both precisions under one name.
INLINE f32 exp_of(f32 x) { return expf(x); }
INLINE f64 exp_of(f64 x) { return exp(x); }
INLINE f32 expm1_of(f32 x) { return expm1f(x); }
INLINE f64 expm1_of(f64 x) { return expm1(x); }
INLINE f32 log_of(f32 x) { return logf(x); }
INLINE f64 log_of(f64 x) { return log(x); }
INLINE f32 pow_of(f32 x, f32 y) { return powf(x, y); }
INLINE f64 pow_of(f64 x, f64 y) { return pow(x, y); }

template <class T> INLINE T f_id(T x) { return x; }
template <class T> INLINE T f_neg(T x) { return (T)(-(wrapping<T>)x); }
template <class T> INLINE T f_abs(T x) { return x < 0 ? f_neg(x) : x; }
INLINE f32 f_neg(f32 x) { return -x; }
INLINE f64 f_neg(f64 x) { return -x; }
INLINE f32 f_abs(f32 x) { return fabsf(x); }
INLINE f64 f_abs(f64 x) { return fabs(x); }
template <class T> INLINE T f_recip(T x) { return (T)1 / x; }
template <class T> INLINE T f_sqr(T x) { return (T)((wrapping<T>)x * (wrapping<T>)x); }
INLINE f32 f_sqrt(f32 x) { return sqrtf(x); }
INLINE f64 f_sqrt(f64 x) { return sqrt(x); }
template <class T> INLINE T f_exp(T x) { return exp_of(x); }
template <class T> INLINE T f_log(T x) { return log_of(x); }
INLINE f32 f_sin(f32 x) { return sinf(x); }
INLINE f64 f_sin(f64 x) { return sin(x); }
INLINE f32 f_cos(f32 x) { return cosf(x); }
INLINE f64 f_cos(f64 x) { return cos(x); }
INLINE f32 f_tanh(f32 x) { return tanhf(x); }
INLINE f64 f_tanh(f64 x) { return tanh(x); }
INLINE f32 f_erf(f32 x) { return erff(x); }
INLINE f64 f_erf(f64 x) { return erf(x); }
template <class T> INLINE T f_ceil(T x) { return x; }
INLINE f32 f_ceil(f32 x) { return ceilf(x); }
INLINE f64 f_ceil(f64 x) { return ceil(x); }
template <class T> INLINE T f_floor(T x) { return x; }
INLINE f32 f_floor(f32 x) { return floorf(x); }
INLINE f64 f_floor(f64 x) { return floor(x); }
// Halves away from zero.
template <class T> INLINE T f_round(T x) { return x; }
INLINE f32 f_round(f32 x) { return roundf(x); }
INLINE f64 f_round(f64 x) { return round(x); }
template <class T> INLINE T f_sign(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : (T)0; }
template <class T> INLINE T f_relu(T x) { return x > 0 ? x : (T)0; }
template <class T> INLINE T f_relu2(T x) { T y = f_relu(x); return y * y; }

template <class T> INLINE T f_sigmoid(T x) {
    T e = exp_of(-f_abs(x));
    return (x < 0 ? e : (T)1) / (1 + e);
}
template <class T> INLINE T f_silu(T x) { return x * f_sigmoid(x); }
template <class T> INLINE T f_gelu(T x) {
    return (T)0.5 * x * (1 + f_tanh((T)0.7978845608028654 * x * (1 + (T)0.044715 * x * x)));
}
// Through erfc where 1 + erf would cancel.
INLINE f32 f_gelu_erf(f32 x) { return 0.5f * x * erfcf(-0.70710678118654752f * x); }
INLINE f64 f_gelu_erf(f64 x) { return 0.5 * x * erfc(-0.70710678118654752 * x); }

template <class T> INLINE T f_affine(T x, T a, T b) { return (T)((wrapping<T>)x * (wrapping<T>)a + (wrapping<T>)b); }
template <class T> INLINE T f_powf(T x, T exponent, T) { return pow_of(x, exponent); }
template <class T> INLINE T f_elu(T x, T alpha, T) { return x > 0 ? x : alpha * expm1_of(x); }

template <class T> INLINE T f_add(T a, T b) { return (T)((wrapping<T>)a + (wrapping<T>)b); }
template <class T> INLINE T f_sub(T a, T b) { return (T)((wrapping<T>)a - (wrapping<T>)b); }
template <class T> INLINE T f_mul(T a, T b) { return (T)((wrapping<T>)a * (wrapping<T>)b); }
// A zero divisor of integers is reported by the caller; the least number by -1 wraps.
template <class T> INLINE T f_div(T a, T b) {
    if (b == 0) return 0;
    return (T)-1 < 0 && b == (T)-1 ? f_neg(a) : (T)(a / b);
}
INLINE f32 f_div(f32 a, f32 b) { return a / b; }
INLINE f64 f_div(f64 a, f64 b) { return a / b; }
// The second argument wins only if it is truly smaller or larger, so a NaN in the first is kept and one in the second is not.
template <class T> INLINE T f_minimum(T a, T b) { return b < a ? b : a; }
template <class T> INLINE T f_maximum(T a, T b) { return b > a ? b : a; }
template <class T> INLINE u8 f_eq(T a, T b) { return a == b; }
template <class T> INLINE u8 f_ne(T a, T b) { return a != b; }
template <class T> INLINE u8 f_lt(T a, T b) { return a < b; }
template <class T> INLINE u8 f_le(T a, T b) { return a <= b; }
template <class T> INLINE u8 f_gt(T a, T b) { return a > b; }
template <class T> INLINE u8 f_ge(T a, T b) { return a >= b; }

// Functions of gate and up projection.
template <class T> INLINE T f_silu_mul(T a, T b) { return f_silu(a) * b; }
template <class T> INLINE T f_gelu_mul(T a, T b) { return f_gelu_erf(a) * b; }
template <class T> INLINE T f_gelu_tanh_mul(T a, T b) { return f_gelu(a) * b; }
template <class T> INLINE T f_quick_gelu_mul(T a, T b) { return a * f_sigmoid((T)1.702 * a) * b; }
template <class T> INLINE T f_relu_mul(T a, T b) { return f_relu(a) * b; }
template <class T> INLINE T f_relu2_mul(T a, T b) { return f_relu2(a) * b; }
template <class T> INLINE T f_sigmoid_mul(T a, T b) { return f_sigmoid(a) * b; }
template <class T> INLINE T f_clamped_swiglu(T a, T b) {
    T gate = f_minimum(a, (T)7);
    return gate * f_sigmoid((T)1.702 * gate) * (f_maximum(f_minimum(b, (T)7), (T)-7) + 1);
}
