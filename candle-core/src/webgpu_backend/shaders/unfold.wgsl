// The windows of src as columns: dst is (batch, (channel, ky, kx), (oy, ox)), and 0 where a window reaches into the padding. An
// invocation writes one word of dst.

fn element_at(i: u32) -> src_t {
  let column = i % p.columns;
  var rest = i / p.columns;
  let kx = rest % p.k_w;
  rest /= p.k_w;
  let ky = rest % p.k_h;
  rest /= p.k_h;
  // In the padded image; below, a place left of or above the image wraps to a large number.
  let y = (p.first_row + column / p.o_w) * p.stride_h + ky * p.dilation_h - p.padding_h;
  let x = (column % p.o_w) * p.stride_w + kx * p.dilation_w - p.padding_w;
  if (y >= p.i_h || x >= p.i_w) {
    return src_t();
  }
  let batch = rest / p.channels;
  let channel = rest % p.channels;
  return src_at(p.src_offset + batch * p.src_batch + channel * p.src_channel + (y - p.top) * p.src_row + x * p.src_col);
}
