// Functions of f64. WGSL's exp, log, sin and cos are limited to 32 bits, so these are computed from sums and products: Taylor's series on a
// reduced range, accurate to about 1e-15, plus the argument's error times its magnitude.

fn is_nan64(x: f64) -> bool {
  return (bitcast<u64>(x) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu;
}

fn is_finite64(x: f64) -> bool {
  return (bitcast<u64>(x) & 0x7ff0000000000000lu) != 0x7ff0000000000000lu;
}

fn not_a_number64(x: f64) -> f64 {
  return bitcast<f64>(bitcast<u64>(x) | 0x7ff8000000000000lu);
}

// 2^n for exponents of normal numbers; infinity for 1024.
fn power_of_two(n: i32) -> f64 {
  return bitcast<f64>(u64(bitcast<u32>(n + 1023)) << 52u);
}

fn f_abs(x: f64) -> f64 { return abs(x); }
fn f_neg(x: f64) -> f64 { return -x; }
fn f_recip(x: f64) -> f64 { return 1.0lf / x; }
fn f_sqr(x: f64) -> f64 { return x * x; }
fn f_sqrt(x: f64) -> f64 { return sqrt(x); }
fn f_ceil(x: f64) -> f64 { return ceil(x); }
fn f_floor(x: f64) -> f64 { return floor(x); }
fn f_relu(x: f64) -> f64 { return select(0.0lf, x, x > 0.0lf); }

fn f_sign(x: f64) -> f64 {
  return select(select(0.0lf, -1.0lf, x < 0.0lf), 1.0lf, x > 0.0lf);
}

fn f_round(x: f64) -> f64 {
  let whole = trunc(x);
  return select(whole, whole + f_sign(x), abs(x - whole) >= 0.5lf);
}

// ln(2) in two parts, the first short enough for its products with exponents to be exact.
const LN_2 = 6.93147180369123816490e-01lf;
const LN_2_REST = 1.90821492927058770002e-10lf;

fn f_exp(x: f64) -> f64 {
  if (is_nan64(x)) {
    return x;
  }
  if (x > 709.782712893384lf) {
    return power_of_two(1024);
  }
  if (x < -745.2lf) {
    return 0.0lf;
  }
  let n = floor(x * 1.4426950408889634lf + 0.5lf);
  let r = (x - n * LN_2) - n * LN_2_REST;
  let y = 1.0lf + r * (1.0lf + r * (0.5lf + r * (0.16666666666666666lf + r * (0.041666666666666664lf + r *
    (0.008333333333333333lf + r * (0.001388888888888889lf + r * (0.0001984126984126984lf + r * (2.48015873015873e-05lf
    + r * (2.7557319223985893e-06lf + r * (2.755731922398589e-07lf + r * (2.505210838544172e-08lf + r *
    (2.08767569878681e-09lf + r * (1.6059043836821613e-10lf)))))))))))));
  // In two steps, as 2^n alone may not be a normal number.
  let half = i32(n) / 2;
  return y * power_of_two(half) * power_of_two(i32(n) - half);
}

fn exp_m1(x: f64) -> f64 {
  if (abs(x) < 0.7lf) {
    return x * (1.0lf + x * (0.5lf + x * (0.16666666666666666lf + x * (0.041666666666666664lf + x *
    (0.008333333333333333lf + x * (0.001388888888888889lf + x * (0.0001984126984126984lf + x * (2.48015873015873e-05lf
    + x * (2.7557319223985893e-06lf + x * (2.755731922398589e-07lf + x * (2.505210838544172e-08lf + x *
    (2.08767569878681e-09lf + x * (1.6059043836821613e-10lf + x * (1.1470745597729725e-11lf + x *
    (7.647163731819816e-13lf + x * (4.779477332387385e-14lf + x * (2.8114572543455206e-15lf + x *
    (1.5619206968586225e-16lf))))))))))))))))));
  }
  return f_exp(x) - 1.0lf;
}

fn f_log(x: f64) -> f64 {
  if (is_nan64(x) || x < 0.0lf) {
    return not_a_number64(x);
  }
  if (x == 0.0lf) {
    return -power_of_two(1024);
  }
  if (!is_finite64(x)) {
    return x;
  }
  let tiny = bitcast<u64>(x) < 0x0010000000000000lu;
  let bits = bitcast<u64>(select(x, x * 18014398509481984.0lf, tiny));
  var exponent = i32(u32(bits >> 52u)) - select(1023, 1077, tiny);
  var m = bitcast<f64>((bits & 0x000ffffffffffffflu) | 0x3ff0000000000000lu);
  if (m > 1.4142135623730951lf) {
    m = 0.5lf * m;
    exponent += 1;
  }
  let s = (m - 1.0lf) / (m + 1.0lf);
  let z = s * s;
  let series = 2.0lf * s * (1.0lf + z * (0.3333333333333333lf + z * (0.2lf + z * (0.14285714285714285lf + z *
    (0.1111111111111111lf + z * (0.09090909090909091lf + z * (0.07692307692307693lf + z * (0.06666666666666667lf + z *
    (0.058823529411764705lf + z * (0.05263157894736842lf + z * (0.047619047619047616lf + z *
    (0.043478260869565216lf))))))))))));
  return f64(exponent) * LN_2 + (series + f64(exponent) * LN_2_REST);
}

// By quarter periods; pi / 2 is in three parts, whose products with up to 2^20 quarters are exact.
fn sin_of_quarters(angle: f64, ahead: u32) -> f64 {
  if (!is_finite64(angle)) {
    return not_a_number64(angle);
  }
  var x = angle;
  if (abs(x) > 1e6lf) {
    x = x - floor(x * 0.15915494309189535lf) * 6.283185307179586lf;
  }
  let quarters = floor(x * 0.6366197723675814lf + 0.5lf);
  let r = ((x - quarters * 1.57079632673412561417lf) - quarters * 6.07710050630396597660e-11lf)
    - quarters * 2.02226624879595063154e-21lf;
  let s = r * r;
  let sine = r * (1.0lf + s * (-0.16666666666666666lf + s * (0.008333333333333333lf + s * (-0.0001984126984126984lf +
    s * (2.7557319223985893e-06lf + s * (-2.505210838544172e-08lf + s * (1.6059043836821613e-10lf + s *
    (-7.647163731819816e-13lf + s * (2.8114572543455206e-15lf)))))))));
  let cosine = 1.0lf + s * (-0.5lf + s * (0.041666666666666664lf + s * (-0.001388888888888889lf + s *
    (2.48015873015873e-05lf + s * (-2.755731922398589e-07lf + s * (2.08767569878681e-09lf + s *
    (-1.1470745597729725e-11lf + s * (4.779477332387385e-14lf))))))));
  let turn = bitcast<u32>(i32(quarters)) + ahead;
  let y = select(sine, cosine, (turn & 1u) == 1u);
  return select(y, -y, (turn & 2u) == 2u);
}

fn f_sin(x: f64) -> f64 { return sin_of_quarters(x, 0u); }
fn f_cos(x: f64) -> f64 { return sin_of_quarters(x, 1u); }

fn f_tanh(x: f64) -> f64 {
  let z = abs(x);
  if (is_nan64(x)) {
    return x;
  }
  if (z > 22.0lf) {
    return f_sign(x);
  }
  let t = exp_m1(2.0lf * z);
  let y = t / (t + 2.0lf);
  // Also keeps the sign of zero.
  return select(y, -y, (bitcast<u64>(x) >> 63u) == 1lu);
}

fn f_sigmoid(x: f64) -> f64 { return 1.0lf / (1.0lf + f_exp(-x)); }
fn f_silu(x: f64) -> f64 { return x / (1.0lf + f_exp(-x)); }

// 1 - erf(z) for z >= 1.5: Laplace's continued fraction (Abramowitz and Stegun, 7.1.14).
fn erfc_far(z: f64) -> f64 {
  if (z > 27.3lf) {
    return 0.0lf;
  }
  var f = z;
  for (var k = 80u; k > 0u; k--) {
    f = z + 0.5lf * f64(k) / f;
  }
  return f_exp(-z * z) * 0.5641895835477563lf / f;
}

// erf(z) for |z| < 1.5 by a series of positive terms (Abramowitz and Stegun, 7.1.6).
fn erf_near(z: f64) -> f64 {
  let step = 2.0lf * z * z;
  var term = 1.0lf;
  var sum = 1.0lf;
  for (var n = 1u; n < 40u; n++) {
    term = term * step / f64(2u * n + 1u);
    sum = sum + term;
  }
  return 1.1283791670955126lf * z * f_exp(-z * z) * sum;
}

fn f_erf(x: f64) -> f64 {
  if (is_nan64(x) || abs(x) < 1.5lf) {
    return erf_near(x);
  }
  let y = 1.0lf - erfc_far(abs(x));
  return select(y, -y, x < 0.0lf);
}

fn erfc(x: f64) -> f64 {
  if (is_nan64(x) || abs(x) < 1.5lf) {
    return 1.0lf - erf_near(x);
  }
  let far = erfc_far(abs(x));
  return select(far, 2.0lf - far, x < 0.0lf);
}

fn f_gelu_erf(x: f64) -> f64 {
  return 0.5lf * x * erfc(-x * 0.7071067811865476lf);
}

fn f_gelu(x: f64) -> f64 {
  return 0.5lf * x * (1.0lf + f_tanh(0.7978845608028654lf * x * (1.0lf + 0.044715lf * x * x)));
}

fn f_add(a: f64, b: f64) -> f64 { return a + b; }
fn f_sub(a: f64, b: f64) -> f64 { return a - b; }
fn f_mul(a: f64, b: f64) -> f64 { return a * b; }
fn f_div(a: f64, b: f64) -> f64 { return a / b; }
fn f_minimum(a: f64, b: f64) -> f64 { return select(select(a, b, b < a), a, is_nan64(a)); }
fn f_maximum(a: f64, b: f64) -> f64 { return select(select(a, b, b > a), a, is_nan64(a)); }
fn f_silu_mul(a: f64, b: f64) -> f64 { return f_silu(a) * b; }
fn f_gelu_mul(a: f64, b: f64) -> f64 { return f_gelu_erf(a) * b; }
fn f_gelu_tanh_mul(a: f64, b: f64) -> f64 { return f_gelu(a) * b; }
fn f_quick_gelu_mul(a: f64, b: f64) -> f64 { return a * f_sigmoid(1.702lf * a) * b; }
fn f_relu_mul(a: f64, b: f64) -> f64 { return f_relu(a) * b; }
fn f_relu2_mul(a: f64, b: f64) -> f64 { let y = f_relu(a); return y * y * b; }
fn f_sigmoid_mul(a: f64, b: f64) -> f64 { return f_sigmoid(a) * b; }
fn f_clamped_swiglu(a: f64, b: f64) -> f64 {
  let gate = f_minimum(a, 7.0lf);
  return gate * f_sigmoid(1.702lf * gate) * (f_maximum(f_minimum(b, 7.0lf), -7.0lf) + 1.0lf);
}
fn f_eq(a: f64, b: f64) -> u32 { return u32(a == b); }
fn f_ne(a: f64, b: f64) -> u32 { return u32(a != b || is_nan64(a) || is_nan64(b)); }
fn f_lt(a: f64, b: f64) -> u32 { return u32(a < b); }
fn f_le(a: f64, b: f64) -> u32 { return u32(a <= b); }
fn f_gt(a: f64, b: f64) -> u32 { return u32(a > b); }
fn f_ge(a: f64, b: f64) -> u32 { return u32(a >= b); }

// An f32 that rounds to a smaller float as x does: if f32 cannot represent x, the last bit is set, which is below the bits that are kept.
fn to_odd(x: f64) -> f32 {
  let bits = bitcast<u64>(x);
  let kept = bits & 0xffffffffe0000000lu;
  return f32(bitcast<f64>(select(kept | 0x20000000lu, kept, kept == bits)));
}

fn float_to_u32(x: f64) -> u32 {
  if (is_nan64(x) || x <= 0.0lf) {
    return 0u;
  }
  if (x >= 4294967296.0lf) {
    return 0xffffffffu;
  }
  return u32(x);
}

fn float_to_i32(x: f64) -> i32 {
  if (is_nan64(x)) {
    return 0;
  }
  if (x >= 2147483647.0lf) {
    return 2147483647;
  }
  if (x <= -2147483648.0lf) {
    return bitcast<i32>(0x80000000u);
  }
  return i32(x);
}

fn float_to_i64(x: f64) -> vec2<u32> {
  if (is_nan64(x)) {
    return vec2<u32>(0u, 0u);
  }
  let magnitude = trunc(abs(x));
  if (magnitude >= 9223372036854775808.0lf) {
    return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), x < 0.0lf);
  }
  let high = floor(magnitude / 4294967296.0lf);
  let positive = vec2<u32>(u32(magnitude - high * 4294967296.0lf), u32(high));
  let flipped = ~positive;
  let negative = vec2<u32>(flipped.x + 1u, flipped.y + u32(flipped.x == 0xffffffffu));
  return select(positive, negative, x < 0.0lf);
}
