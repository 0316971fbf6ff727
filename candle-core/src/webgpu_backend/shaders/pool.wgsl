// dst[b, c, oy, ox] = the mean (MEAN) or the maximum of the window at (oy, ox) * stride.

fn element_at(i: u32) -> src_t {
  let ox = i % p.o_w;
  var rest = i / p.o_w;
  let oy = rest % p.o_h;
  rest /= p.o_h;
  let plane = p.src_offset + rest / p.channels * p.src_batch + rest % p.channels * p.src_channel;
  let corner = plane + oy * p.src_down + ox * p.stride_w * p.src_col;
  var sum = Sum();
  var largest = src_at(corner);
  for (var ky = 0u; ky < p.k_h; ky++) {
    for (var kx = 0u; kx < p.k_w; kx++) {
      let value = src_at(corner + ky * p.src_row + kx * p.src_col);
      if (MEAN) {
        sum = add_to(sum, value);
      } else if (f_gt(value, largest) == 1u || f_ne(value, value) == 1u) {
        // A NaN counts as the largest.
        largest = value;
      }
    }
  }
  if (MEAN) {
    return mean(sum);
  }
  return largest;
}
