// dst[b, c, oy, ox] = the mean (MEAN) or the largest of the window at (oy, ox) * stride. An invocation writes one word of dst.

fn pooled(i: u32) -> src_t {
  let ox = i % p.o_w;
  var rest = i / p.o_w;
  let oy = rest % p.o_h;
  rest /= p.o_h;
  let plane = p.src_offset + rest / p.channels * p.src_batch + rest % p.channels * p.src_channel;
  let corner = plane + oy * p.src_down + ox * p.stride_w * p.src_col;
  var sum = src_t();
  var largest = src_at(corner);
  for (var ky = 0u; ky < p.k_h; ky++) {
    for (var kx = 0u; kx < p.k_w; kx++) {
      let value = src_at(corner + ky * p.src_row + kx * p.src_col);
      if (MEAN) {
        sum = f_add(sum, value);
      } else {
        largest = f_maximum(largest, value);
      }
    }
  }
  if (MEAN) {
    return f_div(sum, count());
  }
  return largest;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = flat(workgroup, workgroups, local, WG);
  if (word * DST_LANES >= p.len) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let i = word * DST_LANES + lane;
    if (i < p.len) {
      lanes[lane] = pooled(i);
    }
  }
  dst_put(word, lanes);
}
