// Each pixel of dst (plane, oy, ox) is the sum of the columns' elements at that position: src is (plane, (ky, kx), (iy, ix)), and its
// element is at oy = iy * stride + ky * dilation - padding. The taps are k_h rows of k_w, out of `taps` in rows of taps_w.

fn element_at(i: u32) -> src_t {
  let ox = i % p.o_w;
  let oy = i / p.o_w % p.o_h;
  let plane = i / (p.o_w * p.o_h);
  var sum = src_t();
  for (var ky = 0u; ky < p.k_h; ky++) {
    // A position before the first window wraps to a large number.
    let y = oy + p.padding_h - ky * p.dilation_h;
    let iy = y / p.stride_h;
    if (iy >= p.i_h || y % p.stride_h != 0u) {
      continue;
    }
    for (var kx = 0u; kx < p.k_w; kx++) {
      let x = ox + p.padding_w - kx * p.dilation_w;
      let ix = x / p.stride_w;
      if (ix >= p.i_w || x % p.stride_w != 0u) {
        continue;
      }
      let tap = plane * p.taps + ky * p.taps_w + kx;
      sum = f_add(sum, src_at(p.src_offset + tap * p.src_tap + iy * p.src_row + ix));
    }
  }
  return sum;
}
