// The mean of a window of integers, rounded towards 0 once, at the end. Its sum may not fit 32 bits, but quotients and remainders do.

struct Sum {
  quotients: src_t,
  rests: src_t,
}

fn add_to(sum: Sum, value: src_t) -> Sum {
  let n = src_t(p.k_h * p.k_w);
  return Sum(sum.quotients + value / n, sum.rests + value % n);
}

fn mean(sum: Sum) -> src_t {
  let n = src_t(p.k_h * p.k_w);
  let whole = sum.quotients + sum.rests / n;
  let rest = sum.rests % n;
  if (whole > src_t(0) && rest < src_t(0)) {
    return whole - src_t(1);
  }
  return whole + select(src_t(0), src_t(1), whole < src_t(0) && rest > src_t(0));
}
