// dst[i] = f(lhs[i], rhs[i]).

fn element_at(i: u32) -> dst_t {
  return f(lhs_at(lhs_offset(i)), rhs_at(rhs_offset(i)));
}
