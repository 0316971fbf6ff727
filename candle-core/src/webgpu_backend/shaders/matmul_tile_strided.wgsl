// Any strides, element by element.
fn NAME_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {
  var m: mat4x4<f32>;
  for (var j = 0u; j < 4u; j++) {
    for (var i = 0u; i < 4u; i++) {
      if (outer + i < outer_len && k + j < p.k) {
        m[j][i] = NAME_at(base + (outer + i) * p.NAME_row + (k + j) * p.NAME_col);
      }
    }
  }
  return m;
}
