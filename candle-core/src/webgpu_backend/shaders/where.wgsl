// dst[i] = lhs[i] where cond[i] is not zero, else rhs[i].

fn element_at(i: u32) -> dst_t {
  if (any(cond_at(cond_offset(i)) != cond_t())) {
    return lhs_at(lhs_offset(i));
  }
  return rhs_at(rhs_offset(i));
}
