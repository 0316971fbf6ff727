// dst[i] = lhs[i] where cond[i] holds, else rhs[i].

fn element_at(i: u32) -> dst_t {
  if (holds(cond_at(cond_offset(i)))) {
    return lhs_at(lhs_offset(i));
  }
  return rhs_at(rhs_offset(i));
}
