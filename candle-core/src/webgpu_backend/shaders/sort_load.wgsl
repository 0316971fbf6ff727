// The key of element i of src: numbers whose order is the one asked for.
fn key_at(i: u32) -> key_t {
  let key = order_of(src_at(src_offset(i)));
  if (ASCENDING) {
    return key;
  }
  return ~key;
}
