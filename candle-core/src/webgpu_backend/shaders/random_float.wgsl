// The upper 24 bits, which f32 holds exactly, as a number in [0, 1).
fn unit(bits: vec2<u32>) -> f32 {
  return f32(bits.x >> 8u) * 0x1p-24f;
}

// The natural logarithm of a normal number, to the last digits: WGSL's own guarantees only an absolute 2^-21 and differs between adapters.
// A mantissa between the roots of 1/2 and 2, and atanh's series.
fn ln(x: f32) -> f32 {
  let bits = bitcast<u32>(x) - 0x3f3504f3u;
  let exponent = f32(bitcast<i32>(bits) >> 23u);
  let m = bitcast<f32>((bits & 0x7fffffu) + 0x3f3504f3u);
  let s = (m - 1.0) / (m + 1.0);
  let z = s * s;
  return exponent * 0.6931472 + 2.0 * s * (1.0 + z * (0.33333334 + z * (0.2 + z * (0.14285715 + z * 0.11111111))));
}

// The logarithm's argument is in (0, 1].
fn radius(bits: vec2<u32>) -> f32 {
  return sqrt(max(-2.0 * ln(unit(bits) + 0x1p-24f), 0.0));
}

fn angle_cosine(bits: vec2<u32>) -> f32 {
  return f_cos(6.2831853 * (unit(bits) - 0.5));
}

fn first() -> f32 { return bitcast<f32>(p.a); }
fn second() -> f32 { return bitcast<f32>(p.b); }
fn width() -> f32 { return bitcast<f32>(p.width); }
