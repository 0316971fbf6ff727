// A float as an unsigned number of the same order. NaN comes last, and the two zeros are equal.
fn order_of(x: f32) -> key_t {
  let bits = bitcast<u32>(x);
  if (is_nan(x)) {
    return LAST;
  }
  if ((bits << 1u) == 0u) {
    return 0x80000000u;
  }
  return select(bits ^ 0x80000000u, ~bits, (bits >> 31u) == 1u);
}
