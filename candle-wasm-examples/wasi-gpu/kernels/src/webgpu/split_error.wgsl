// The squared error of a side, from the sums of its values and their squares.
fn squared_error(sum: vec2<f32>, count: u32) -> f32 {
  let error = sum.y - sum.x * sum.x / f32(count);
  let bits = bitcast<u32>(error);
  // Rounding must not make it negative; NaN stays.
  return select(error, 0.0, (bits >> 31u) == 1u && !is_nan(bits));
}
