// A float as an unsigned number of the same order. NaN comes last, and the two zeros are equal.
fn order_of(x: f64) -> key_t {
  let bits = vec2<u32>(u32(bitcast<u64>(x) & 0xfffffffflu), u32(bitcast<u64>(x) >> 32u));
  if (is_nan64(x)) {
    return LAST;
  }
  if ((bits.x | (bits.y << 1u)) == 0u) {
    return vec2<u32>(0u, 0x80000000u);
  }
  return select(bits ^ vec2<u32>(0u, 0x80000000u), ~bits, (bits.y >> 31u) == 1u);
}
