// Four rows or columns at once.
fn NAME_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {
  if (outer >= outer_len) {
    return mat4x4<f32>();
  }
  each j in FOUR {
    var c#j = vec4<f32>(0.0);
    if (k + #ju < p.k) {
      c#j = NAME_four(base + outer + (k + #ju) * p.NAME_col);
    }
  }
  return mat4x4<f32>(c0, c1, c2, c3);
}
