// i64 as a pair of u32, low word first, in two's complement.

fn is_negative(x: vec2<u32>) -> bool { return (x.y >> 31u) == 1u; }

fn f_id(x: vec2<u32>) -> vec2<u32> { return x; }
fn f_ceil(x: vec2<u32>) -> vec2<u32> { return x; }
fn f_floor(x: vec2<u32>) -> vec2<u32> { return x; }
fn f_round(x: vec2<u32>) -> vec2<u32> { return x; }

fn f_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn f_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

fn f_neg(x: vec2<u32>) -> vec2<u32> { return f_sub(vec2<u32>(0u, 0u), x); }
fn f_abs(x: vec2<u32>) -> vec2<u32> { return select(x, f_neg(x), is_negative(x)); }
fn f_relu(x: vec2<u32>) -> vec2<u32> { return select(x, vec2<u32>(0u, 0u), is_negative(x)); }

fn f_sign(x: vec2<u32>) -> vec2<u32> {
  if (is_negative(x)) {
    return vec2<u32>(0xffffffffu, 0xffffffffu);
  }
  return vec2<u32>(u32((x.x | x.y) != 0u), 0u);
}

fn f_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let product = wide_mul(a.x, b.x);
  return vec2<u32>(product.x, product.y + a.x * b.y + a.y * b.x);
}

fn f_sqr(x: vec2<u32>) -> vec2<u32> { return f_mul(x, x); }

fn unsigned_less(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// Long division, bit by bit, rounding towards zero. A zero divisor returns the dividend, like WGSL's own division.
fn f_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if ((b.x | b.y) == 0u) {
    return a;
  }
  let dividend = f_abs(a);
  let divisor = f_abs(b);
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var step = 0u; step < 64u; step++) {
    let bit = 63u - step;
    let next = (select(dividend.x, dividend.y, bit >= 32u) >> (bit & 31u)) & 1u;
    rest = vec2<u32>((rest.x << 1u) | next, (rest.y << 1u) | (rest.x >> 31u));
    quotient = vec2<u32>(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
    if (!unsigned_less(rest, divisor)) {
      rest = f_sub(rest, divisor);
      quotient.x |= 1u;
    }
  }
  return select(quotient, f_neg(quotient), is_negative(a) != is_negative(b));
}

fn less(a: vec2<u32>, b: vec2<u32>) -> bool {
  return unsigned_less(a ^ vec2<u32>(0u, 0x80000000u), b ^ vec2<u32>(0u, 0x80000000u));
}

fn f_minimum(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, less(b, a)); }
fn f_maximum(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, less(a, b)); }
fn f_eq(a: vec2<u32>, b: vec2<u32>) -> u32 { return u32(all(a == b)); }
fn f_ne(a: vec2<u32>, b: vec2<u32>) -> u32 { return u32(any(a != b)); }
fn f_lt(a: vec2<u32>, b: vec2<u32>) -> u32 { return u32(less(a, b)); }
fn f_le(a: vec2<u32>, b: vec2<u32>) -> u32 { return u32(!less(b, a)); }
fn f_gt(a: vec2<u32>, b: vec2<u32>) -> u32 { return u32(less(b, a)); }
fn f_ge(a: vec2<u32>, b: vec2<u32>) -> u32 { return u32(!less(a, b)); }

// Rounded once, to nearest even, in integers: browsers convert a u32 that f32 cannot represent in different ways.
fn i64_to_float(x: vec2<u32>) -> f32 {
  let magnitude = f_abs(x);
  var upper = magnitude.y;
  var cut = magnitude.x;
  var exponent = 32u;
  if (upper == 0u) {
    upper = magnitude.x;
    cut = 0u;
    exponent = 0u;
  }
  if (upper == 0u) {
    return 0.0;
  }
  let space = countLeadingZeros(upper);
  if (space > 0u) {
    upper = (upper << space) | (cut >> (32u - space));
    cut = cut << space;
  }
  let rest = (upper & 0xffu) | u32(cut != 0u);
  var kept = upper >> 8u;
  if (rest > 0x80u || (rest == 0x80u && (kept & 1u) == 1u)) {
    kept += 1u;
  }
  let y = f32(kept) * bitcast<f32>((127u + 8u + exponent - space) << 23u);
  return select(y, -y, is_negative(x));
}
