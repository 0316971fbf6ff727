// Functions of one f64 with parameters.

fn parameter(low: u32, high: u32) -> f64 {
  return bitcast<f64>(u64(low) | (u64(high) << 32u));
}

fn f_affine(x: f64) -> f64 {
  return x * parameter(p.a, p.a_high) + parameter(p.b, p.b_high);
}

fn f_elu(x: f64) -> f64 {
  if (x > 0.0lf) {
    return x;
  }
  return exp_m1(x) * parameter(p.a, p.a_high);
}

fn f_powf(x: f64) -> f64 {
  let e = parameter(p.a, p.a_high);
  if (e == 0.0lf || x == 1.0lf) {
    return 1.0lf;
  }
  if (e == 1.0lf || is_nan64(x)) {
    return x;
  }
  if (e == 2.0lf) {
    return x * x;
  }
  let whole = trunc(e) == e;
  let odd = whole && abs(e) < 9007199254740992.0lf && trunc(e / 2.0lf) * 2.0lf != e;
  if (x == 0.0lf) {
    let base = select(abs(x), x, odd);
    return select(1.0lf / base, base, e > 0.0lf);
  }
  if (x < 0.0lf && !whole && is_finite64(x)) {
    return not_a_number64(x);
  }
  let y = f_exp(e * f_log(abs(x)));
  return select(y, -y, x < 0.0lf && odd);
}
