// Four elements along k at once.
fn NAME_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {
  if (k >= p.k) {
    return mat4x4<f32>();
  }
  var rows: array<vec4<f32>, FOUR>;
  for (var i = 0u; i < FOUR; i++) {
    if (outer + i < outer_len) {
      rows[i] = NAME_four(base + (outer + i) * p.NAME_row + k);
    }
  }
  return transpose(mat4x4<f32>(rows[0], rows[1], rows[2], rows[3]));
}
