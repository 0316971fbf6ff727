// Functions of one float with parameters.

fn f_affine(x: f32) -> f32 {
  return x * bitcast<f32>(p.a) + bitcast<f32>(p.b);
}

// exp(x) - 1 is 2 t / (1 - t) with t = tanh(x / 2), which loses no digits near zero.
fn f_elu(x: f32) -> f32 {
  if (x > 0.0) {
    return x;
  }
  let t = f_tanh(0.5 * x);
  return 2.0 * t / (1.0 - t) * bitcast<f32>(p.a);
}

// WGSL's pow supports only positive bases.
fn f_powf(x: f32) -> f32 {
  let e = bitcast<f32>(p.a);
  if (e == 0.0) {
    return 1.0;
  }
  if (e == 1.0 || is_nan(x)) {
    return x;
  }
  if (e == 2.0) {
    return x * x;
  }
  let whole = trunc(e) == e;
  let odd = whole && abs(e) < 16777216.0 && (i32(e) & 1) == 1;
  if (x == 0.0) {
    let base = select(abs(x), x, odd);
    return select(1.0 / base, base, e > 0.0);
  }
  if (x < 0.0 && !whole && is_finite(x)) {
    return not_a_number(x);
  }
  let y = pow(abs(x), e);
  return select(y, -y, x < 0.0 && odd);
}
