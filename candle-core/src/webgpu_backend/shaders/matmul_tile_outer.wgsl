// Four rows or columns at once.
fn NAME_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {
  if (outer >= outer_len) {
    return mat4x4<f32>();
  }
  var columns: array<vec4<f32>, FOUR>;
  for (var j = 0u; j < FOUR; j++) {
    if (k + j < p.k) {
      columns[j] = NAME_four(base + outer + (k + j) * p.NAME_col);
    }
  }
  return mat4x4<f32>(columns[0], columns[1], columns[2], columns[3]);
}
