// The key of element i of src: numbers in the requested order.
fn key_at(i: u32) -> key_t {
  let key = order_of(src_at(src_offset(i)));
  if (ASCENDING) {
    return key;
  }
  return ~key;
}
