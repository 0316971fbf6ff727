// Functions of floats. T is f32: 16-bit dtypes compute in it too.

fn f_id(x: f32) -> f32 { return x; }
fn f_abs(x: f32) -> f32 { return abs(x); }
fn f_neg(x: f32) -> f32 { return -x; }
fn f_recip(x: f32) -> f32 { return 1.0 / x; }
fn f_sqr(x: f32) -> f32 { return x * x; }
fn f_sqrt(x: f32) -> f32 { return sqrt(x); }
fn f_exp(x: f32) -> f32 { return exp(x); }
fn f_log(x: f32) -> f32 { return log(x); }
fn f_ceil(x: f32) -> f32 { return ceil(x); }
fn f_floor(x: f32) -> f32 { return floor(x); }

// WGSL guarantees sin and cos only to 2^-11 and up to pi; rotary embeddings need angles in the thousands. So an angle is reduced to a
// quarter period, by pi / 2 in three parts whose products with the number of quarters are exact, and Taylor's series computes the rest, to
// about 1e-7 up to 1e4 and 2e-6 up to 1e5.
fn sin_of_quarters(x: f32, ahead: u32) -> f32 {
  if (!(abs(x) < 1e5)) {
    // Outside of this range f32 resolves angles poorly; infinity and NaN give NaN.
    return select(select(sin(x), cos(x), ahead == 1u), not_a_number(x), !is_finite(x));
  }
  let quarters = round(x * 0.63661977);
  let rest = fma(-quarters, 7.54978995489e-8, fma(-quarters, 4.8375129699707e-4, fma(-quarters, 1.5703125, x)));
  let s = rest * rest;
  let sine = rest * (1.0 - s * (0.16666667 - s * (0.008333334 - s * (0.0001984127 - s * 0.0000027557319))));
  let cosine = 1.0 - s * (0.5 - s * (0.041666668 - s * (0.0013888889 - s * 0.000024801588)));
  let turn = bitcast<u32>(i32(quarters)) + ahead;
  let y = select(sine, cosine, (turn & 1u) == 1u);
  return select(y, -y, (turn & 2u) == 2u);
}

fn f_sin(x: f32) -> f32 { return sin_of_quarters(x, 0u); }
fn f_cos(x: f32) -> f32 { return sin_of_quarters(x, 1u); }

// WGSL's round takes halves to even; Candle's takes them away from zero.
fn f_round(x: f32) -> f32 {
  let whole = trunc(x);
  return select(whole, whole + f_sign(x), abs(x - whole) >= 0.5);
}

fn f_sign(x: f32) -> f32 {
  return select(select(0.0, -1.0, x < 0.0), 1.0, x > 0.0);
}

fn f_relu(x: f32) -> f32 {
  return select(0.0, x, x > 0.0);
}

// exp overflows for large arguments on some adapters, so tanh uses its absolute value.
fn f_tanh(x: f32) -> f32 {
  let e = exp(-2.0 * abs(x));
  let y = (1.0 - e) / (1.0 + e);
  // Near zero the quotient loses digits to cancellation; the series does not.
  let s = x * x;
  let series = x * (1.0 - s * (0.33333334 - s * (0.13333334 - s * 0.053968254)));
  return select(select(y, -y, x < 0.0), series, abs(x) < 0.1);
}

fn f_sigmoid(x: f32) -> f32 {
  let e = exp(-abs(x));
  return select(1.0, e, x < 0.0) / (1.0 + e);
}

fn f_silu(x: f32) -> f32 {
  return x * f_sigmoid(x);
}

// 1 - erf(z) for z >= 0.3: exp(-z^2) times a polynomial of 1 / (1 + z / 2), a separate least-squares fit that is within 4e-9 of the
// quotient in exact arithmetic.
fn erfc_positive(z: f32) -> f32 {
  let t = 1.0 / (1.0 + 0.5 * z);
  let poly = 2.6004948e-6 + t * (0.28200859 + t * (0.2833313 + t * (0.23673674 + t * (0.22816769
    + t * (-0.09052305 + t * (0.37902108 + t * (-0.58461775 + t * (0.33693431 - t * 0.07106619))))))));
  return exp(-z * z) * poly;
}

