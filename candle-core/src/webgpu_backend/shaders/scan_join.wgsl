// dst = running sums within parts, plus the sum of all earlier parts of the row.

fn element_at(i: u32) -> dst_t {
  let j = i % p.inner;
  let sum = sums_at(i);
  if (!BEFORE || j < p.chunk) {
    return sum;
  }
  return f_add(before(i / p.inner * (p.chunks - 1u) + j / p.chunk - 1u), sum);
}
