// 53 bits, which f64 holds exactly, as a number in [0, 1).
fn unit(bits: vec2<u32>) -> f64 {
  return (f64(bits.x >> 5u) * 67108864.0lf + f64(bits.y >> 6u)) * 1.1102230246251565e-16lf;
}

fn radius(bits: vec2<u32>) -> f64 {
  return sqrt(-2.0lf * f_log(unit(bits) + 1.1102230246251565e-16lf));
}

fn angle_cosine(bits: vec2<u32>) -> f64 {
  return f_cos(6.283185307179586lf * (unit(bits) - 0.5lf));
}

fn parameter(low: u32, high: u32) -> f64 {
  return bitcast<f64>(u64(low) | (u64(high) << 32u));
}

fn first() -> f64 { return parameter(p.a, p.a_high); }
fn second() -> f64 { return parameter(p.b, p.b_high); }
fn width() -> f64 { return parameter(p.width, p.width_high); }