// Near zero the Maclaurin series, which loses no digits there.
fn f_erf(x: f32) -> f32 {
  let z = abs(x);
  if (z < 0.5) {
    let s = x * x;
    return x * (1.1283792 + s * (-0.37612639 + s * (0.11283792 + s * (-0.02686617 + s * (0.0052239776 - s * 0.0008548327)))));
  }
  let erf = 1.0 - erfc_positive(z);
  return select(erf, -erf, x < 0.0);
}

fn f_gelu_erf(x: f32) -> f32 {
  let z = x * 0.70710678;
  if (z < -0.5) {
    // 1 + erf would cancel.
    return 0.5 * x * erfc_positive(-z);
  }
  return 0.5 * x * (1.0 + f_erf(z));
}

fn f_gelu(x: f32) -> f32 {
  return 0.5 * x * (1.0 + f_tanh(0.79788456 * x * (1.0 + 0.044715 * x * x)));
}

fn f_add(a: f32, b: f32) -> f32 { return a + b; }
fn f_sub(a: f32, b: f32) -> f32 { return a - b; }
fn f_mul(a: f32, b: f32) -> f32 { return a * b; }
fn f_div(a: f32, b: f32) -> f32 { return a / b; }
// The second argument wins only if it is truly smaller or larger, so a NaN in the first is kept and one in the second is not. The first's
// NaN is detected in its bits: NVIDIA's compiler converts the comparison to a plain minimum, which drops it.
fn f_minimum(a: f32, b: f32) -> f32 { return select(select(a, b, b < a), a, is_nan(a)); }
fn f_maximum(a: f32, b: f32) -> f32 { return select(select(a, b, b > a), a, is_nan(a)); }
fn f_eq(a: f32, b: f32) -> u32 { return u32(a == b); }
fn f_ne(a: f32, b: f32) -> u32 { return u32(a != b || is_nan(a) || is_nan(b)); }
fn f_lt(a: f32, b: f32) -> u32 { return u32(a < b); }
fn f_le(a: f32, b: f32) -> u32 { return u32(a <= b); }
fn f_gt(a: f32, b: f32) -> u32 { return u32(a > b); }
fn f_ge(a: f32, b: f32) -> u32 { return u32(a >= b); }

// Functions of gate and up projection.
fn f_silu_mul(a: f32, b: f32) -> f32 { return f_silu(a) * b; }
fn f_gelu_mul(a: f32, b: f32) -> f32 { return f_gelu_erf(a) * b; }
fn f_gelu_tanh_mul(a: f32, b: f32) -> f32 { return f_gelu(a) * b; }
fn f_quick_gelu_mul(a: f32, b: f32) -> f32 { return a * f_sigmoid(1.702 * a) * b; }
fn f_relu_mul(a: f32, b: f32) -> f32 { return f_relu(a) * b; }
fn f_relu2_mul(a: f32, b: f32) -> f32 { let y = f_relu(a); return y * y * b; }
fn f_sigmoid_mul(a: f32, b: f32) -> f32 { return f_sigmoid(a) * b; }
fn f_clamped_swiglu(a: f32, b: f32) -> f32 {
  let gate = f_minimum(a, 7.0);
  return gate * f_sigmoid(1.702 * gate) * (f_maximum(f_minimum(b, 7.0), -7.0) + 1.0);
}

fn float_to_u32(x: f32) -> u32 {
  if (is_nan(x) || x <= 0.0) {
    return 0u;
  }
  return select(u32(min(x, 4294967040.0)), 0xffffffffu, x >= 4294967296.0);
}

fn float_to_i32(x: f32) -> i32 {
  if (is_nan(x)) {
    return 0;
  }
  if (x >= 2147483648.0) {
    return 2147483647;
  }
  return i32(max(x, -2147483648.0));
}

fn float_to_i64(x: f32) -> vec2<u32> {
  if (is_nan(x)) {
    return vec2<u32>(0u, 0u);
  }
  let magnitude = trunc(abs(x));
  if (magnitude >= 9223372036854775808.0) {
    return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), x < 0.0);
  }
  let high = floor(magnitude / 4294967296.0);
  let low = magnitude - high * 4294967296.0;
  let positive = vec2<u32>(u32(low), u32(high));
  let flipped = ~positive;
  let negative = vec2<u32>(flipped.x + 1u, flipped.y + u32(flipped.x == 0xffffffffu));
  return select(positive, negative, x < 0.0);
}
