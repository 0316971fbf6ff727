// dst[batch, row, col] = sum over k of lhs[batch, row, k] * rhs[batch, k, col], in the order of k.

fn element_at(i: u32) -> dst_t {
  let col = i % p.n;
  let row = i / p.n % p.m;
  let batch = i / (p.n * p.m);
  let lhs_first = lhs_offset(batch) + row * p.lhs_row;
  let rhs_first = rhs_offset(batch) + col * p.rhs_row;
  var sum = dst_t();
  for (var k = 0u; k < p.k; k++) {
    sum = f_add(sum, f_mul(lhs_at(lhs_first + k * p.lhs_col), rhs_at(rhs_first + k * p.rhs_col)));
  }
  return sum;
}
