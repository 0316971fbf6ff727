// Functions of floats. T is f32: 16-bit dtypes compute in it too.

fn f_id(x: f32) -> f32 { return x; }
fn f_abs(x: f32) -> f32 { return abs(x); }
fn f_neg(x: f32) -> f32 { return -x; }
fn f_recip(x: f32) -> f32 { return 1.0 / x; }
fn f_sqr(x: f32) -> f32 { return x * x; }
fn f_sqrt(x: f32) -> f32 { return sqrt(x); }
fn f_exp(x: f32) -> f32 { return exp(x); }
fn f_log(x: f32) -> f32 { return log(x); }
fn f_sin(x: f32) -> f32 { return sin(x); }
fn f_cos(x: f32) -> f32 { return cos(x); }
fn f_ceil(x: f32) -> f32 { return ceil(x); }
fn f_floor(x: f32) -> f32 { return floor(x); }

// WGSL's round takes halves to even; Candle's takes them away from zero.
fn f_round(x: f32) -> f32 {
  let whole = trunc(x);
  return select(whole, whole + f_sign(x), abs(x - whole) >= 0.5);
}

fn f_sign(x: f32) -> f32 {
  return select(select(0.0, -1.0, x < 0.0), 1.0, x > 0.0);
}

fn f_relu(x: f32) -> f32 {
  return select(x, 0.0, x < 0.0);
}

// exp overflows for large arguments on some adapters, so tanh goes by its absolute value.
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

// erfc(|x|) by a Chebyshev fit with relative error below 1.2e-7 (Press et al., Numerical Recipes, section 6.2); near zero
// the Maclaurin series of erf, which loses no digits there.
fn f_erf(x: f32) -> f32 {
  let z = abs(x);
  let s = x * x;
  if (z < 0.5) {
    return x * (1.1283792 + s * (-0.37612638 + s * (0.11283792 + s * (-0.026866170 + s * (0.0052239776 - s * 0.00085483271)))));
  }
  let t = 1.0 / (1.0 + 0.5 * z);
  let poly = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806
    + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
  let erfc = t * exp(-s + poly);
  return select(1.0 - erfc, erfc - 1.0, x < 0.0);
}

fn f_gelu_erf(x: f32) -> f32 {
  return 0.5 * x * (1.0 + f_erf(x * 0.70710678));
}

fn f_gelu(x: f32) -> f32 {
  return 0.5 * x * (1.0 + f_tanh(0.79788456 * x * (1.0 + 0.044715 * x * x)));
}

fn f_add(a: f32, b: f32) -> f32 { return a + b; }
fn f_sub(a: f32, b: f32) -> f32 { return a - b; }
fn f_mul(a: f32, b: f32) -> f32 { return a * b; }
fn f_div(a: f32, b: f32) -> f32 { return a / b; }
// The second argument wins only if it is truly smaller or larger, so a NaN in the first stays and one in the second does not.
fn f_minimum(a: f32, b: f32) -> f32 { return select(a, b, b < a); }
fn f_maximum(a: f32, b: f32) -> f32 { return select(a, b, b > a); }
fn f_silu_mul(a: f32, b: f32) -> f32 { return f_silu(a) * b; }
fn f_eq(a: f32, b: f32) -> u32 { return u32(a == b); }
fn f_ne(a: f32, b: f32) -> u32 { return u32(a != b || is_nan(a) || is_nan(b)); }
fn f_lt(a: f32, b: f32) -> u32 { return u32(a < b); }
fn f_le(a: f32, b: f32) -> u32 { return u32(a <= b); }
fn f_gt(a: f32, b: f32) -> u32 { return u32(a > b); }
fn f_ge(a: f32, b: f32) -> u32 { return u32(a >= b); }

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
