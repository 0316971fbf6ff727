// Four elements of blocks in f32, from an index that is a multiple of four.
fn rhs_four(i: u32) -> vec4<f32> {
  let values = rhs_elements(rhs_word(i & 0xfffffff8u));
  return select(values[0], values[1], (i & 4u) != 0u);
}
