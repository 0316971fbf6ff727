// Four elements along k at once.
fn NAME_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {
  if (k >= p.k) {
    return mat4x4<f32>();
  }
  each i in FOUR {
    var r#i = vec4<f32>(0.0);
    if (outer + #iu < outer_len) {
      r#i = NAME_four(base + (outer + #iu) * p.NAME_row + k);
    }
  }
  return transpose(mat4x4<f32>(r0, r1, r2, r3));
}
