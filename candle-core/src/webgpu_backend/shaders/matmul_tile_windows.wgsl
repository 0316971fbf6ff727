// rhs of a convolution for the tile kernel: the matrix whose columns are the windows of an image. Row k corresponds to an element of the
// kernel (channel, ky, kx), column `outer` to a position of the result. The values that a row or a column shares are computed once for it.
// Loops to FOUR are unrolled (unroll.rs); K_H and K_W become the kernel's size, a constant if it is small: a division by a constant is a
// multiplication.

fn rhs_block(base: u32, outer: u32, k: u32, outer_len: u32) -> mat4x4<f32> {
  if (k >= p.k || outer >= outer_len) {
    return mat4x4<f32>();
  }
  var oy = outer / p.o_w;
  var ox = outer % p.o_w;
  var y: array<u32, FOUR>;
  var x: array<u32, FOUR>;
  var place: array<u32, FOUR>;
  for (var i = 0u; i < FOUR; i++) {
    // The row of a column past the end exceeds every row. Positions wrap, and are right when they are read.
    y[i] = select(0x80000000u, oy * p.stride_h + p.start_h, outer + i < outer_len);
    x[i] = ox * p.stride_w + p.start_w;
    place[i] = base + y[i] * p.src_row + x[i] * p.src_col;
    ox++;
    if (ox == p.o_w) {
      ox = 0u;
      oy++;
    }
  }
  var kx = k % K_W;
  let rows = k / K_W;
  var ky = rows % K_H;
  var channel = rows / K_H * p.src_channel;
  var columns: array<vec4<f32>, FOUR>;
  for (var j = 0u; j < FOUR; j++) {
    if (k + j < p.k) {
      let dy = ky * p.dilation_h;
      let dx = kx * p.dilation_w;
      let tap = channel + dy * p.src_row + dx * p.src_col;
      for (var i = 0u; i < FOUR; i++) {
        if (y[i] + dy < p.i_h && x[i] + dx < p.i_w) {
          columns[j][i] = rhs_at(place[i] + tap);
        }
      }
    }
    kx++;
    if (kx == K_W) {
      kx = 0u;
      ky++;
      if (ky == K_H) {
        ky = 0u;
        channel += p.src_channel;
      }
    }
  }
  return mat4x4<f32>(columns[0], columns[1], columns[2], columns[3]);
}
